"""The golden checkpoints of the C tests, through Python: the same bits as the packages' own."""
from common import GOLDEN, np, os, qk, unittest

import tempfile

FOLDERS = sorted(path.name for path in GOLDEN.iterdir()
                 if (path / "truth.safetensors").exists() and "refused" not in path.name
                 and not path.name.endswith("_nan") and path.name != "bnb_8bit_blockwise")
LAYOUTS = ("row", "row_high", "awq_gemm", "awq_gemv", "gptq", "gptq_v1", "word", "packed")


def truths(folder):
    """{layer: (stored bits [n,k], "f16")} of a folder."""
    file = qk.load(GOLDEN / folder / "truth.safetensors", read=True)
    return {info.name: (file.tensor(info.name + ".weight"), info.dense_format)
            for info in file.layers}


def bits_of(weight, dtype):
    return weight.to(dtype).plane("data")


class Golden(unittest.TestCase):
    def test_the_data_is_there(self):
        self.assertGreaterEqual(len(FOLDERS), 18)

    def test_loads_the_packages_bits_in_every_layout(self):
        layers = repacked = 0
        for folder in FOLDERS:
            checkpoint = qk.load(GOLDEN / folder, in_place=True)
            for name, (truth, dtype) in truths(folder).items():
                with self.subTest(folder=folder, layer=name):
                    weight = checkpoint[name].weight
                    self.assertEqual(bits_of(weight, dtype).tobytes(), truth.tobytes())
                    layers += 1
                    of_8_bits = weight.format in ("s8", "e4m3")
                    for layout in ("row", "packed") if of_8_bits else LAYOUTS:
                        try:
                            other = weight.repack(layout)
                        except qk.CallError as error:  # groups that straddle rows
                            self.assertEqual(weight.layout, "row_high", error)
                            continue
                        repacked += 1
                        self.assertEqual(bits_of(other, dtype).tobytes(), truth.tobytes(), layout)
        self.assertGreaterEqual(layers, 50)
        self.assertGreaterEqual(repacked, 2 * layers)

    def test_multiplies_by_experts(self):
        stored = qk.load(GOLDEN / "gguf" / "model.gguf")["blk.0.ffn_gate_exps"].weight
        self.assertEqual(stored.shape, (2, 3, 256))
        x = np.ones((2, 256), np.float32)
        for w in (stored, stored.repack("row")):
            one_by_one = np.stack([w.dequantize().reshape(6, 256).sum(1)] * 2)
            y = qk.linear(x, w)
            np.testing.assert_allclose(y, one_by_one, rtol=1e-4)
            np.testing.assert_array_equal(qk.linear(x[0], w), qk.prepare(x[:1], w).y[0])
            np.testing.assert_array_equal(qk.linear(x, w, np.zeros(6, np.float32)), y)

    def test_quantizes_to_bitsandbytes_bytes(self):
        inputs = qk.load(GOLDEN / "bnb_quantize_oracle" / "inputs.safetensors")
        expected = qk.load(GOLDEN / "bnb_quantize_oracle" / "expected.safetensors")
        np.testing.assert_array_equal(qk.dynamic_table(), expected.tensor("dynamic_map"))
        cases = 0
        for name in expected.tensors:
            key, _, kind = name.partition(".")
            if not name.endswith((".packed", ".data", ".nested.offset")):
                continue
            format, block = kind.split(".")[:2]
            stem, nested = f"{key}.{format}.{block}", "nested" in kind
            stored = inputs.tensor(key)
            x = qk.Tensor.empty(stored.shape, "bf16" if stored.dtype == np.uint16 else
                                {"f4": "f32", "f2": "f16"}[stored.dtype.str[1:]])
            x.set_plane("data", stored)
            q = qk.quantize(x, "lut8" if format == "8bit" else format, nested=nested,
                            group_size=int(block[2:]))
            planes = {"data": ".data" if format == "8bit" else ".packed", "scale": ".absmax"}
            if nested:
                planes = {"scale_bias": ".nested.offset", "scale2": ".nested.nested_absmax",
                          "scale": ".nested.absmax"}
            for plane, suffix in planes.items():
                self.assertEqual(q.plane(plane).tobytes(), expected.tensor(stem + suffix).tobytes(),
                                 stem + suffix)
            cases += 1
        self.assertGreaterEqual(cases, 100)

    def test_quantizes_to_the_packages_bytes(self):
        inputs = qk.load(GOLDEN / "quantizer_oracle" / "inputs.safetensors")
        expected = qk.load(GOLDEN / "quantizer_oracle" / "expected.safetensors")
        self.assertEqual(len(inputs.tensors), 18)
        for name in inputs.tensors:
            x = qk.Tensor.empty(inputs.tensor(name).shape, name.rpartition("_")[2])
            x.set_plane("data", inputs.tensor(name))
            for format in ("mxfp4", "mxfp8", "nvfp4"):
                q = qk.quantize(x, format)
                for plane in ("data", "scale") + (("global",) if format == "nvfp4" else ()):
                    self.assertEqual(q.plane(plane).tobytes(),
                                     expected.tensor(f"{name}.{format}.{plane}").tobytes(),
                                     f"{name} {format} {plane}")

    def test_saves_what_the_package_saved(self):
        for folder in ("bnb_nf4_nested", "ct_int4_asym_g32", "dense"):
            checkpoint = qk.load(GOLDEN / folder)
            with tempfile.TemporaryDirectory() as target, self.subTest(folder=folder):
                path = os.path.join(target, "model.safetensors")
                qk.save(path, dict(checkpoint), metadata={"made": "by a test"}, config=True)
                with qk.load(target) as again:
                    self.assertEqual(again.metadata, {"made": "by a test"})
                    self.assertEqual(again.layers, [layer._replace(nbytes=other.nbytes) for
                                                    layer, other in zip(checkpoint.layers,
                                                                        again.layers)])
                    for name in checkpoint:
                        self.assertEqual(again.verify(name), "")
                        old, new = checkpoint[name], again[name]
                        np.testing.assert_array_equal(old.dequantize(), new.dequantize())
                        if old.bias is not None:
                            self.assertEqual(old.bias.plane("data").tobytes(),
                                             new.bias.plane("data").tobytes())


if __name__ == "__main__":
    unittest.main()
