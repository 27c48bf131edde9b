"""Weights over memory that other packages own: Tensor.from_planes, and calls over addresses."""
import array
import weakref

from common import np, qk, torch, unittest
from qk import pointers

OPTIONS = {"scale": "f32", "layout": "row_high", "group_size": 64}


def make_weight():
    numbers = np.random.default_rng(3).standard_normal((8, 192), np.float32)
    return qk.quantize(numbers, "nf4", group_size=64)


class Planes(unittest.TestCase):
    def setUp(self):
        self.w = make_weight()
        self.data, self.scale = self.w.plane("data"), self.w.plane("scale")
        self.values = self.w.dequantize()

    def wrap(self, data=None, scale=None, **more):
        planes = {"data": self.data if data is None else data,
                  "scale": self.scale if scale is None else scale}
        return qk.Tensor.from_planes((8, 192), "nf4", planes, **{**OPTIONS, **more})

    def test_element_types(self):
        for dtype in (np.uint8, np.int8, np.int32, np.uint64, np.float16):
            with self.subTest(dtype=dtype):
                w = self.wrap(self.data.view(dtype))
                np.testing.assert_array_equal(w.dequantize(), self.values)

    def test_nothing_is_copied(self):
        w = self.wrap()
        self.scale[:] = 0
        self.assertFalse(w.dequantize().any())

    def test_memory_lives_as_long_as_the_tensor(self):
        data = self.data.copy()
        gone = weakref.ref(data)
        w = self.wrap(data)
        del data
        np.testing.assert_array_equal(w.dequantize(), self.values)
        w.close()
        self.assertIsNone(gone())

    def test_buffers(self):
        for scale in (array.array("f", self.scale), memoryview(self.scale), bytearray(self.scale)):
            with self.subTest(kind=type(scale)):
                np.testing.assert_array_equal(self.wrap(scale=scale).dequantize(), self.values)

    def test_read_only_memory_is_an_input_only(self):
        w = self.wrap(self.data.tobytes())
        np.testing.assert_array_equal(w.dequantize(), self.values)
        with self.assertRaisesRegex(qk.CallError, "read-only"):
            w.set_plane("scale", self.scale.copy())

    def test_dlpack_of_a_tensor(self):
        dense = qk.asarray(self.scale)
        np.testing.assert_array_equal(self.wrap(scale=dense).dequantize(), self.values)

    def test_torch(self):
        data = torch().from_numpy(self.data)
        for dtype in (torch().uint8, torch().int32, torch().bfloat16):
            with self.subTest(dtype=dtype):
                np.testing.assert_array_equal(self.wrap(data.view(dtype)).dequantize(),
                                              self.values)

    def test_refused(self):
        strided = np.zeros((self.data.size, 2), np.uint8)[:, 0]
        for change, sentence in (
                ({"data": self.data[:-1]}, r"planes\[0\]: has 767 bytes, nf4 needs 768"),
                ({"scale": self.scale[:-1]}, r"planes\[1\]: has 92 bytes, nf4 needs 96"),
                ({"data": strided}, r"planes\['data'\]: is not compact"),
                ({"layout": "awq"}, "layout: is 'awq'"),
                ({"context": qk.Context()}, None)):
            with self.subTest(change=change):
                if sentence is None:
                    self.assertEqual(self.wrap(**change).context, change["context"])
                    continue
                with self.assertRaisesRegex(qk.CallError, sentence):
                    self.wrap(**change)
        with self.assertRaisesRegex(qk.CallError, "planes: is empty"):
            qk.Tensor.from_planes((8, 192), "nf4", {}, **OPTIONS)
        with self.assertRaisesRegex(qk.CallError, "is missing"):
            qk.Tensor.from_planes((8, 192), "nf4", {"data": self.data}, **OPTIONS)
        with self.assertRaisesRegex(qk.CallError, "'codes', accepted are data"):
            qk.Tensor.from_planes((8, 192), "nf4", {"codes": self.data}, **OPTIONS)


