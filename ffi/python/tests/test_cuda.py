"""Arrays of torch, cupy and jax on a GPU: shared, on the caller's stream, the CPU's numbers.

Skips without a GPU and a library built with QK_CUDA.
"""
import sys

from common import DENOISER, GOLDEN, np, qk, unittest

if not qk.device_count("cuda"):
    print(f"skipped: no GPU, or not in this build: {qk.build_info()}")
    sys.exit(77)
try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

WEIGHTS = [{"format": "nf4", "nested": True}, {"format": "int4", "group_size": 128},
           {"format": "int4", "group_size": 32, "symmetric": False}, {"format": "fp4"}]
# One rounding of the result, and of the table's or group's value to x's type before (docs)
STEP = {torch.float32: 2.0 ** -22, torch.float16: 2.0 ** -10, torch.bfloat16: 2.0 ** -7}


def module_or_skip(name):
    try:
        return __import__(name)
    except ImportError:
        raise unittest.SkipTest(f"{name} is not installed") from None


class Cuda(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(2)

    def check(self, x, y, w):
        """Against the dequantized weights in double: roundings of terms and of the sum."""
        dense = torch.from_numpy(w.to_device("cpu").dequantize()).double()
        x, got = x.double().cpu(), y.double().cpu()
        exact, size = x @ dense.T, x.abs() @ dense.abs().T
        limit = 2 * STEP[y.dtype] * size + 2.0 ** -14 * (y.dtype == torch.float16)
        self.assertTrue(((got - exact).abs() <= limit).all(), f"{w} {y.dtype}")

    def test_products_of_torch_tensors(self):
        for options in WEIGHTS:
            host = qk.quantize(torch.randn(256, 512) / 16, **options)
            plain = host.to_device("cuda")
            packed = plain.repack()
            for dtype in STEP:
                for shape in ((512,), (1, 512), (5, 512), (2, 3, 512)):
                    x = torch.randn(*shape, dtype=dtype, device="cuda")
                    for w in (plain, packed):
                        y = qk.linear(x, w)
                        self.assertEqual((y.device, y.dtype), (x.device, dtype))
                        self.check(x, y, plain)
                        out = torch.empty_like(y)
                        self.assertIs(qk.linear(x, w, out=out), out)
                        self.assertTrue(torch.equal(out, y))

    def test_slices_of_wider_arrays(self):
        host = qk.quantize(torch.randn(256, 512) / 16, format="nf4")
        plain = host.to_device("cuda")
        w = plain.repack()
        wide = torch.randn(5, 700, dtype=torch.float16, device="cuda")
        x, kept = wide[:, 8:520], torch.zeros(5, 300, dtype=torch.float16, device="cuda")
        self.assertTrue(torch.equal(qk.linear(x, w), qk.linear(x.contiguous(), w)))
        self.assertEqual(qk.explain(x, w), qk.explain(x.contiguous(), w))  # no slower kernel
        qk.linear(x, w, out=kept[:, 16:272])
        self.check(x, kept[:, 16:272], plain)
        self.assertFalse(kept[:, :16].any() or kept[:, 272:].any())
        dense = torch.zeros(512, 300, device="cuda")
        w.dequantize(out=dense[:, 4:260], transposed=True)
        self.assertTrue(torch.equal(dense[:, 4:260].cpu(), torch.from_numpy(host.dequantize()).T))
        self.assertFalse(dense[:, :4].any() or dense[:, 260:].any())

    def test_large_batches_get_the_scratch_they_are_faster_with(self):
        w = qk.quantize(torch.randn(256, 512) / 16, format="nf4").to_device("cuda")
        x = torch.randn(64, 512, dtype=torch.float16, device="cuda")
        need = w.workspace_bytes(64)
        self.assertGreater(need, 32 << 20)
        with qk.Context("cuda") as context:
            self.check(x, qk.linear(x, w), w)
            self.assertGreaterEqual(context._scratch, need)
        with qk.Context("cuda", workspace_bytes=0) as context:
            self.check(x, qk.linear(x, w), w)
            self.assertEqual(context._scratch, 0)

    def test_dequantized_bits_are_the_cpu_s(self):
        for folder in ("bnb_nf4_nested", "awq_gemm_g64", "gptq_v2_asym_g128", "ct_int4_asym_g32"):
            there, here = qk.load(GOLDEN / folder, device="cuda"), qk.load(GOLDEN / folder)
            for name in here:
                dense = torch.from_dlpack(there[name].weight.to("f32"))
                self.assertEqual(dense.device.type, "cuda")
                np.testing.assert_array_equal(dense.cpu().numpy(), here[name].dequantize())

    def test_the_caller_s_stream(self):
        w = qk.quantize(torch.randn(512, 512) / 16).to_device("cuda").repack()
        x = torch.randn(1, 512, dtype=torch.float16, device="cuda")
        expected = qk.linear(x, w)
        torch.cuda.synchronize()
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            late = torch.zeros_like(x)
            torch.cuda._sleep(50_000_000)  # a reader that does not wait on this stream sees zeros
            late.copy_(x)
            y = qk.linear(late, w)
            self.assertEqual(qk.current_context("cuda").stream, stream.cuda_stream)
            self.assertFalse(stream.query())  # the call has returned before its work was done
        stream.synchronize()
        self.assertTrue(torch.equal(y, expected))
        qk.linear(x, w)
        self.assertIsNone(qk.current_context("cuda").stream)

    def test_a_captured_graph_replays(self):
        w = qk.quantize(torch.randn(512, 512) / 16).to_device("cuda").repack()
        x = torch.randn(1, 512, dtype=torch.float16, device="cuda")
        y = torch.empty(1, 512, dtype=torch.float16, device="cuda")
        call = qk.prepare(x, w, out=y)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        for _ in range(3):
            x.normal_()
            y.zero_()
            graph.replay()
            torch.cuda.synchronize()
            replayed = y.clone()
            self.assertTrue(torch.equal(replayed, qk.linear(x, w)))

    def test_memory_is_shared(self):
        weight = qk.quantize(torch.randn(64, 128, device="cuda"), nested=True)
        self.assertEqual(weight.context.device, "cuda")
        dense = weight.to("f16")
        first = torch.from_dlpack(dense)
        second = torch.as_tensor(dense, device="cuda")  # __cuda_array_interface__
        self.assertEqual(first.data_ptr(), second.data_ptr())
        first.fill_(3)
        torch.cuda.synchronize()
        self.assertTrue((dense.numpy() == 3).all())
        with self.assertRaisesRegex(qk.CallError, "lives on"):
            qk.linear(np.ones(128, "f"), weight)

    def test_cupy(self):
        cupy = module_or_skip("cupy")
        w = qk.quantize(torch.randn(96, 256) / 16).to_device("cuda").repack()
        with cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.random.standard_normal((3, 256)).astype(cupy.float16)
            y = qk.linear(x, w)
            self.assertIsInstance(y, cupy.ndarray)
            self.assertEqual(qk.current_context("cuda").stream, stream.ptr)
            stream.synchronize()
        same = qk.linear(torch.from_dlpack(x), w)
        np.testing.assert_array_equal(y.get(), same.cpu().numpy())
        shared = cupy.asarray(w.to("f32"))
        self.assertEqual(shared.shape, (96, 256))

    def test_jax(self):
        jax = module_or_skip("jax")
        if jax.default_backend() != "gpu":
            raise unittest.SkipTest(f"jax runs on {jax.default_backend()}")
        w = qk.quantize(torch.randn(96, 256) / 16).to_device("cuda").repack()
        x = jax.random.normal(jax.random.key(1), (3, 256), dtype=jax.numpy.float16)
        y = qk.linear(x, w)
        self.assertIsInstance(y, jax.Array)
        same = qk.linear(torch.from_dlpack(x), w)
        np.testing.assert_array_equal(np.asarray(y), same.cpu().numpy())

    def test_gru(self):
        weights = qk.load(DENOISER / "denoiser.safetensors")
        gru = qk.GRU(*(weights.tensor(f"gru.{name}_l0") for name in
                       ("weight_ih", "weight_hh", "bias_ih", "bias_hh")))
        x = np.fromfile(DENOISER / "test.f32", "f").reshape(512, 16)
        image = gru.calibrate(x).freeze().tobytes()
        try:
            there = qk.GRU.load(image, context=qk.current_context("cuda"))
            y = there(torch.from_numpy(x).cuda())
        except qk.UnsupportedError as error:
            raise unittest.SkipTest(f"this build: {error}") from None
        np.testing.assert_array_equal(y.cpu().numpy(), gru(x))


if __name__ == "__main__":
    unittest.main()
