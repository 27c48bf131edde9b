"""The error that qk quantize and dequantize --report print, against whole numbers."""
import math
import struct
import unittest
from fractions import Fraction

from harness import GOLDEN, Case, floats, read, safetensors

KEYS = ("mean_absolute_error", "max_absolute_error", "relative_error", "sqnr_db")
DTYPES = {"F32": "f", "F16": "e"}


def values(tensor):
    """The numbers of (dtype, shape, bytes)."""
    dtype, _, data = tensor
    if dtype == "BF16":
        wide = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
        return struct.unpack(f"<{len(wide) // 4}f", wide)
    letter = DTYPES[dtype]
    return struct.unpack(f"<{len(data) // struct.calcsize(letter)}{letter}", data)


class Exact:
    """The same sums in whole numbers: every float is a multiple of 2^-149."""

    def __init__(self):
        self.count = self.error = self.square = self.weight = self.power = self.largest = 0

    def add(self, original, decoded):
        for a, b in zip(original, decoded, strict=True):
            if not (math.isfinite(a) and math.isfinite(b)):
                continue
            a, b = int(math.ldexp(a, 149)), int(math.ldexp(b, 149))
            error = abs(a - b)
            self.count += 1
            self.error += error
            self.square += error**2
            self.weight += abs(a)
            self.power += a**2
            self.largest = max(self.largest, error)
        return self

    def numbers(self):
        sqnr = None  # infinite, of either sign
        if self.square and self.power:
            sqnr = 10 * math.log10(Fraction(self.power, self.square))
        relative = None if self.error else 0
        if self.weight:
            relative = Fraction(self.error, self.weight)
        unit = Fraction(1, 2**149)
        return self.error * unit / self.count, self.largest * unit, relative, sqnr


