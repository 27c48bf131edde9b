"""What tests with round numbers miss: none and one of a thing, values that decoding alone
makes infinite, tensors of several pieces, names that are no UTF-8."""
import json
import os
import struct
import unittest

from harness import Case, posix, read, safetensors

BF16_LARGE = struct.pack("<H", 0x7F7F)  # 3.4e38: times 15 it is infinite


def compressed(n, k, scale):
    """A symmetric compressed-tensors layer x of one group a row, and its config.json."""
    tensors = {"x.weight_packed": ("I32", [n, k // 8], b"\xff" * (n * k // 2)),
               "x.weight_scale": ("BF16", [n, 1], scale * n),
               "x.weight_shape": ("I64", [2], struct.pack("<2q", n, k))}
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "channel"}
    config = {"quantization_config": {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}}
    return tensors, json.dumps(config).encode()


class Edges(Case):
    def model(self, tensors, config=None):
        (self.folder / "m").mkdir()
        self.write("m/model.safetensors", safetensors(tensors))
        if config:
            self.write("m/config.json", config)
        return self.folder / "m"

    def test_values_that_decoding_makes_infinite(self):
        found = self.run_json("verify", self.model(*compressed(8, 64, BF16_LARGE)), code=1)
        self.assertEqual(found["decoded"]["infinite"], 8 * 64)
        self.assertEqual([f["kind"] for f in found["findings"]], ["fault"])
        self.assertIn("infinite", found["findings"][0]["text"])

    def test_none_and_one(self):
        said = self.run_qk("verify", self.model({"x.weight": ("F32", [1, 1], b"\0" * 4)})).stdout
        self.assertIn("1 tensor read, 0 of 0 quantized layers decoded: 0 weights", said)

    @posix
    def test_names_that_are_no_utf8(self):
        folder = self.folder / os.fsdecode(b"caf\xe9")
        folder.mkdir()
        self.write(folder / "model.safetensors",
                   safetensors({"x.weight": ("F32", [1, 1], b"\0" * 4)}))
        found = self.run_json("inspect", folder)
        self.assertTrue(found["file"].endswith("caf?"), found["file"])

    def test_a_copy_of_several_pieces(self):
        pieces = b"".join(bytes([i % 251]) * (1 << 16) for i in range(0, 520))  # 34 MB
        tensors, config = compressed(8, 64, struct.pack("<H", 0x3F80))
        tensors["table"] = ("U8", [len(pieces)], pieces)
        self.run_qk("dequantize", self.model(tensors, config), self.folder / "out")
        self.assertTrue(read(self.folder / "out")["table"][2] == pieces)


if __name__ == "__main__":
    unittest.main()