class Values(unittest.TestCase):
    def setUp(self):
        self.w = make_weight()
        self.values = self.w.dequantize()

    def test_as_the_caller_wants_them(self):
        layer = qk.Layer(self.w)
        for wanted, got in (
                (self.values.astype("e"), self.w.dequantize("f16")),
                (self.values.astype("e"), layer.dequantize(like=np.zeros(1, "e"))),
                (self.values, qk.dequantize(self.w, "f32", like=np.zeros(1, "e"))),
                (self.values.T, self.w.dequantize(transposed=True)),
                (self.values.T.astype("e"), qk.dequantize(layer, "f16", transposed=True))):
            self.assertEqual(got.dtype, wanted.dtype)
            np.testing.assert_array_equal(got, wanted)
        out = np.zeros((192, 8), "f")
        self.assertIs(self.w.dequantize(out=out, transposed=True), out)
        np.testing.assert_array_equal(out, self.values.T)
        for transposed, values in ((False, self.values), (True, self.values.T)):
            wide = np.full((values.shape[0], 200), 7, "f")
            out = wide[:, 3:3 + values.shape[1]]
            self.assertIs(self.w.dequantize(out=out, transposed=transposed), out)
            np.testing.assert_array_equal(out, values)
            self.assertTrue((wide[:, :3] == 7).all() and (wide[:, 3 + values.shape[1]:] == 7).all())

    def test_torch(self):
        for got in (self.w.dequantize(torch().bfloat16),
                    self.w.dequantize(like=torch().zeros(1, dtype=torch().bfloat16)),
                    self.w.dequantize("bf16", like=torch().zeros(1), transposed=True).T):
            self.assertTrue(torch().equal(
                got, torch().from_numpy(self.values).to(torch().bfloat16)))

    def test_refused(self):
        for call, sentence in (
                (lambda: self.w.dequantize("i8"), "dtype: is 'i8'"),
                (lambda: self.w.dequantize(out=np.zeros((8, 192), "f"), transposed=True),
                 r"out: is \[8, 192\], must be \[192, 8\]"),
                (lambda: qk.asarray(self.values).dequantize(transposed=True), "weight is f32")):
            with self.assertRaisesRegex(qk.CallError, sentence):
                call()


class Pointers(unittest.TestCase):
    def setUp(self):
        self.numbers = np.random.default_rng(4).standard_normal((8, 192), np.float32)
        self.data, self.scale = np.zeros(768, np.uint8), np.zeros(24, np.float32)
        self.w = pointers.weight((8, 192), "nf4", {"data": self.data.ctypes.data,
                                                   "scale": self.scale.ctypes.data}, **OPTIONS)

    def test_every_call(self):
        expected = qk.quantize(self.numbers, "nf4", group_size=64)
        pointers.quantize(pointers.dense(self.numbers.ctypes.data, (8, 192)), self.w)
        np.testing.assert_array_equal(self.data, expected.plane("data"))
        np.testing.assert_array_equal(self.scale, expected.plane("scale"))
        values = np.zeros((8, 192), np.float16)
        pointers.dequantize(self.w, pointers.dense(values.ctypes.data, (8, 192), "f16"))
        np.testing.assert_array_equal(values, expected.dequantize("f16"))
        x, bias = np.float32(self.numbers[:3] * 0.5), np.ones(8, np.float32)
        y = np.zeros((3, 8), np.float32)
        operands = (pointers.dense(x.ctypes.data, (3, 192)), self.w,
                    pointers.dense(bias.ctypes.data, (8,)), pointers.dense(y.ctypes.data, (3, 8)))
        pointers.linear(*operands, rows=3)
        np.testing.assert_array_equal(y, qk.linear(x, expected, bias))
        low, scale = np.zeros(768, np.uint8), np.zeros(24, np.float32)
        row = pointers.weight((8, 192), "nf4", {"data": low.ctypes.data,
                                                "scale": scale.ctypes.data},
                              scale="f32", layout="row", group_size=64, grouping="flat")
        pointers.repack(self.w, row)
        np.testing.assert_array_equal(low, self.data >> 4 | self.data << 4)

    def test_scratch_grows(self):
        k = 60000  # a row of x of more than 192 KiB is gathered into scratch
        x, order = np.arange(k, dtype=np.float32), np.arange(k, dtype=np.int32)[::-1].copy()
        codes, scale, y = np.zeros(k, np.int8), np.ones(1, np.float32), np.zeros(1, np.float32)
        codes[0] = 1  # stored first: the weight's last column
        w = pointers.weight((1, k), "s8", {"data": codes.ctypes.data, "scale": scale.ctypes.data,
                                           "order": order.ctypes.data},
                            scale="f32", group_size=-1, ordered=True)
        operands = (pointers.dense(x.ctypes.data, (1, k)), w, None,
                    pointers.dense(y.ctypes.data, (1, 1)))
        pointers.linear(*operands, context=qk.Context())
        self.assertEqual(y[0], k - 1)
        with self.assertRaises(qk.ResourceError):
            pointers.linear(*operands, context=qk.Context(workspace_bytes=0))

    def test_the_library_says_what_is_wrong(self):
        with self.assertRaisesRegex(qk.CallError, "is missing"):
            pointers.dequantize(self.w, pointers.dense(0, (8, 192)))
        with self.assertRaisesRegex(qk.CallError, r"8|191"):
            pointers.dequantize(self.w, pointers.dense(self.scale.ctypes.data, (8, 191)))


if __name__ == "__main__":
    unittest.main()
