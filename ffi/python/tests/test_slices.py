"""Slices along n and k: their values are the whole weight's there, in every layout and scale kind.

The weights' planes are random bytes, so that a byte from the wrong place is a wrong value.
"""
import itertools

from common import GOLDEN, np, qk, unittest

RANDOM = np.random.default_rng(11)
LAYOUTS = ("row", "row_high", "awq_gemm", "awq_gemv", "gptq", "gptq_v1", "word")


def random_plane(tensor, name, size):
    """Bytes; floats that are neither NaN nor so large that products overflow."""
    kind = {"scale": tensor.scale_format, "table": "f32", "scale2": "f32", "min2": "f32",
            "scale_code": "f32", "scale_bias": "f32", "global": "f32"}.get(name)
    if name == "zero" and tensor.desc.flags & qk._abi.CONSTANTS["QK_TENSOR_FLOAT_MIN"]:
        kind = tensor.scale_format
    if kind in ("f32", "f16"):
        dtype = np.float32 if kind == "f32" else np.float16
        return RANDOM.uniform(0.5, 2, size // dtype().itemsize).astype(dtype)
    if kind == "bf16":
        return RANDOM.integers(0x3f00, 0x4000, size // 2).astype(np.uint16)
    if kind in ("e8m0", "e4m3"):
        return RANDOM.integers(40, 120, size).astype(np.uint8)
    if name == "order":
        return RANDOM.permutation(size // 4).astype(np.int32)
    return RANDOM.integers(0, 256, size).astype(np.uint8)


def make(shape, format, **options):
    tensor = qk.Tensor.empty(shape, format, **options)
    for name, number in qk._abi.PLANES.items():
        size = qk._planes.plane_bytes(tensor.desc, number)
        if size:
            tensor.set_plane(name, random_plane(tensor, name, size))
    return tensor


class Slices(unittest.TestCase):
    def check(self, tensor, cuts):
        whole = tensor.dequantize() if not tensor.is_dense else tensor.numpy()
        for dim, begin, end in cuts:
            part = tensor.slice(dim, begin, end)
            expected = whole[begin:end] if dim == 0 else whole[:, begin:end]
            made = part.dequantize() if not part.is_dense else part.numpy()
            self.assertEqual(part.layout, tensor.layout)
            np.testing.assert_array_equal(made, expected, f"{tensor} {dim} {begin} {end}")

    def cuts(self, n, k, step=16):
        rows = [(0, n), (0, 1), (3, 8), (8, min(n, 16)), (n - 3, n), (n // 2, n)]
        columns = [(0, k), (0, step), (step, 3 * step), (2 * step, k), (step, 2 * step + 5)]
        return [(0, *ends) for ends in rows] + [(1, *ends) for ends in columns]

    def test_four_bits_in_every_layout(self):
        for layout, (n, k), group, symmetric in itertools.product(
                LAYOUTS, ((24, 96), (19, 117)), (16, 32, -1), (False, True)):
            tensor = make((n, k), "u4_affine", scale="f16", layout=layout, group_size=group,
                          grouping="along_k", symmetric=symmetric)
            self.check(tensor, self.cuts(n, k))

    def test_nested_scales(self):
        for layout, scale, (n, k) in itertools.product(
                ("row", "word", "gptq"), ("lut8", "i8"), ((24, 96), (40, 1040))):
            tensor = make((n, k), "nf4", scale=scale, layout=layout, group_size=16,
                          scale_group_size=64)
            self.check(tensor, self.cuts(n, k))

    def test_nested_scales_stay_so_where_they_can(self):
        tensor = make((64, 256), "nf4", scale="lut8", layout="row_high", group_size=64)
        self.assertEqual([(part.scale_format, part.desc.scale_group_size) for part in (
            tensor.slice(0, 0, 64), tensor.slice(0, 16, 32), tensor.slice(0, 60, 64),
            tensor.slice(1, 64, 256))],
            [("lut8", 256), ("lut8", 256), ("lut8", 256), ("lut8", 256)])
        tensor = make((640, 256), "nf4", scale="lut8", layout="row_high", group_size=64)
        self.assertEqual([(part.scale_format, part.desc.scale_group_size) for part in (
            tensor.slice(0, 64, 640), tensor.slice(0, 32, 640), tensor.slice(0, 3, 640))],
            [("lut8", 256), ("lut8", 128), ("f32", 0)])

    def test_flat_groups_that_straddle_rows(self):
        for layout, scale, (n, k), symmetric in itertools.product(
                ("row", "row_high"), ("f32", "lut8"), ((24, 96), (9, 112)), (False, True)):
            tensor = make((n, k), "u4_affine", scale=scale, layout=layout, group_size=64,
                          grouping="flat", symmetric=symmetric,
                          scale_group_size=16 if scale == "lut8" else 0)
            self.check(tensor, self.cuts(n, k))
        self.check(make((8, 40), "nf4", scale="f32", layout="row_high", group_size=64),
                   [(0, 0, 5)])
        self.check(make((9, 128), "nf4", scale="f32", layout="row_high", group_size=64),
                   [(1, 0, 32), (1, 64, 96), (0, 3, 4)])
        tensor = make((8, 40), "nf4", scale="f32", layout="row_high", group_size=64)
        with self.assertRaisesRegex(qk.CallError, "within a group of 64 codes, which straddle"):
            tensor.slice(0, 1, 8)

    def test_eight_bits_bytes_and_dense(self):
        for format, options in (
                ("s8", {"scale": "f32", "group_size": -1}),
                ("lut8", {"scale": "f32", "group_size": 32}),
                ("e4m3", {"scale": "e8m0", "group_size": 32}),
                ("lut4", {"scale": "f16", "group_size": 32}),
                ("fp4_e2m1", {"scale": "e4m3", "group_size": 16, "global_scale": "rows",
                              "global_divides": True}),
                ("s8", {"scale": "bf16", "group_size": 16, "float_min": True}), ("f32", {})):
            self.check(make((24, 96), format, **options), self.cuts(24, 96, 32))

    def test_orders_of_columns(self):
        tensor = make((24, 96), "u4_affine", scale="f16", layout="gptq", group_size=16,
                      ordered=True)
        self.check(tensor, [(0, 0, 24), (0, 5, 11)])
        with self.assertRaisesRegex(qk.CallError, "act-order"):
            tensor.slice(1, 16, 32)

    def test_records(self):
        dense = RANDOM.normal(size=(12, 512)).astype(np.float32)
        for layout, format, codes in (("gguf_q8_0", "s8", 32), ("gguf_q4_0", "u4_affine", 32)):
            tensor = qk.quantize(dense, format, group_size=32, scale="f16", layout="row")
            tensor = tensor.repack(layout)
            self.check(tensor, [(0, 3, 7), (1, codes, 4 * codes), (1, 0, 512)])
            with self.assertRaisesRegex(qk.CallError, f"have {codes} codes"):
                tensor.slice(1, 16, 32)

    def test_layers_of_files(self):
        count = 0
        for folder in sorted(path for path in GOLDEN.iterdir() if path.is_dir()):
            try:
                file = qk.load(folder)
            except qk.Error:
                continue
            for info in file.layers:
                if info.status or len(info.shape) != 2:
                    continue
                layer, (n, k) = file[info.name], info.shape
                whole, count = layer.weight.to("f32").numpy(), count + 1
                straddles = layer.weight.group_size > 0 and k % layer.weight.group_size
                cuts = [(0, 0 if straddles else n // 4, n // 2 + 1)]
                if not layer.weight.desc.flags & qk._abi.CONSTANTS["QK_TENSOR_ORDERED"]:
                    cuts += [(1, 0, k // 2 // 32 * 32), (1, k // 2 // 32 * 32, k)] \
                        if k >= 64 and not straddles else []
                for dim, begin, end in cuts:
                    part = file.slice(info.name, dim, begin, end)
                    np.testing.assert_array_equal(
                        part.weight.to("f32").numpy(),
                        whole[begin:end] if dim == 0 else whole[:, begin:end], info.name)
        self.assertGreater(count, 50)

    def test_biases(self):
        bias = RANDOM.normal(size=24).astype(np.float32)
        layer = qk.Layer(make((24, 96), "nf4", scale="f32", group_size=32), bias)
        x = RANDOM.normal(size=(3, 96)).astype(np.float32)
        for given in (layer, qk.Layer(layer.weight, qk.asarray(bias))):
            rows = [given.slice(0, *ends)(x) for ends in ((0, 7), (7, 24))]
            np.testing.assert_array_equal(np.concatenate(rows, axis=1), layer(x))
            sums = [given.slice(1, *ends)(x[:, slice(*ends)]) for ends in ((0, 64), (64, 96))]
            np.testing.assert_allclose(sums[0] + sums[1], layer(x), rtol=1e-4, atol=1e-3)

    def test_codes_are_read_where_the_file_has_them(self):
        file = qk.load(GOLDEN / "bnb_nf4", in_place=True)
        name = next(iter(info.name for info in file.layers if info.dialect == "bitsandbytes"))
        stored = file.tensor(f"{name}.weight")
        self.assertTrue(np.shares_memory(stored, qk._planes.host_plane(file[name].weight, "data")))

    def test_bad_ends(self):
        tensor = make((24, 96), "nf4", scale="f32", group_size=32)
        for arguments, message in (((2, 0, 1), "dim: is 2"), ((0, 3, 3), "are 3 and 3"),
                                   ((0, 0, 25), "within 0..24"), ((1, 8, 16), "multiples of 16")):
            with self.assertRaisesRegex(qk.CallError, message):
                tensor.slice(*arguments)
        with self.assertRaisesRegex(qk.CallError, "is packed"):
            tensor.repack().slice(0, 0, 1)


if __name__ == "__main__":
    unittest.main()
