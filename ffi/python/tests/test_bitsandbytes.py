"""bitsandbytes with qk's kernels: the bytes of its own, and what its own get wrong.

Needs PyTorch and bitsandbytes; run before a release. bitsandbytes' own kernels answer from a
process of their own, which is started without qk. Its own tests: bitsandbytes_own_tests.py.
"""
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from common import REPOSITORY, np, qk, unittest

try:
    import torch
    import bitsandbytes
    from bitsandbytes import functional
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
OPS = torch.ops.bitsandbytes


def numbers(shape, dtype, seed=0):
    """Normal numbers, with a block of zeros and one of tiny numbers where there is room."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    if x.numel() > 300:
        flat = x.view(-1)
        flat[:70], flat[128:200] = 0, flat[128:200] * 1e-6
    return x.to(dtype)


def four_bit_cases():
    for dtype, kind, block in itertools.product(DTYPES, ("nf4", "fp4"), (32, 64, 256, 4096)):
        for shape in ((64, 64), (7, 63), (130, 128), (5, 4096), (1,), (3, 5, 7, 2)):
            yield dtype, kind, block, shape


def blockwise_cases():
    for dtype, block in itertools.product(DTYPES, (1, 2, 7, 15, 16, 64, 100, 4096, 4099, 65536)):
        for shape in ((), (1,), (1000,), (40, 1000), (2, 3, 1, 4, 2, 5)):
            yield dtype, block, shape


def answers():
    """Every case's bytes, by whatever kernels are registered."""
    found = {}
    for dtype, kind, block, shape in four_bit_cases():
        codes, absmax = OPS.quantize_4bit(numbers(shape, dtype), block, kind, torch.uint8)
        found[f"{kind} {block} {shape} {dtype}"] = [codes, absmax]
        if shape[-1] >= block or len(shape) == 1:  # else its AVX-512 kernel takes other scales
            found[f"{kind} {block} {shape} {dtype}"].append(
                OPS.dequantize_4bit(codes, absmax, block, kind, shape, dtype))
    code = functional.create_dynamic_map()
    for dtype, block, shape in blockwise_cases():
        codes, absmax = OPS.quantize_blockwise(numbers(shape, dtype), code, block)
        values = OPS.dequantize_blockwise(codes, absmax, code, block, dtype)
        found[f"lut8 {block} {shape} {dtype}"] = (codes, absmax, values)
    return {f"{name}, {part}": tensor.contiguous().view(-1).view(torch.uint8).numpy()
            for name, tensors in found.items()
            for part, tensor in zip(("codes", "absmax", "values"), tensors)}


def run(code, **environment):
    """A process of its own, with an entry point as a wheel of the package has it."""
    entry = re.search(r"bitsandbytes\.backends.*?\n(qk) = \"(.*?)\"",
                      (REPOSITORY / "ffi/python/pyproject.toml").read_text(), re.DOTALL)
    with tempfile.TemporaryDirectory() as folder:
        metadata = Path(folder) / "qk-0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: qk\nVersion: 0\n")
        (metadata / "entry_points.txt").write_text(
            f"[bitsandbytes.backends]\n{entry[1]} = {entry[2]}\n")
        path = os.pathsep.join([folder, str(Path(__file__).parent),
                                os.environ.get("PYTHONPATH", "")])
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": path, **environment})
    if done.returncode:
        raise AssertionError(done.stdout + done.stderr)
    return done.stdout


class Bytes(unittest.TestCase):
    def test_are_those_of_bitsandbytes(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "stock.npz")
            run(f"import test_bitsandbytes as t; t.np.savez({path!r}, **t.answers())",
                QK_BITSANDBYTES="off")
            stock = dict(np.load(path))
        qks = answers()
        self.assertEqual(stock.keys(), qks.keys())
        self.assertEqual([name for name in stock if not np.array_equal(stock[name], qks[name])], [])
        self.assertGreater(len(stock), 700)

    def test_values_are_entries_times_scales(self):
        for dtype, kind, block, shape in four_bit_cases():
            codes, absmax = OPS.quantize_4bit(numbers(shape, dtype), block, kind, torch.uint8)
            nibbles = torch.stack([codes >> 4, codes & 15], -1).view(-1)[:np.prod(shape)]
            entries = functional.get_4bit_type(kind, "cpu")[nibbles.long()]
            wanted = entries * absmax.repeat_interleave(block)[:entries.numel()]
            values = OPS.dequantize_4bit(codes, absmax, block, kind, shape, dtype)
            self.assertTrue(torch.equal(values.view(-1), wanted.to(dtype)), (kind, block, shape))