class Errors(Case):
    def judge(self, found, exact):
        self.assertEqual(found["compared_weights"], exact.count)
        for key, wanted in zip(KEYS, exact.numbers()):
            if wanted is None:
                self.assertIsNone(found[key], key)
            else:
                self.assertAlmostEqual(found[key], float(wanted), key == "sqnr_db" and 9 or None,
                                       key, None if key == "sqnr_db" else 1e-11 * float(wanted))

    def quantized(self, original, *options):
        """The report of quantize, and the files of it and of its weights in f32."""
        packed, dense = self.folder / "packed.safetensors", self.folder / "f32.safetensors"
        report = self.run_json("quantize", original, packed, "--force", *options)
        again = self.run_json("dequantize", packed, dense, "--dtype", "f32", "--force",
                              "--report", original)
        self.assertEqual((report["error"], report["layers"]), (again["error"], again["layers"]))
        return report, packed, read(dense)

    def test_against_fractions(self):
        original = GOLDEN / "dense"
        weights = read(original)
        for options in (["--threads", 1], ["--format", "fp4", "--nested", "--threads", 3],
                        ["--format", "int4", "--group", 16, "--asymmetric"]):
            report, packed, decoded = self.quantized(original, *options)
            whole = Exact()
            self.assertGreater(len(report["layers"]), 3)
            for layer in report["layers"]:
                self.assertEqual(layer["reason"], "")
                pair = [values(file[layer["name"] + ".weight"]) for file in (weights, decoded)]
                self.judge(layer, Exact().add(*pair))
                whole.add(*pair)
            self.judge(report["error"], whole)
            self.assertEqual(report["error"]["compared_layers"], len(report["layers"]))
            # What is written is what is compared: rounded to bf16, the error is another.
            out = self.folder / "bf16.safetensors"
            report = self.run_json("dequantize", packed, out, "--dtype", "bf16", "--report",
                                   original, "--force")
            rounded, exact = read(out), Exact()
            for name in (layer["name"] + ".weight" for layer in report["layers"]):
                exact.add(values(weights[name]), values(rounded[name]))
            self.judge(report["error"], exact)

    def test_extremes(self):
        tiny = [2.0**-149 * i for i in range(-32, 32)]
        huge = [3e38 * (-1)**i for i in range(64)]
        rows = {"exact": [0.5, -0.5] * 32, "huge": huge, "tiny": tiny, "zero": [0.0] * 64}
        original = self.write("in.safetensors", safetensors(
            {f"{name}.weight": ("F32", [4, 16], floats(row)) for name, row in rows.items()}))
        report, _, decoded = self.quantized(original, "--block", 32)
        found = {layer["name"]: layer for layer in report["layers"]}
        for name in rows:
            pair = values(read(original)[f"{name}.weight"]), values(decoded[f"{name}.weight"])
            self.judge(found[name], Exact().add(*pair))
        self.assertEqual([found["zero"][key] for key in KEYS], [0, 0, 0, None])
        text = self.run_qk("quantize", original, self.folder / "o.safetensors", "--block", 32)
        lines = {line.split()[-1]: line for line in text.stdout.splitlines()}
        self.assertIn("  0.000%      exact  zero", lines["zero"])
        self.assertNotIn("exact", lines["tiny"])

    def test_not_finite(self):
        """NaN and infinities of the original are counted; an original of zeros has no signal."""
        nan, inf = math.nan, math.inf
        made = [0.25, -1.0, 0.5, 0.125] * 16
        first = [nan, -inf, inf] + made[3:-1] + [nan]
        rows = {"bad": first, "zero": [0.0] * 64, "none": [nan] * 64}
        sound = {name: made for name in rows}
        quantized = self.folder / "packed.safetensors"
        for dtype, letter in (("F32", "f"), ("F16", "e")):
            source, original = (self.write(f"{file}.safetensors", safetensors(
                {f"{name}.weight": (dtype, [2, 32], struct.pack(f"<64{letter}", *content[name]))
                 for name in rows})) for file, content in (("in", sound), ("was", rows)))
            self.run_qk("quantize", source, quantized, "--force")
            out = self.folder / "f32.safetensors"
            report = self.run_json("dequantize", quantized, out, "--force", "--dtype", "f32",
                                   "--report", original)
            decoded, whole = read(out), Exact()
            found = {layer["name"]: layer for layer in report["layers"]}
            for name in ("bad", "zero"):
                pair = rows[name], values(decoded[f"{name}.weight"])
                self.judge(found[name], Exact().add(*pair))
                whole.add(*pair)
            self.judge(report["error"], whole)
            self.assertEqual(found["bad"]["original"], {"nan": 2, "infinite": 2})
            self.assertEqual(found["bad"]["decoded"], {"nan": 0, "infinite": 0})
            self.assertEqual(report["error"]["original"], {"nan": 66, "infinite": 2})
            self.assertEqual([found["none"][key] for key in KEYS], [None] * 4)
            self.assertEqual(found["none"]["compared_weights"], 0)
            text = self.run_qk("dequantize", quantized, out, "--force", "--report", original).stdout
            self.assertIn("  -inf dB  zero\n", text)
            self.assertIn("  bad (NaN or infinite, left out: 4 original weights)\n", text)
            self.fails(1, "quantize", original, self.folder / "no.safetensors")

    def test_decoded_infinities(self):
        """Weights beyond f16 become infinite there, and are counted."""
        weights = floats([1e6, 1.0] + [0.5] * 62)
        original = self.write("in.safetensors",
                              safetensors({"a.weight": ("F32", [1, 64], weights)}))
        packed = self.folder / "packed.safetensors"
        self.run_qk("quantize", original, packed)
        out = self.folder / "out.safetensors"
        report = self.run_json("dequantize", packed, out, "--dtype", "f16", "--report", original)
        self.assertEqual(report["error"]["decoded"], {"nan": 0, "infinite": 1})
        self.assertEqual(report["error"]["compared_weights"], 63)

    def test_what_the_original_lacks(self):
        tensors = read(GOLDEN / "dense")
        names = sorted({name.rsplit(".", 1)[0] for name in tensors if name.endswith("weight")})
        packed = self.folder / "packed.safetensors"
        self.run_qk("quantize", GOLDEN / "dense", packed)
        shape = tensors[names[1] + ".weight"][1]
        del tensors[names[0] + ".weight"]
        dtype, (n, k), data = tensors[names[1] + ".weight"]
        tensors[names[1] + ".weight"] = (dtype, [k, n], data)
        original = self.write("original.safetensors", safetensors(tensors))
        out = self.folder / "out.safetensors"
        report = self.run_json("dequantize", packed, out, "--report", original)
        self.assertEqual([layer["name"] for layer in report["layers"]], names)
        self.assertEqual([layer["reason"] for layer in report["layers"]],
                         ["the original has no layer of this name",
                          f"is {shape[0]} x {shape[1]}, in the original {shape[1]} x {shape[0]}",
                          *[""] * (len(names) - 2)])
        self.assertNotIn("sqnr_db", report["layers"][0])
        self.assertEqual(report["error"]["compared_layers"], len(names) - 2)
        text = self.run_qk("dequantize", packed, out, "--report", original, "--force").stdout
        self.assertIn(f" not compared  {names[0]}: the original has no layer of this name\n", text)
        self.assertIn(f"  all of {len(names) - 2} layers\n", text)
        self.assertNotIn("SQNR", self.run_qk("dequantize", packed, out, "--force", "--quiet",
                                             "--report", original).stdout)
        out.unlink()
        # Nothing to compare is a mistake, found before anything is written.
        other = safetensors({"x.weight": ("F32", [1, 1], bytes(4))})
        other = self.write("other.safetensors", other)
        said = self.fails(1, "dequantize", packed, out, "--report", other)
        self.assertIn("none of the layers", said)
        self.fails(3, "dequantize", packed, out, "--report", self.folder / "nowhere")

    def test_layers_of_several_blocks(self):
        """Equal weights in a row quantize exactly; rows that are mixed up do not compare equal."""
        rows = [struct.pack("<e", 1 + i % 7) * 2048 for i in range(4100)]
        original = self.write("in.safetensors",
                              safetensors({"a.weight": ("F16", [4100, 2048], b"".join(rows))}))
        report, _, _ = self.quantized(original)
        self.assertEqual([report["error"][key] for key in KEYS], [0, 0, 0, None])
        self.assertEqual(report["error"]["compared_weights"], 4100 * 2048)

    def test_quantized_original(self):
        """An original that is itself quantized is decoded; layers are compared by their values."""
        packed = self.folder / "packed.safetensors"
        self.run_qk("quantize", GOLDEN / "dense", packed)
        out = self.folder / "out.safetensors"
        report = self.run_json("dequantize", packed, out, "--dtype", "f32", "--report", packed)
        for found in [report["error"], *report["layers"]]:
            self.assertEqual([found[key] for key in KEYS], [0, 0, 0, None])


if __name__ == "__main__":
    unittest.main()
