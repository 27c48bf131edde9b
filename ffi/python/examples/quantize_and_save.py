"""Quantizes a weight matrix to NF4 with nested scales, saves it as bitsandbytes would, reads it.

    python3 quantize_and_save.py [FILE.safetensors]
"""
import os
import sys
import tempfile

try:
    import numpy as np

    import qk
except ImportError as error:
    sys.exit(f"{error}: pip install ./ffi/python, in a clone of qk")


def main(path):
    random = np.random.default_rng(1)
    weights = (random.uniform(-1, 1, (96, 256)) * random.uniform(-1, 1, (96, 256))).astype("f")
    quantized = qk.quantize(weights, "nf4", group_size=64, nested=True)
    print(f"{quantized}: {weights.nbytes} bytes as f32, {quantized.nbytes} quantized "
          f"({8 * quantized.nbytes / weights.size:.2f} bits a weight)")

    qk.save(path, {"my.layer": quantized}, dense_format="f32", config=True)
    with qk.load(path) as checkpoint:
        again = checkpoint["my.layer"].dequantize()
    assert np.array_equal(again, quantized.dequantize()), "the file holds something else"
    worst = np.abs(again - weights).max()
    print(f"{os.path.getsize(path)} bytes in the file, worst error {worst:.4f}")
    assert worst <= 0.16  # half of the widest gaps: .152 NF4, .007 scales


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(f"usage: {sys.argv[0]} [FILE.safetensors]")
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(os.path.join(folder, "model.safetensors"))
