"""Arrays that are more than their values, or have none: gradients, traces, fake tensors, tracers.

With torch and jax where they are installed; the rules for torch also on what tests/fake_torch.py
shows of it, so they are tested everywhere.
"""
import sys
import types
from unittest import mock

import fake_torch
from common import np, qk, torch, unittest

W = qk.quantize(np.random.default_rng(1).standard_normal((24, 64)).astype("f"))
X = np.random.default_rng(2).standard_normal((3, 64)).astype("f")


def gru():
    random = np.random.default_rng(4)
    return qk.GRU(random.standard_normal((12, 64)), random.standard_normal((12, 4)))


class Rules(unittest.TestCase):
    """Each place where an array goes in, times each reason to refuse it."""

    def setUp(self):
        self.torch, self.state = fake_torch.module()
        patch = mock.patch.dict(sys.modules, torch=self.torch)
        patch.start()
        self.addCleanup(patch.stop)
        self.frozen = gru().calibrate(X).freeze()
        self.w2 = qk.quantize(np.ones((64, 64), "f"))

    def ways(self, make):
        tensor = fake_torch.Tensor
        vector = tensor(np.zeros(24))
        return {
            "x": [lambda: qk.linear(make(X), W), lambda: W @ make(X[0]), lambda: W @ make(X.T),
                  lambda: qk.Layer(W)(make(X)), lambda: qk.prepare(make(X), W),
                  lambda: qk.asarray(make(X)), lambda: self.frozen(make(X)),
                  lambda: self.frozen.stream()(make(X[0])), lambda: gru().calibrate(make(X)),
                  lambda: gru().run_float(make(X))],
            "bias": [lambda: qk.linear(tensor(X), W, make(vector.values)),
                     lambda: qk.Layer(W, make(vector.values))(tensor(X))],
            "out": [lambda: qk.linear(tensor(X), W, out=make(np.zeros((3, 24)))),
                    lambda: W.dequantize(out=make(np.zeros((24, 64))))],
        }

    def refused(self, make, sentence, only=("x", "bias", "out")):
        for name in only:
            for i, way in enumerate(self.ways(make)[name]):
                with self.subTest(name=name, way=i):
                    with self.assertRaisesRegex(qk.CallError, f"^{name}: .*{sentence}"):
                        way()

    def test_gradients(self):
        def parameter(values):
            return fake_torch.Tensor(values, requires_grad=True)

        self.refused(parameter, r"requires gradients.*no_grad")
        with self.state(grad=False):
            y = qk.linear(parameter(X), W)
        np.testing.assert_array_equal(y.values, qk.linear(X, W))
        np.testing.assert_array_equal(qk.linear(parameter(X).detach(), W).values, y.values)
        self.assertEqual(qk.quantize(parameter(X)).shape, X.shape)  # a weight: its values

    def test_traces(self):
        with self.state(tracing=True):
            self.refused(fake_torch.Tensor, "torch.jit.trace is recording", ["x"])
        with self.state(modes=[fake_torch.Counter(), fake_torch.FakeTensorMode()]):
            self.refused(fake_torch.Tensor, "FakeTensorMode is recording", ["x"])
        with self.state(level=0, tangent=1):
            self.refused(fake_torch.Tensor, "forward_ad is recording", ["x"])
        with self.state(level=0, modes=[fake_torch.Counter()]):
            y = qk.linear(fake_torch.Tensor(X), W)
        np.testing.assert_array_equal(y.values, qk.linear(X, W))

    def test_versions_of_torch_that_cannot_record(self):
        older, _ = fake_torch.module()
        older.jit, older._C = types.SimpleNamespace(), types.SimpleNamespace()
        older.autograd = types.SimpleNamespace(forward_ad=types.SimpleNamespace())
        with mock.patch.dict(sys.modules, torch=older):
            y = qk.linear(fake_torch.Tensor(X), W)
            with self.assertRaisesRegex(qk.CallError, "requires gradients"):
                qk.linear(fake_torch.Tensor(X, requires_grad=True), W)
        np.testing.assert_array_equal(y.values, qk.linear(X, W))

    def test_what_has_no_values(self):
        self.refused(fake_torch.OnAnotherDevice, "device meta, accepted are cpu and cuda", ["x"])
        self.refused(fake_torch.WithItsOwnDispatch, "is a WithItsOwnDispatch, accepted are plain")
        self.refused(fake_torch.WithoutMemory, "without memory of its own")
        self.refused(lambda values: fake_torch.Tensor(values, layout="torch.sparse_coo"),
                     "layout torch.sparse_coo, accepted is torch.strided")
        self.refused(lambda values: fake_torch.Tensor(values, is_nested=True), "layout nested")
        self.refused(lambda values: fake_torch.Tensor(values, dtype="torch.complex64"),
                     "is torch.complex64, accepted are float32")


