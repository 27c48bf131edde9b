"""qk.torch: operators and Linear in PyTorch's hands. Before a release; needs PyTorch.

Products are compared with qk.linear to the bit, gradients with a dense twin's.
"""
import copy
import io
import pickle
import sys
import threading

from common import qk, replicas, unittest

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import qk.torch
from qk.torch._form import form_of, text_of

FORMATS = [("nf4", {}), ("nf4", {"nested": True}), ("nf4", {"scale": "bf16", "group_size": 32}),
           ("fp4", {"nested": True}), ("fp4_e2m1", {}), ("mxfp4", {}), ("nvfp4", {}),
           ("int4", {}), ("int4", {"symmetric": False, "scale": "f16", "layout": "gptq"}),
           ("int4", {"layout": "awq_gemm", "symmetric": False}), ("int8", {"group_size": -1}),
           ("lut8", {}), ("fp8", {"group_size": -1}), ("mxfp8", {})]
N, K = 96, 128


def make_dense(dtype=torch.float32):
    torch.manual_seed(3)
    return torch.nn.Linear(K, N).to(dtype)



class Values(unittest.TestCase):
    def each(self):
        for format, options in FORMATS:
            dense = make_dense()
            yield (dense, qk.torch.Linear.from_linear(dense, format, **options),
                   qk.quantize(dense.weight, format, **options))

    def test_planes_are_quantizes(self):
        for dense, layer, weight in self.each():
            self.assertEqual(layer.form, text_of(weight.desc))
            for plane, tensor in zip(form_of(layer.form).planes, layer.planes):
                raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
                self.assertEqual(raw.tobytes(), weight.plane(plane.name).tobytes(), plane)
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                expected = torch.empty(N, K, dtype=dtype)
                weight.dequantize(out=expected)
                self.assertTrue(torch.equal(layer.dequantize(dtype), expected))
            self.assertIs(layer.bias, dense.bias)

    def test_products_are_linears(self):
        shapes = [(K,), (1, K), (7, K), (2, 3, K), (2, 1, 2, 1, 3, K), (0, K), (2, 0, K), (40, K)]
        for dense, layer, weight in self.each():
            for dtype in (torch.float32, torch.float16, torch.bfloat16):
                for shape in shapes:
                    x = torch.randn(shape).to(dtype)
                    with torch.no_grad():
                        y = layer(x)
                    self.assertEqual((y.dtype, tuple(y.shape)), (dtype, (*shape[:-1], N)))
                    expected = qk.linear(x.reshape(-1, K), weight, dense.bias.detach())
                    self.assertTrue(torch.equal(y.reshape(-1, N), expected), shape)
                    self.assertTrue(torch.equal(layer(x), y))  # through the dispatcher
        x = torch.randn(K, 9).T
        self.assertTrue(torch.equal(layer(x), layer(x.contiguous())))
        with torch.no_grad():
            self.assertTrue(torch.equal(layer(x[::2]), layer(x.contiguous()[::2].contiguous())))

    def test_results_are_apart(self):
        layer, x = qk.torch.Linear.from_linear(make_dense()), torch.randn(3, K)
        with torch.no_grad():
            first = layer(x)
            kept, second = first.clone(), layer(-x)
        self.assertTrue(torch.equal(first, kept))
        self.assertFalse(torch.equal(first, second))

    def test_without_bias_and_bias_of_another_type(self):
        dense = torch.nn.Linear(K, N, bias=False)
        layer = qk.torch.Linear.from_linear(dense)
        x = torch.randn(3, K)
        self.assertTrue(torch.equal(layer(x), qk.linear(x, qk.quantize(dense.weight))))
        layer.bias = torch.nn.Parameter(torch.randn(N, dtype=torch.bfloat16))
        expected = qk.linear(x, qk.quantize(dense.weight), layer.bias.detach())
        self.assertTrue(torch.equal(layer(x), expected))

    def test_wrong_calls(self):
        layer = qk.torch.Linear(K, N)
        for x, message in ((torch.ones(2, K + 1), "last dimension is 129, must be 128"),
                           (torch.ones(2, K, dtype=torch.float64), "float64"),
                           (torch.ones(2, K, dtype=torch.int64), "int64")):
            with torch.no_grad(), self.assertRaisesRegex(qk.CallError, message):
                layer(x)
        with self.assertRaisesRegex(qk.CallError, "accepted are"):
            qk.torch.Linear(K, N, format="nf5")
        with self.assertRaisesRegex(qk.CallError, "planes: are data, of .* they are data, scale"):
            qk.torch.Linear.from_planes(K, N, "nf4", {"data": layer.weight}, group_size=64,
                                        scale="f32", layout="row_high")
        layer.weight_scale = layer.weight_scale.half()  # around .to(), which keeps it
        with torch.no_grad(), self.assertRaisesRegex(qk.CallError, "scale: is torch.float16"):
            layer(torch.ones(2, K))

    def test_from_planes_and_tensor(self):
        for dense, layer, weight in self.each():
            options = {name: value for name, value in form_of(layer.form).options.items()}
            planes = {plane.name: torch.from_numpy(weight.plane(plane.name))
                      for plane in form_of(layer.form).planes}
            other = qk.torch.Linear.from_planes(K, N, layer.format, planes, dense.bias, **options)
            third = qk.torch.Linear.from_tensor(qk.Layer(weight, dense.bias.detach().numpy()))
            x = torch.randn(3, K)
            for made in (other, third):
                self.assertEqual(made.form, layer.form)
                self.assertTrue(torch.equal(made(x), layer(x)))

    def test_threads(self):
        layer, x = qk.torch.Linear.from_linear(make_dense()), torch.randn(5, K)
        expected, wrong = layer(x).detach(), []

        def work():
            with torch.no_grad():
                for _ in range(50):
                    if not torch.equal(layer(x), expected):
                        wrong.append(1)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])


