"""qk.torch.Embedding: rows of quantized weights. Before a release; needs PyTorch."""
import itertools
import pickle
import sys

from common import qk, unittest

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import qk.torch


class Embeddings(unittest.TestCase):
    FORMATS = [("nf4", {}), ("nf4", {"nested": True}), ("int8", {"group_size": -1}), ("lut8", {}),
               ("int4", {"symmetric": False, "nested": True}), ("mxfp4", {}), ("nvfp4", {})]

    def test_rows_are_dequantized_rows(self):
        for (format, options), dtype in itertools.product(self.FORMATS,
                                                          (torch.float32, torch.bfloat16)):
            dense = torch.nn.Embedding(300, 128).to(dtype)
            layer = qk.torch.Embedding.from_embedding(dense, format, **options)
            values, ids = layer.dequantize(dtype), torch.randint(0, 300, (3, 7))
            other = qk.torch.Embedding(300, 128, format, dtype=dtype, **options)
            other.load_state_dict(layer.state_dict())
            for made in (layer, other, pickle.loads(pickle.dumps(layer))):
                self.assertTrue(torch.equal(made(ids), values[ids]), (format, options, dtype))
            self.assertTrue(torch.equal(layer(ids[0, 0].int()), values[ids[0, 0]]))
            self.assertEqual(layer(ids[:0]).shape, (0, 7, 128))

    def test_from_tensors(self):
        for weight in (qk.quantize(torch.randn(32, 128), "nf4", nested=True),  # row_high
                       qk.quantize(torch.randn(32, 128), "int4", layout="awq_gemv")):
            layer, ids = qk.torch.Embedding.from_tensor(weight), torch.tensor([31, 0, 5, 5])
            self.assertTrue(torch.equal(layer(ids), layer.dequantize()[ids]))
        for weight, message in (
                (qk.quantize(torch.randn(32, 128), "int4", layout="gptq"), "begin at bytes"),
                (qk.quantize(torch.randn(32, 96), "nf4"), "run on over the ends")):
            with self.assertRaisesRegex(qk.CallError, message):
                qk.torch.Embedding.from_tensor(weight)
        with self.assertRaisesRegex(qk.CallError, "max_norm of 1.0"):
            qk.torch.Embedding.from_embedding(torch.nn.Embedding(4, 64, max_norm=1.0))

    def test_compiles(self):
        layer = qk.torch.Embedding.from_embedding(torch.nn.Embedding(300, 128))
        ids = torch.tensor([[4, 299], [0, 4]])
        torch.library.opcheck(torch.ops.qk.rows, (ids, layer.planes, layer.form, torch.float32))
        torch._dynamo.reset()
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        self.assertTrue(torch.equal(compiled(ids), layer(ids)))


if __name__ == "__main__":
    unittest.main()