class Arrays(unittest.TestCase):
    def test_masks_and_ranks(self):
        with self.assertRaisesRegex(qk.CallError, "^x: is a masked array"):
            qk.linear(np.ma.masked_greater(X, 0), W)
        for x in (np.float32(3), np.array(3, "f"), np.zeros((1, 1, 1, 1, 64), "f")):
            with self.assertRaisesRegex(qk.CallError, f"^x: rank is {x.ndim}, accepted are 1 to 4"):
                qk.linear(x, W)
        for x in (X.astype(">f4"), X.astype("c8"), X.astype(object), X.astype(int)):
            with self.assertRaisesRegex(qk.CallError, f"^x: is {x.dtype}, accepted are float32"):
                qk.linear(x, W)


    def test_minima_as_planes_and_in_records(self):
        q4_1 = dict(format="u4_affine", scale="f16", group_size=32, float_min=True)
        planes = qk.Tensor.empty((2, 64), **q4_1)
        codes = np.arange(128, dtype=np.uint8).reshape(2, 64) % 16
        scales = np.array([0.5, 0.25, 2, 1], np.float16)
        minima = np.array([1, -0.5, 3, 0], np.float16)
        planes.set_plane("data", codes[:, ::2] | codes[:, 1::2] << 4)
        planes.set_plane("scale", scales)
        planes.set_plane("zero", minima)
        self.assertTrue(np.array_equal(planes.plane("zero"), minima))
        group = np.arange(4).reshape(2, 2).repeat(32, axis=1)
        values = codes * scales[group] - minima[group]
        self.assertTrue(np.array_equal(planes.dequantize(), values))
        self.assertTrue(np.array_equal(planes.repack("gguf_q4_1").dequantize(), values))

    def test_outputs_have_the_shape_of_y(self):
        for shape in ((24, 3), (72,), (1, 3, 24), (3, 25)):
            out = np.full(shape, 7, "f")
            with self.assertRaisesRegex(qk.CallError, "^(y|out): "):
                qk.linear(X, W, out=out)
            self.assertTrue((out == 7).all())