class Products(unittest.TestCase):
    def weight(self, n, k, block, kind, nested, dtype):
        codes, state = functional.quantize_4bit(numbers((n, k), dtype), blocksize=block,
                                                quant_type=kind, compress_statistics=nested)
        values = functional.dequantize_4bit(codes, state).double() if dtype == torch.float32 else \
            OPS.dequantize_4bit(codes, self.scales(state), block, kind, (n, k),
                                torch.float32).double()
        return codes, state, values

    @staticmethod
    def scales(state):
        if not state.nested:
            return state.absmax
        return functional.dequantize_blockwise(state.absmax, state.state2) + state.offset

    def test_are_exact_but_for_the_last_rounding(self):
        steps = {torch.float32: 2e-6, torch.float16: 2 ** -11, torch.bfloat16: 2 ** -8}
        for (n, k), block, kind, nested, dtype, m in itertools.product(
                ((64, 64), (7, 63), (48, 520)), (32, 128), ("nf4", "fp4"), (False, True), DTYPES,
                (1, 5)):
            with self.subTest(n=n, k=k, block=block, kind=kind, nested=nested, dtype=dtype, m=m):
                codes, state, values = self.weight(n, k, block, kind, nested, dtype)
                x, bias = numbers((2, m, k), dtype, 1), numbers((n,), dtype, 2)
                with torch.no_grad():
                    y = bitsandbytes.matmul_4bit(x, codes, state, bias=bias)
                exact = x.double() @ values.T + bias.double()
                room = steps[dtype] * exact.abs() + 2e-6 * (x.double().abs() @ values.abs().T)
                self.assertTrue(((y.double() - exact).abs() <= room).all())

    def test_strides_storage_and_empty(self):
        codes, state, _ = self.weight(64, 96, 32, "nf4", False, torch.float32)
        x = numbers((96, 10), torch.float32, 1).T
        y = OPS.gemm_4bit(x.contiguous(), codes, (64, 96), state.absmax, 32, "nf4")
        for storage in (torch.bfloat16, torch.float32):
            self.assertTrue(torch.equal(y, OPS.gemm_4bit(x, codes.view(-1).view(storage), (64, 96),
                                                         state.absmax, 32, "nf4")))
        self.assertEqual(OPS.gemm_4bit(x[:0], codes, (64, 96), state.absmax, 32, "nf4").shape,
                         (0, 64))
        self.assertEqual(OPS.gemm_4bit(x[0], codes, (64, 96), state.absmax, 32, "nf4").shape,
                         (64,))

    def test_rounding_is_a_choice(self):
        from qk import bitsandbytes as backend
        codes, state, values = self.weight(64, 96, 32, "nf4", False, torch.bfloat16)
        x = numbers((3, 96), torch.bfloat16, 1)
        rounded = torch.nn.functional.linear(x, values.to(torch.bfloat16))
        arguments = (x, codes, (64, 96), state.absmax)
        try:
            for where, gemv, gemm in (("none", False, False), ("gemv", True, False),
                                      ("all", True, True)):
                backend.round_weights(where)
                self.assertEqual(torch.equal(rounded, OPS.gemv_4bit(
                    *arguments, state.code, 32)), gemv, where)
                self.assertEqual(torch.equal(rounded, OPS.gemm_4bit(*arguments, 32, "nf4")), gemm,
                                 where)
        finally:
            backend.round_weights("gemv")


