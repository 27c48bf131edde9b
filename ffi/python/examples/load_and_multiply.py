"""Loads a layer of a quantized checkpoint and multiplies by it.

    python3 load_and_multiply.py CHECKPOINT [LAYER]
"""
import sys

try:
    import numpy as np

    import qk
except ImportError as error:
    sys.exit(f"{error}: pip install ./ffi/python, in a clone of qk")


def main(path, name=None):
    with qk.load(path) as checkpoint:
        if name is None:  # the first quantized layer that qk can load
            name = next((layer.name for layer in checkpoint.layers
                         if layer.status == 0 and layer.dialect != "dense"), None)
        if name is None:
            sys.exit("no quantized layer that qk can load")
        info = checkpoint.layer(name)
        layer = checkpoint[name]
    n, k = layer.shape
    print(f"{name}: {info.dialect}, {n} x {k}")
    x = np.ones(k, np.float32)
    y = layer(x)  # x . transpose(weight) + bias
    for i, value in enumerate(y[:4]):
        print(f"y[{i}] = {value:g}")
    exact = layer.dequantize().astype(np.float64).sum(axis=1)
    if layer.bias is not None:
        exact += layer.bias.to("f32").numpy()
    assert np.allclose(y, exact, atol=1e-3), "the product differs from the dequantized weights'"


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(f"usage: {sys.argv[0]} CHECKPOINT [LAYER]")
    try:
        main(*sys.argv[1:])
    except qk.Error as error:
        sys.exit(f"{error.name}: {error}")