class Gradients(unittest.TestCase):
    def check(self, format, options, shape, dtype, bound):
        dense = make_dense(dtype)
        layer = qk.torch.Linear.from_linear(dense, format, **options)
        layer.bias = torch.nn.Parameter(dense.bias.detach().clone())
        with torch.no_grad():
            dense.weight.copy_(layer.dequantize())
        a = torch.randn(*shape, K).to(dtype).requires_grad_()
        b = a.detach().clone().requires_grad_()
        direction = torch.randn(*shape, N).to(dtype)
        layer(a).backward(direction)
        dense(b).backward(direction)
        for one, other in ((a.grad, b.grad), (layer.bias.grad, dense.bias.grad)):
            error = (one - other).abs().max() / other.abs().max()
            self.assertLess(error.item(), bound, (format, shape, dtype))
        self.assertEqual(a.grad.dtype, dtype)

    def test_equal_the_dense_twins(self):
        for format, options in FORMATS:
            for shape in ((2, 5), (129,)):  # by the library, and where torch is faster
                self.check(format, options, shape, torch.float32, 1e-5)
                self.check(format, options, shape, torch.bfloat16, 2e-2)
            self.check(format, options, (4,), torch.bfloat16, 2e-2)
            self.check(format, options, (2, 5), torch.float16, 2e-3)

    def test_are_transposed_products(self):
        dense = make_dense().requires_grad_(False)
        layer, weight = qk.torch.Linear.from_linear(dense), qk.quantize(dense.weight).repack()
        for shape in ((N,), (2, 5, N), (0, N)):
            given = torch.randn(shape)
            made = torch.ops.qk.linear_transposed(given, layer.planes, layer.form)
            expected, = qk.multiply([qk.Product(given.reshape(-1, N), weight, transposed=True)]) \
                if given.numel() else [torch.empty(0, K)]
            self.assertTrue(torch.equal(made, expected.reshape(*shape[:-1], K)), shape)

    def test_twice(self):
        layer = qk.torch.Linear.from_linear(make_dense().requires_grad_(False))
        x = torch.randn(3, K, requires_grad=True)
        first, = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        second, = torch.autograd.grad(first.square().sum(), x)
        w = layer.dequantize().double()
        square = w.T @ w
        expected = 8 * x.detach().double() @ square @ square
        expected += 8 * layer.bias.double() @ w @ square
        error = (second.double() - expected).abs().max() / expected.abs().max()
        self.assertLess(error.item(), 1e-5)

    def test_checkpointing(self):
        from torch.utils.checkpoint import checkpoint
        layer = qk.torch.Linear.from_linear(make_dense())
        grads = []
        for call in (layer, lambda x: checkpoint(layer, x, use_reentrant=False)):
            x = torch.ones(3, K, requires_grad=True)
            call(x).square().sum().backward()
            grads.append(x.grad)
        self.assertTrue(torch.equal(*grads))

    def test_autocast(self):
        layer = qk.torch.Linear.from_linear(make_dense())
        x = torch.randn(3, K, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
            with torch.no_grad():
                self.assertTrue(torch.equal(layer(x.detach()), y))
        self.assertEqual(y.dtype, torch.bfloat16)
        self.assertTrue(torch.equal(y, layer(x.bfloat16())))
        y.float().sum().backward()
        self.assertEqual(x.grad.dtype, torch.float32)


class Tracers(unittest.TestCase):

    def test_autocast_is_the_operators(self):
        layer = qk.torch.Linear.from_linear(torch.nn.Linear(64, 48), "nf4")
        for x in (torch.randn(3, 64), torch.randn(3, 64).bfloat16(), torch.randn(300, 64)):
            leaves = [x.clone().requires_grad_() for _ in range(2)]
            with torch.autocast("cpu"):
                ys = [layer(leaves[0]),
                      torch.ops.qk.linear(leaves[1], layer.planes, layer.form, layer.bias)]
            self.assertEqual(ys[0].dtype, torch.bfloat16)
            self.assertTrue(torch.equal(*ys))
            for y in ys:
                y.float().square().sum().backward()
            self.assertTrue(torch.equal(leaves[0].grad, leaves[1].grad))

    def test_opcheck(self):
        for bias in (None, torch.randn(N, requires_grad=True)):
            layer = qk.torch.Linear.from_linear(make_dense(), "nf4", nested=True)
            ops, x = torch.ops.qk, torch.randn(3, K, requires_grad=True)
            torch.library.opcheck(ops.linear.default, (x, layer.planes, layer.form, bias))
            torch.library.opcheck(ops.linear_transposed.default,
                                  (torch.randn(3, N, requires_grad=True), layer.planes, layer.form))
            torch.library.opcheck(ops.dequantize.default,
                                  (layer.planes, layer.form, torch.float16))
            torch.library.opcheck(ops.quantize.default, (torch.randn(N, K), layer.form))

    def test_compile(self):
        for backend in ("aot_eager", "inductor"):
            torch._dynamo.reset()
            model = torch.nn.Sequential(qk.torch.Linear.from_linear(make_dense()), torch.nn.GELU(),
                                        qk.torch.Linear(N, 40, format="int8"))
            compiled = torch.compile(model, fullgraph=True, backend=backend)
            grads = []
            for call in (model, compiled):
                x = torch.linspace(-1, 1, 5 * K).reshape(5, K).requires_grad_()
                y = call(x)
                y.sum().backward()
                grads.append((y.detach(), x.grad))
                with torch.no_grad():
                    self.assertEqual(call(x).shape, (5, 40))
            for one, other in zip(*grads):
                torch.testing.assert_close(one, other)

    def test_export(self):
        layer = qk.torch.Linear.from_linear(make_dense()).requires_grad_(False)
        batch = torch.export.Dim("batch", min=2, max=64)
        program = torch.export.export(layer, (torch.randn(4, K),), dynamic_shapes=({0: batch},))
        self.assertIn("qk.linear.default", str(program.graph))
        stored = io.BytesIO()
        torch.export.save(program, stored)
        stored.seek(0)
        x = torch.randn(9, K)
        self.assertTrue(torch.equal(torch.export.load(stored).module()(x), layer(x)))

    def test_the_profiler_sees_it(self):
        layer = qk.torch.Linear.from_linear(make_dense())
        with torch.no_grad(), torch.profiler.profile() as profile:
            layer(torch.ones(2, K))
        self.assertIn("qk::linear", [event.key for event in profile.key_averages()])


class Module(unittest.TestCase):
    def setUp(self):
        self.layer = qk.torch.Linear.from_linear(make_dense(), "nf4", nested=True)
        self.x = torch.randn(3, K)
        with torch.no_grad():
            self.y = self.layer(self.x)

    def check(self, other):
        for one, same in zip(self.layer.planes, other.planes):
            self.assertEqual(one.dtype, same.dtype)
            self.assertTrue(torch.equal(one, same.cpu()))
        with torch.no_grad():
            self.assertTrue(torch.equal(other(self.x), self.y))

    def test_state(self):
        state = self.layer.state_dict()
        self.assertEqual(sorted(state), ["bias", "weight", "weight_scale", "weight_scale2",
                                         "weight_scale_bias", "weight_scale_code"])
        empty = qk.torch.Linear(K, N, format="nf4", nested=True)
        with torch.no_grad():
            self.assertFalse(empty(self.x).any())
        self.assertEqual(str(empty.load_state_dict(state)), "<All keys matched successfully>")
        self.check(empty)  # and not what was packed of zeros
        stored = io.BytesIO()
        torch.save(state, stored)
        stored.seek(0)
        fresh = qk.torch.Linear(K, N, format="nf4", nested=True, device="meta")
        fresh.load_state_dict(torch.load(stored, weights_only=True), assign=True)
        self.check(fresh)
        with self.assertRaisesRegex(RuntimeError, "the state has a weight .*fp4|nf4"):
            qk.torch.Linear(K, N, format="fp4", nested=True).load_state_dict(state)
        with self.assertRaises(RuntimeError):
            qk.torch.Linear(K, N, format="nf4").load_state_dict(state)

    def test_copies(self):
        for other in (copy.deepcopy(self.layer), pickle.loads(pickle.dumps(self.layer))):
            self.check(other)
            self.assertNotEqual(other.weight.data_ptr(), self.layer.weight.data_ptr())

    def test_types_and_devices(self):
        layer = copy.deepcopy(self.layer).to("meta")
        self.assertTrue(all(plane.is_meta for plane in layer.planes))
        self.assertEqual(layer(torch.empty(2, 3, K, device="meta")).shape, (2, 3, N))
        layer.to_empty(device="cpu").load_state_dict(self.layer.state_dict())
        self.check(layer)
        for change in (lambda m: m.half().float(), lambda m: m.double().float(),
                       lambda m: m.to(torch.float16).to("cpu", torch.float32),
                       lambda m: m.share_memory()):
            changed = change(copy.deepcopy(self.layer))
            changed.bias = self.layer.bias
            self.check(changed)
        self.assertEqual(copy.deepcopy(self.layer).bfloat16().bias.dtype, torch.bfloat16)

    def test_changed_in_place(self):
        double = copy.deepcopy(self.layer)
        with torch.no_grad():
            double.bias.zero_()
            single = double(self.x)
            double.weight_scale2.mul_(2)
            double.weight_scale_bias.mul_(2)
            self.assertTrue(torch.equal(double(self.x), 2 * single))

    def test_data_parallel_copies(self):
        bare = qk.torch.Linear.from_linear(torch.nn.Linear(K, N, bias=False))
        for other, alone in replicas(torch.nn.ModuleList([self.layer, bare])):
            self.check(other)
            self.assertNotIn("bias", other._parameters)  # it is an attribute
            self.assertIn("bias=True", repr(other))
            self.assertTrue(torch.equal(alone(self.x), bare(self.x)))
            other(self.x).sum().backward()
            self.assertIsNotNone(self.layer.bias.grad)
            self.layer.bias.grad = None

    def test_inference_mode(self):
        with torch.inference_mode():
            layer = qk.torch.Linear.from_linear(make_dense(), "nf4", nested=True)
            self.assertTrue(torch.equal(layer(self.x), self.y))

    def test_ids_of_experts_of_any_width(self):
        w = qk.quantize(torch.ones(64, 32)).plane
        w = qk.Tensor.from_planes((2, 32, 32), "nf4", {"data": w("data"), "scale": w("scale")},
                                  scale="f32", layout="row_high", group_size=64)
        x, ids = torch.ones(3, 32), torch.tensor([[0, 1], [1, 1], [1, 0]])
        y = qk.experts(x, w, ids)
        for width in (torch.int8, torch.uint8, torch.int32, torch.uint32, torch.uint64):
            self.assertTrue(torch.equal(qk.experts(x, w, ids.to(width)), y), width)
        for far, width in ((2**40, torch.int64), (2**31, torch.uint32), (2**32, torch.uint64)):
            self.assertTrue(qk.experts(x, w, ids.fill_(far).to(width)).isnan().all(), width)
        past_int64 = torch.full((3, 2), -1).view(torch.uint64)
        self.assertTrue(qk.experts(x, w, past_int64).isnan().all())

    def test_nothing_is_kept(self):
        from qk.torch import _prepared
        before = len(_prepared._entries)
        for _ in range(3):
            layer = qk.torch.Linear.from_linear(make_dense())
            layer(self.x)
            self.assertEqual(len(_prepared._entries), before + 1)
            del layer
        self.assertEqual(len(_prepared._entries), before)

    def test_repr(self):
        self.assertIn("nf4 scale=lut8 layout=row_high group_size=64", repr(self.layer))


if __name__ == "__main__":
    unittest.main()