class Outputs(unittest.TestCase):
    def test_out_is_written_whatever_its_strides(self):
        codes, absmax = OPS.quantize_4bit(numbers((6, 64), torch.float32), 32, "nf4", torch.uint8)
        wanted = OPS.dequantize_4bit(codes, absmax, 32, "nf4", (6, 64), torch.float16)
        for out in (torch.empty(6, 64, dtype=torch.float16),
                    torch.empty(64, 6, dtype=torch.float16).T):
            OPS.dequantize_4bit.out(codes, absmax, 32, "nf4", (6, 64), torch.float16, out=out)
            self.assertTrue(torch.equal(out, wanted))

    def test_strides_are_those_that_compiled_graphs_expect(self):
        code, x = functional.create_dynamic_map(), numbers((40, 50), torch.float32).T
        codes, absmax = OPS.quantize_blockwise(x, code, 64)
        plain, _ = OPS.quantize_blockwise(x.contiguous(), code, 64)
        self.assertEqual(codes.stride(), x.stride())
        self.assertTrue(torch.equal(codes, plain))
        values = OPS.dequantize_blockwise(codes, absmax, code, 64, torch.float32)
        self.assertEqual(values.stride(), x.stride())
        self.assertLess((values - x).abs().max(), 0.1)

    def test_what_cannot_be_is_refused(self):
        x, code = numbers((3, 2), torch.float32), functional.create_dynamic_map()
        codes, absmax = OPS.quantize_4bit(x, 32, "nf4", torch.uint8)
        for call, sentence in (
                (lambda: OPS.quantize_4bit(x, 32, "nf4", torch.bfloat16), "3 bytes of codes"),
                (lambda: OPS.quantize_4bit(x, 8192, "nf4", torch.uint8), "blocksize: is 8192"),
                (lambda: OPS.quantize_4bit(x, 32, "nf5", torch.uint8), "quant_type: is 'nf5'"),
                (lambda: OPS.quantize_4bit(x.double(), 32, "nf4", torch.uint8), "A: is torch.f"),
                (lambda: OPS.quantize_blockwise(x, code[:16], 32), "code: has 16 entries"),
                (lambda: OPS.quantize_blockwise(x, code, 0), "blocksize: is 0"),
                (lambda: OPS.dequantize_4bit(codes, absmax, 32, "nf4", (3, 4), torch.float32),
                 "B: has 3 bytes, must have 6"),
                (lambda: OPS.gemm_4bit(x[:, :1], codes, (3, 2), absmax, 32, "nf4"),
                 "its last dimension must be 2")):
            with self.assertRaisesRegex(ValueError, sentence):
                call()


class Programs(unittest.TestCase):
    """Modules of bitsandbytes in processes of their own, where the entry point alone loads qk."""

    COUNT = """
import json, torch, bitsandbytes, qk
torch.manual_seed(0)
seen = []
with qk.Context(trace=lambda call: seen.append(call.operation)):
    layer = bitsandbytes.nn.Linear4bit(64, 40, quant_type="nf4", compute_dtype=torch.float32)
    layer.to("cpu")
    x = torch.randn(3, 64, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    with torch.no_grad():
        layer.eval()(x.detach()) if {evaluate} else None
print(json.dumps([seen, y.tolist(), x.grad.tolist()]))
"""

    def test_the_entry_point_alone(self):
        seen, y, grad = json.loads(run(self.COUNT.format(evaluate=False)))
        none, stock_y, stock_grad = json.loads(run(self.COUNT.format(evaluate=False),
                                                   QK_BITSANDBYTES="off"))
        self.assertEqual(none, [])
        self.assertEqual(seen, ["quantize", "quantize", "multiply", "dequantize", "dequantize"])
        np.testing.assert_allclose(y, stock_y, atol=1e-5)
        np.testing.assert_allclose(grad, stock_grad, atol=1e-5)

    def test_modules_in_eval_mode(self):
        seen, _, _ = json.loads(run(self.COUNT.format(evaluate=True),
                                    QK_BITSANDBYTES_AVX512_BF16="qk"))
        self.assertEqual(seen.count("multiply"), 2)

    def test_compiled(self):
        run("""
import torch, bitsandbytes, qk.bitsandbytes
assert qk.bitsandbytes._libraries
torch.manual_seed(0)
layer = bitsandbytes.nn.Linear4bit(64, 64, quant_type="nf4", compute_dtype=torch.float32).to("cpu")
x = torch.randn(3, 64, requires_grad=True)
expected = layer(x)
expected.sum().backward()
grad, x.grad = x.grad, None
got = torch.compile(layer, fullgraph=True, backend="aot_eager")(x)
got.sum().backward()
assert torch.equal(got, expected) and torch.equal(x.grad, grad)
""")


if __name__ == "__main__":
    from qk import bitsandbytes as _backend
    _backend.load()
    unittest.main()
