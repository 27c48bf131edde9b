"""qk.torch.Experts by themselves, in the place of a module as transformers' are.

Before a release; needs PyTorch.
"""
import copy
import io
import sys

from common import qk, unittest

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import qk.torch

E, N, K, T, TOP = 5, 32, 64, 6, 3


class Mixture(torch.nn.Module):
    """Experts whose gate is clamped at `limit`, as some models' are."""

    def __init__(self, limit=None, bias=False, act=torch.nn.functional.silu):
        super().__init__()
        torch.manual_seed(3)
        self.gate_up_proj = torch.nn.Parameter(torch.randn(E, 2 * N, K) / 8)
        self.down_proj = torch.nn.Parameter(torch.randn(E, K, N) / 8)
        if bias:
            self.gate_up_proj_bias = torch.nn.Parameter(torch.randn(E, 2 * N))
            self.down_proj_bias = torch.nn.Parameter(torch.randn(E, K))
        self.cut, self.act = limit, act

    def _apply_gate(self, rows):
        gate, up = rows.chunk(2, -1)
        if self.cut is not None:
            gate, up = gate.clamp(max=self.cut), up.clamp(-self.cut, self.cut)
        return self.act(gate) * up

    def forward(self, x, ids, scales):
        bias = [getattr(self, f"{name}_bias", torch.zeros(E, 1)) for name in
                ("gate_up_proj", "down_proj")]
        y = torch.zeros_like(x)
        for t, j in torch.cartesian_prod(torch.arange(x.shape[0]), torch.arange(ids.shape[1])):
            e = ids[t, j]
            if 0 <= e < E:
                rows = self._apply_gate(x[t] @ self.gate_up_proj[e].T + bias[0][e])
                y[t] += scales[t, j] * (rows @ self.down_proj[e].T + bias[1][e])
        return y


def inputs():
    torch.manual_seed(4)
    return torch.randn(T, K), torch.randint(0, E, (T, TOP)), torch.rand(T, TOP)


class Experts(unittest.TestCase):
    def test_as_the_dense_twin(self):
        for bias in (False, True):
            layer = qk.torch.Experts(Mixture(bias=bias), "nf4")
            with torch.no_grad():
                torch.testing.assert_close(layer(*inputs()), layer.dequantize()(*inputs()),
                                           atol=1e-5, rtol=1e-5)

    def test_ids_of_no_expert_are_skipped(self):
        layer = qk.torch.Experts(Mixture(), "nf4")
        x, ids, scales = inputs()
        with torch.no_grad():
            expected = layer(x, ids, scales.index_fill(1, torch.tensor([1]), 0))
            for far in (E, -1, 2**31, 2**32, 2**32 + 1, -2**32, -2**63, 2**63 - 1):
                self.assertTrue(torch.equal(
                    layer(x, ids.index_fill(1, torch.tensor([1]), far), scales), expected), far)
            for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
                self.assertTrue(torch.equal(layer(x, ids.to(dtype), scales),
                                            layer(x, ids, scales)))

    def test_a_state_of_another_format_is_refused(self):
        """Its planes have the same sizes."""
        layer, other = (qk.torch.Experts(Mixture(), form) for form in ("nf4", "fp4"))
        file = io.BytesIO()
        torch.save(other.state_dict(), file)
        file.seek(0)
        state = torch.load(file)
        with self.assertRaisesRegex(RuntimeError, "the state has a weight .*fp4.*nf4"):
            layer.load_state_dict(state)
        own = qk.torch.Experts(Mixture(), "fp4", group_size=64)
        own.load_state_dict(state)
        state["gate_up_proj"] = state["gate_up_proj"].float()
        with self.assertRaisesRegex(RuntimeError, "gate_up_proj: is torch.float32 in the state"):
            own.load_state_dict(state)

    def test_biases_have_gradients(self):
        layer = qk.torch.Experts(Mixture(bias=True), "nf4")
        x, ids, scales = inputs()
        layer(x, ids, scales).sum().backward()
        twin = layer.dequantize()
        grads = [layer.gate_up_proj_bias.grad.clone(), layer.down_proj_bias.grad.clone()]
        twin.zero_grad()
        twin(x, ids, scales).sum().backward()
        for grad, bias in zip(grads, (twin.gate_up_proj_bias, twin.down_proj_bias)):
            torch.testing.assert_close(grad, bias.grad)

    def test_a_gate_that_is_clamped_is_no_silu(self):
        for limit in (5.0, 10.0, 50.0, 500.0):
            model = torch.nn.ModuleDict({"experts": Mixture(limit)})
            self.assertIn("an activation that qk does not compute",
                          qk.torch.replace_linear(model).kept["experts"])
        for act, name in ((torch.nn.SiLU(), "silu"), (torch.nn.GELU(), "gelu"),
                          (torch.nn.GELU("tanh"), "gelu_tanh")):
            self.assertEqual(qk.torch.Experts(Mixture(act=act)).gate.activation, name)

    def test_types_and_copies(self):
        layer = qk.torch.Experts(Mixture(bias=True), "nf4")
        planes = {name: plane.clone() for name, plane in layer.named_buffers()}
        half = copy.deepcopy(layer).half()
        self.assertEqual(half.down_proj_bias.dtype, torch.float16)
        for name, plane in half.named_buffers():
            self.assertTrue(plane.dtype == planes[name].dtype and torch.equal(plane, planes[name]))
        x, ids, scales = inputs()
        with torch.no_grad():
            self.assertEqual(half(x.half(), ids, scales.half()).dtype, torch.float16)


if __name__ == "__main__":
    unittest.main()
