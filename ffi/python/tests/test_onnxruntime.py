"""ONNX Runtime's MatMulNBits: its 4-bit bytes are qk's layout "row", as they are.

Before a release; needs the packages onnx and onnxruntime. Values are compared exactly, by
multiplying with the identity; products within the rounding of f32 sums.
"""
import itertools
import sys

from common import np, qk, unittest

try:
    import onnx
    import onnxruntime
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

RANDOM = np.random.default_rng(7)


def session(n, k, block, planes):
    """A model of one MatMulNBits; planes: B, scales and perhaps zero_points."""
    made = onnx.helper
    names = ["B", "scales", "zero_points"][:len(planes)]
    node = made.make_node("MatMulNBits", ["A", *names], ["Y"], domain="com.microsoft",
                          K=k, N=n, bits=4, block_size=block, accuracy_level=1)
    floats = onnx.TensorProto.FLOAT
    graph = made.make_graph(
        [node], "one", [made.make_tensor_value_info("A", floats, ["m", k])],
        [made.make_tensor_value_info("Y", floats, ["m", n])],
        [onnx.numpy_helper.from_array(plane, name) for plane, name in zip(planes, names)])
    model = made.make_model(graph, ir_version=8, opset_imports=[
        made.make_opsetid("", 17), made.make_opsetid("com.microsoft", 1)])
    return onnxruntime.InferenceSession(model.SerializeToString(),
                                        providers=["CPUExecutionProvider"])


class MatMulNBits(unittest.TestCase):
    def cases(self):
        """n, k, block, B [n, blocks, block / 2], scales [n, blocks], zero_points or None."""
        for (n, k), block, zeros in itertools.product(((16, 128), (7, 96), (5, 160)), (16, 32, 128),
                                                      (False, True)):
            blocks = -(-k // block)
            codes = RANDOM.integers(0, 256, (n, blocks, block // 2)).astype(np.uint8)
            scales = RANDOM.uniform(0.01, 0.1, (n, blocks)).astype(np.float32)
            points = RANDOM.integers(0, 256, (n, -(-blocks // 2))).astype(np.uint8)
            yield n, k, block, codes, scales, points if zeros else None

    def test_bytes_are_row(self):
        for n, k, block, codes, scales, points in self.cases():
            theirs = session(n, k, block, [codes, scales, *([] if points is None else [points])])
            planes = {"data": np.ascontiguousarray(codes.reshape(n, -1)[:, :k // 2]),
                      "scale": scales}
            if points is not None:
                planes["zero"] = points
            weight = qk.Tensor.from_planes((n, k), "u4_affine", planes, scale="f32", layout="row",
                                           group_size=block, symmetric=points is None)
            values, = theirs.run(None, {"A": np.eye(k, dtype=np.float32)})
            np.testing.assert_array_equal(weight.dequantize(), values.T)
            x = RANDOM.normal(size=(3, k)).astype(np.float32)
            y, = theirs.run(None, {"A": x})
            np.testing.assert_allclose(qk.linear(x, weight), y, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    unittest.main()
