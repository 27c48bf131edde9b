"""tvm-ffi's tensors go in and out by DLPack, in functions that it hands to other languages, too.

Before a release; needs the package apache-tvm-ffi.
"""
import gc
import sys

from common import np, qk, unittest

try:
    import tvm_ffi
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

RANDOM = np.random.default_rng(3)
W = qk.quantize(RANDOM.standard_normal((8, 64)).astype(np.float32), "nf4", group_size=32)
X = RANDOM.standard_normal((2, 64)).astype(np.float32)


class TvmFfi(unittest.TestCase):
    def test_tensors_share_memory_and_outlive_ours(self):
        ours = qk.asarray(X.copy())
        theirs = tvm_ffi.from_dlpack(ours)
        self.assertEqual(tuple(theirs.shape), X.shape)
        del ours
        gc.collect()
        np.testing.assert_array_equal(np.from_dlpack(theirs), X)

    def test_a_product_gives_their_tensor(self):
        y = qk.linear(tvm_ffi.from_dlpack(X), W)
        self.assertIsInstance(y, tvm_ffi.Tensor)
        np.testing.assert_array_equal(np.from_dlpack(y), qk.linear(X, W))

    def test_a_function_of_their_registry(self):
        def linear(x, y):
            qk.linear(x, W, out=y)

        tvm_ffi.register_global_func("qk_test.linear", linear)
        try:
            y = np.zeros((2, 8), np.float32)
            tvm_ffi.get_global_func("qk_test.linear")(tvm_ffi.from_dlpack(X),
                                                      tvm_ffi.from_dlpack(y))
            np.testing.assert_array_equal(y, qk.linear(X, W))
        finally:
            tvm_ffi.remove_global_func("qk_test.linear")

    def test_planes_are_taken_where_they_are(self):
        planes = {name: tvm_ffi.from_dlpack(np.ascontiguousarray(W.plane(name)))
                  for name in ("data", "scale")}
        weight = qk.Tensor.from_planes((8, 64), "nf4", planes, scale=W.scale_format,
                                       layout=W.layout, group_size=32)
        np.testing.assert_array_equal(qk.linear(X, weight), qk.linear(X, W))


if __name__ == "__main__":
    unittest.main()