class Torch(unittest.TestCase):
    def setUp(self):
        self.t = torch()
        self.x = self.t.from_numpy(X.copy())
        self.y = qk.linear(X, W)

    def refused(self, call, sentence):
        with self.assertRaisesRegex(qk.CallError, sentence):
            call()

    def test_gradients_never_vanish(self):
        t, x = self.t, self.x
        leaf = t.nn.Parameter(x.clone())
        for tensor in (leaf, leaf * 2, leaf.view(-1)[:64]):
            self.refused(lambda tensor=tensor: qk.linear(tensor, W), "^x: requires gradients")
        self.refused(lambda: qk.linear(x, W, t.zeros(24, requires_grad=True)),
                     "^bias: requires gradients")
        self.refused(lambda: qk.linear(x, W, out=t.zeros(3, 24, requires_grad=True)),
                     "^out: requires gradients")
        for context in (t.no_grad, t.inference_mode):
            with context():
                np.testing.assert_array_equal(qk.linear(leaf, W).numpy(), self.y)
        np.testing.assert_array_equal(qk.linear(leaf.detach(), W).numpy(), self.y)
        np.testing.assert_array_equal(qk.quantize(leaf).dequantize(),
                                      qk.quantize(leaf.detach()).dequantize())
        with t.inference_mode():
            made = t.from_numpy(X.copy())
        np.testing.assert_array_equal(qk.linear(made, W).numpy(), self.y)

    def test_tracers_are_refused(self):
        t, x = self.t, self.x
        from torch.fx.experimental.proxy_tensor import make_fx

        class Module(t.nn.Module):
            def forward(self, x):
                return qk.linear(x, W)

        self.refused(lambda: t.jit.trace(Module(), x), "^x: torch.jit.trace is recording")
        self.refused(lambda: t.fx.symbolic_trace(Module()), "^x: is a Proxy")
        for mode in ("real", "fake", "symbolic"):
            self.refused(lambda mode=mode: make_fx(Module(), tracing_mode=mode)(x),
                         "^x: (is a FakeTensor|ProxyTorchDispatchMode is recording)")
        self.refused(lambda: t.export.export(Module(), (x,), strict=False), "^x: is a FakeTensor")
        for transform in (t.func.vmap(Module()), t.func.grad(lambda x: Module()(x).sum()),
                          t.func.functionalize(Module()),
                          lambda x: t.func.jvp(Module(), (x,), (x,))):
            self.refused(lambda transform=transform: transform(x),
                         "^x: (is a Tensor without memory|requires gradients|"
                         "torch.autograd.forward_ad is recording)")
        from torch.autograd import forward_ad
        with forward_ad.dual_level():
            self.refused(lambda: qk.linear(forward_ad.make_dual(x, x), W), "^x: .*forward_ad")
            np.testing.assert_array_equal(qk.linear(x, W).numpy(), self.y)
        np.testing.assert_array_equal(qk.linear(x, W).numpy(), self.y)

    def test_compiled_functions_give_the_same_bits(self):
        t = self.t
        compiled = t.compile(lambda x: qk.linear(x, W) * 2, backend="eager")
        np.testing.assert_array_equal(compiled(self.x).numpy(), self.y * 2)

    def test_what_has_no_values_is_refused(self):
        t, x = self.t, self.x
        from torch._subclasses import FakeTensorMode
        with FakeTensorMode() as mode:
            self.refused(lambda: qk.linear(t.empty(3, 64), W), "^x: is a FakeTensor")
            self.refused(lambda: qk.linear(x, W), "^x: FakeTensorMode is recording")
        self.refused(lambda: qk.linear(mode.from_tensor(x), W), "^x: is a FakeTensor")
        self.refused(lambda: qk.linear(x.to("meta"), W), "^x: is on the device meta")
        self.refused(lambda: qk.linear(x, W, out=t.empty(3, 24, device="meta")),
                     "^out: is on the device meta")
        self.refused(lambda: qk.quantize(x.to("meta")), "^x: is on the device meta")
        self.refused(lambda: qk.GRU(t.empty(12, 3, device="meta"), t.empty(12, 4, device="meta")),
                     "^w_ih: is on the device meta")
        self.refused(lambda: qk.linear(x.to_sparse(), W), "^x: has the layout torch.sparse_coo")
        self.refused(lambda: qk.linear(x.to_sparse_csr(), W), "^x: has the layout")
        nested = t.nested.nested_tensor([x, x])
        self.refused(lambda: qk.linear(nested, W), "^x: has the layout nested")
        self.refused(lambda: qk.linear(t.quantize_per_tensor(x, 0.1, 0, t.quint8), W),
                     "^x: is torch.quint8")
        self.refused(lambda: qk.linear(t.complex(x, x), W), "^x: is torch.complex64")
        self.refused(lambda: qk.linear(t.tensor(3.0), W), "^x: rank is 0")

    def test_views_are_read_right(self):
        t, x = self.t, self.x
        for view in (t.complex(x, -x).conj().imag, x.t().contiguous().t(),
                     t.stack([x, x], 2)[..., 1], t.cat([x, x])[3:],
                     t.nn.Parameter(x, requires_grad=False)):
            np.testing.assert_array_equal(qk.linear(view, W).numpy(), self.y)
        row = x[:1].expand(3, 64)
        np.testing.assert_array_equal(qk.linear(row, W).numpy(),
                                      qk.linear(np.repeat(X[:1], 3, 0), W))
        self.refused(lambda: qk.linear(x, W, out=t.zeros(24, 3).t()), "^out: is not row-major")

    def test_grus(self):
        t, frozen = self.t, gru().calibrate(X).freeze()
        y = frozen(X)
        for call in (frozen, frozen.stream()):
            with t.no_grad():
                np.testing.assert_array_equal(call(self.x.clone().requires_grad_()).numpy(), y)
            self.refused(lambda call=call: call(self.x.clone().requires_grad_()),
                         "^x: requires gradients")
            self.refused(lambda call=call: t.jit.trace(call.__call__, self.x),
                         "^x: torch.jit.trace")
            self.refused(lambda call=call: t.func.vmap(call)(self.x[None]), "^x: .*without memory")


class Jax(unittest.TestCase):
    def test_tracers_are_refused_and_arrays_taken(self):
        try:
            import jax
        except ImportError:
            self.skipTest("jax is not installed")
        x, frozen = jax.numpy.asarray(X), gru().calibrate(X).freeze()
        np.testing.assert_array_equal(np.asarray(qk.linear(x, W)), qk.linear(X, W))
        for function in (lambda x: qk.linear(x, W), lambda x: W @ x[0], qk.asarray, frozen,
                         frozen.stream()):
            for transform in (jax.jit, jax.make_jaxpr,
                              lambda f: jax.grad(lambda x: f(x).sum())):
                with self.assertRaisesRegex(qk.CallError, r"^x: is a \w*Tracer.* of jax"):
                    transform(function)(x)
        with self.assertRaisesRegex(qk.CallError, r"^x: is a \w*Tracer.* of jax"):
            jax.vmap(lambda x: qk.linear(x, W))(x)


if __name__ == "__main__":
    unittest.main()
