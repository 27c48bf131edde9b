"""qk gru: weights and data in, a .qkg file and hidden states out."""
import json
import math
import random
import re
import shutil
import struct
import subprocess
import unittest

from harness import Case, floats, safetensors

C, H, STEPS = 3, 4, 60
PRESETS = ["w8a8", "w8h16", "w8a16", "w16a16"]


def numbers(count, spread, seed):
    """Multiples of 1/128: exact in f32, f16 and bf16 as long as they are below 2."""
    source = random.Random(seed)
    return [source.randint(-int(spread * 128), int(spread * 128)) / 128 for _ in range(count)]


def halves(values):
    return struct.pack(f"<{len(values)}e", *values)


def brains(values):
    return b"".join(struct.pack("<f", v)[2:] for v in values)


def npy(shape, content, descr="<f4", order="False", version=1):
    text = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"
    length = struct.pack("<H" if version == 1 else "<I", len(text) + 1)
    return b"\x93NUMPY" + bytes([version, 0]) + length + text.encode() + b"\n" + content


def read_npy(path):
    """Shape and values, from the bytes that NumPy's format page describes."""
    content = path.read_bytes()
    assert content[:8] == b"\x93NUMPY\x01\x00", content[:8]
    size, = struct.unpack("<H", content[8:10])
    assert (10 + size) % 64 == 0 and content[9 + size:10 + size] == b"\n"
    header = eval(content[10:10 + size], {"__builtins__": {}})
    assert not header["fortran_order"]
    kind = {"<f4": "f", "|i1": "b", "<i2": "h"}[header["descr"]]
    count = math.prod(header["shape"])
    return header["shape"], list(struct.unpack(f"<{count}{kind}", content[10 + size:]))


def gru(weights, x, batch=1):
    """PyTorch's equations in double: x flat [t,b,c] to h flat [t,b,h]."""
    def rows(matrix, bias, vector):
        n = len(vector)
        return [bias[j] + sum(matrix[j * n + i] * vector[i] for i in range(n))
                for j in range(3 * H)]

    w, r, bw, br = weights
    states, out = [[0.0] * H for _ in range(batch)], []
    for at in range(0, len(x), C):
        h = states[at // C % batch]
        ih, hh = rows(w, bw, x[at:at + C]), rows(r, br, h)
        reset = [1 / (1 + math.exp(-ih[j] - hh[j])) for j in range(H)]
        update = [1 / (1 + math.exp(-ih[H + j] - hh[H + j])) for j in range(H)]
        new = [math.tanh(ih[2 * H + j] + reset[j] * hh[2 * H + j]) for j in range(H)]
        h[:] = [(1 - u) * n + u * v for u, n, v in zip(update, new, h)]
        out += h
    return out


def sqnr(truth, found):
    return 10 * math.log10(sum(t * t for t in truth) /
                           sum((t - f) ** 2 for t, f in zip(truth, found)))


class GruCase(Case):
    def setUp(self):
        super().setUp()
        self.weights = [numbers(3 * H * C, 1, 1), numbers(3 * H * H, 1, 2),
                        numbers(3 * H, 0.5, 3), numbers(3 * H, 0.5, 4)]
        self.x = numbers(STEPS * C, 1, 5)
        self.model = self.write("gru.safetensors", self.checkpoint())
        self.data = self.write("x.f32", floats(self.x))
        self.out = self.folder / "gru.qkg"

    def tensors(self, name="", cell="l0", dtype="F32", encode=floats):
        w, r, bw, br = self.weights
        return {f"{name}weight_ih_{cell}": (dtype, [3 * H, C], encode(w)),
                f"{name}weight_hh_{cell}": (dtype, [3 * H, H], encode(r)),
                f"{name}bias_ih_{cell}": (dtype, [3 * H], encode(bw)),
                f"{name}bias_hh_{cell}": (dtype, [3 * H], encode(br))}

    def checkpoint(self, **how):
        return safetensors(self.tensors(**how))

    def quantize(self, *more, model=None):
        return self.run_json("gru", "quantize", model or self.model, self.out, "--force",
                             "--calibrate", self.data, *more)


class GruQuantize(GruCase):
    def test_ranges_go_out_and_in(self):
        """Two runs' ranges, joined without their data, freeze to what both data give at once."""
        other = self.write("other.f32", floats(numbers(STEPS * C, 2, 9)))
        self.quantize("--calibrate", other)
        both = self.out.read_bytes()
        seen = [self.folder / "a.json", self.folder / "b.json"]
        for path, data in zip(seen, (self.data, other)):
            self.run_qk("gru", "quantize", self.model, self.folder / "one.qkg", "--force",
                        "--calibrate", data, "--ranges-out", path)
        ranges = json.loads(seen[0].read_text())
        self.assertEqual(ranges["samples"], STEPS)
        self.assertEqual(ranges["tensors"]["x"], [min(self.x), max(self.x)])
        self.assertEqual((len(ranges["x_sum"]), len(ranges["h_sum"])), (C, H))
        report = self.run_json("gru", "quantize", self.model, self.out, "--force",
                               "--ranges-in", seen[0], "--ranges-in", seen[1])
        self.assertEqual(self.out.read_bytes(), both)
        self.assertNotIn("calibration", report)
        self.quantize("--ranges-in", seen[1])
        self.assertEqual(self.out.read_bytes(), both)

        def refused(code, *more):
            return self.fails(code, "gru", "quantize", self.model, self.folder / "no.qkg", *more)

        self.assertIn("gru quantize needs --calibrate or --ranges-in", refused(2))
        self.assertIn("least squared error", refused(4, "--ranges", "mse", "--ranges-in", seen[0]))
        for text in ("", "[]", "{", json.dumps({**ranges, "x_sum": [1]}),
                     json.dumps({**ranges, "samples": "1"}),
                     json.dumps({**ranges, "tensors": {}})):
            bad = self.write("bad.json", text.encode())
            self.assertIn("bad.json", refused(3, "--ranges-in", bad))
        # Both outputs or neither: the second is there already.
        before = seen[0].read_bytes()
        refused(1, "--calibrate", self.data, "--ranges-out", seen[0])
        self.assertEqual(seen[0].read_bytes(), before)

    def test_report_is_the_measured_error(self):
        truth = gru(self.weights, self.x)
        for preset in PRESETS:
            report = self.quantize("--preset", preset)
            self.assertEqual((report["input_size"], report["hidden_size"]), (C, H))
            self.assertEqual(report["bytes"], self.out.stat().st_size)
            self.assertEqual(report["calibration"]["steps"], STEPS)
            self.assertNotIn("test", report)
            self.run_qk("gru", "run", self.out, self.data, self.folder / "h.npy", "--force")
            found = read_npy(self.folder / "h.npy")[1]
            # The float GRU behind the report rounds to f32: an error of 1e-6 beside quantization
            # errors of 1e-4 and more moves the ratio by at most 0.1 dB.
            self.assertAlmostEqual(report["calibration"]["sqnr_db"], sqnr(truth, found), delta=0.1)
            worst = max(abs(t - f) for t, f in zip(truth, found))
            self.assertAlmostEqual(report["calibration"]["worst_error"], worst, delta=2e-6)

    def test_test_data_and_npy(self):
        other = numbers(2 * 30 * C, 1, 6)
        test = self.write("t.npy", npy((30, 2, C), floats(other)))
        report = self.quantize("--test", test, "--preset", "w16a16")
        self.run_qk("gru", "run", self.out, test, self.folder / "h.npy")
        shape, found = read_npy(self.folder / "h.npy")
        self.assertEqual(shape, (30, 2, H))
        self.assertAlmostEqual(report["test"]["sqnr_db"],
                               sqnr(gru(self.weights, other, 2), found), delta=0.1)

    def test_where_weights_come_from(self):
        self.quantize()
        expected = self.out.read_bytes()
        for dtype, encode in (("F16", halves), ("BF16", brains)):
            narrow = self.write("n.safetensors", self.checkpoint(dtype=dtype, encode=encode))
            self.quantize(model=narrow)
            self.assertEqual(self.out.read_bytes(), expected, dtype)
        both = dict(self.tensors("enc.gru."), **self.tensors("dec.", cell="l1_reverse"))
        several = self.write("s.safetensors", safetensors(both))
        for more in ([], ["--name", "enc.gru"], ["--name", "dec", "--cell", "l1_reverse"]):
            self.quantize(*more, model=several)
            self.assertEqual(self.out.read_bytes(), expected, more)

    def test_without_biases(self):
        self.weights[2:] = [[0.0] * 3 * H] * 2
        zeros = self.write("z.safetensors", self.checkpoint())
        self.quantize("--preset", "w8a8", model=zeros)
        expected = self.out.read_bytes()
        bare = {n: t for n, t in self.tensors().items() if "bias" not in n}
        self.quantize("--preset", "w8a8", model=self.write("b.safetensors", safetensors(bare)))
        self.assertEqual(self.out.read_bytes(), expected)

    def test_options_reach_the_library(self):
        self.quantize("--preset", "w8a16")
        plain = self.out.read_bytes()
        double = self.write("double.f32", floats([2 * v for v in self.x]))
        for more in (["--ranges", "moving"], ["--ranges", "mse"], ["--uniform-tables"],
                     ["--bias-correction"], ["--headroom"], ["--calibrate", double]):
            self.quantize("--preset", "w8a16", *more)
            self.assertNotEqual(self.out.read_bytes(), plain, more)

    def test_refusals_leave_nothing(self):
        def fails(code, model, data, *more):
            return self.fails(code, "gru", "quantize", model, self.out, "--calibrate", data, *more)

        wrong = self.tensors()
        wrong["weight_ih_l0"] = ("F32", [4 * H, C], bytes(16 * H * C))  # an LSTM's
        lstm = self.write("lstm.safetensors", safetensors(wrong))
        wrong["weight_ih_l0"] = ("I32", [3 * H, C], bytes(12 * H * C))
        whole = self.write("whole.safetensors", safetensors(wrong))
        self.weights[0] = [math.nan] + self.weights[0][1:]
        nan = self.write("nan.safetensors", self.checkpoint())
        two = self.write("two.safetensors",
                         safetensors({**self.tensors("a."), **self.tensors("b.")}))
        fails(4, lstm, self.data)
        fails(4, whole, self.data)
        for bias in ("bias_ih_l0", "bias_hh_l0"):
            rest = {n: t for n, t in self.tensors().items() if n != bias}
            self.assertIn(f"no tensor '{bias}' in the file; PyTorch's GRUs have both",
                          fails(4, self.write("half.safetensors", safetensors(rest)), self.data))
        fails(1, nan, self.data)
        self.assertIn("--name", fails(2, two, self.data))
        fails(2, self.model, self.data, "--cell", "l1")
        fails(2, self.model, self.data, "--name", "nope")
        fails(2, self.model, self.model)
        fails(3, self.model, self.folder / "none.npy")
        fails(3, self.folder / "none.safetensors", self.data)
        fails(1, self.model, self.write("inf.f32", floats([math.inf] * C)))
        fails(3, self.model, self.write("odd.f32", bytes(4 * C + 1)))
        self.out.write_bytes(b"mine")
        fails(1, self.model, self.data)
        self.assertEqual(self.out.read_bytes(), b"mine")
        self.out.unlink()
        self.out.mkdir()
        fails(3, self.model, self.data, "--force")


    def test_widths_and_granularity(self):
        """What is asked for is what the file has; the rest is the preset's."""
        usual = {"x": 8, "h": 16, "w": 8, "r": 8, "bw": 16, "br": 16}
        for asked, changed, granularity in (([], {}, "tensor"), (["w=4", "x=12"], {"w": 4, "x": 12},
                                                                 "gate"),
                                            (["r=16", "bw=32", "new_in=9"],
                                             {"r": 16, "bw": 32, "new_in": 9}, "channel")):
            more = [word for text in asked for word in ("--bits", text)]
            report = self.quantize(*more, "--granularity", granularity)
            found = {t["name"]: t for t in self.run_json("gru", "info", self.out)["tensors"]}
            for name, bits in {**usual, **changed}.items():
                self.assertEqual(found[name]["bits"], bits, name)
            if granularity == "tensor":
                for name in ("w", "r", "bw", "br"):
                    self.assertEqual(found[name]["shift_min"], found[name]["shift_max"])
            self.assertGreater(report["calibration"]["sqnr_db"], 8)
        self.out.unlink()
        for bits in ("w=3", "w=17", "bw=33", "w", "=8", "w=", "w=8x", "weights=8", "h=-8"):
            self.fails(2, "gru", "quantize", self.model, self.out, "--calibrate", self.data,
                       "--bits", bits)
        self.run_qk("gru", "quantize", self.model, self.out, "--calibrate", self.data,
                    "--granularity", "row", code=2)


class GruInfo(GruCase):
    def test_presets(self):
        for preset, bits in zip(PRESETS, ([8, 8, 8], [8, 16, 8], [16, 16, 8], [16, 16, 16])):
            self.quantize("--preset", preset)
            info = self.run_json("gru", "info", self.out)
            tensors = {t["name"]: t for t in info["tensors"]}
            self.assertEqual([tensors[n]["bits"] for n in ("x", "h", "w")], bits, preset)
            self.assertEqual((info["input_size"], info["hidden_size"]), (C, H))
            self.assertEqual(info["h_view_shift"], 8 if preset == "w8h16" else 0)
            self.assertEqual(info["tables"], "uniform" if preset == "w8h16" else "knots")
            text = self.run_qk("gru", "info", self.out).stdout
            self.assertIn(f"GRU of {C} inputs and {H} units", text)

    def test_damage(self):
        self.quantize()
        content = self.out.read_bytes()
        for at in range(0, len(content), 97):
            broken = bytearray(content)
            broken[at] ^= 16
            self.fails(3, "gru", "info", self.write("broken.qkg", bytes(broken)))
        for length in (0, 31, len(content) - 1):
            self.fails(3, "gru", "info", self.write("short.qkg", content[:length]))
        self.fails(3, "gru", "info", self.model)
        self.fails(3, "gru", "info", self.folder / "none.qkg")
        self.fails(3, "gru", "info", self.folder)


class GruExport(GruCase):
    def test_array_is_the_file(self):
        self.quantize("--preset", "w8h16")
        for out, storage in (("a-model.c", "const"), ("model.h", "static const")):
            report = self.run_json("gru", "export", "--c", self.out, self.folder / out)
            name = out.split(".")[0].replace("-", "_")
            content = self.out.read_bytes()
            self.assertEqual([report[key] for key in ("name", "bytes", "alignment", "input_size",
                                                      "hidden_size", "x_bytes", "h_bytes")],
                             [name, len(content), 8, C, H, 1, 2])
            text = (self.folder / out).read_text()
            head, body = text.split(f"{storage} uint8_t {name}[{len(content)}] = {{")
            self.assertEqual(bytes(map(int, re.findall(r"\d+", body))), content)
            self.assertIn(f"{C} inputs and {H} units", head)
        text = self.run_qk("gru", "export", self.out, "--c", "--name", "m").stdout
        self.assertIn(f"const uint8_t m[{len(content)}] = {{", text)

    def test_every_file_name_compiles(self):
        self.quantize()
        compilers = [[path, "-std=" + std, "-x", language]
                     for name, language, std in (("cc", "c", "c99"), ("cc", "c", "gnu17"),
                                                 ("c++", "c++", "c++11"), ("c++", "c++", "gnu++20"))
                     if (path := shutil.which(name))]
        if not compilers:
            self.skipTest("no compiler to try the sources with")
        names = ["export", "typeof", "asm", "and", "co_await", "NULL", "size_t", "INT8_MAX",
                 "linux", "_Bool", "__x", "int", "main", "9", "a b", "\u00e9", "", "n" * 200,
                 "m.hpp"]
        source = ""
        for name in names:
            out = self.folder / (name if "." in name else name + ".c")
            self.run_qk("gru", "export", "--c", self.out, out)
            source += f'#include "{out}"\n'
        for compiler in compilers:
            subprocess.run([*compiler, "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable",
                            "-fsyntax-only", "-"], input=source, text=True, check=True)

    def test_refusals(self):
        self.quantize()
        out = self.folder / "m.c"
        for name in ("1a", "a-b", "int", "a b", "\u00e9", "export", "_Bool", "uint8_t", "NULL"):
            self.fails(2, "gru", "export", "--c", self.out, out, "--name", name)
        self.run_qk("gru", "export", self.out, out, code=2)
        self.fails(2, "gru", "export", "--c", self.out, "--json")
        for damaged in (self.model, self.folder / "none.qkg", self.folder):
            self.fails(3, "gru", "export", "--c", damaged, out)
        self.assertFalse(out.exists())
        out.write_text("mine")
        self.fails(1, "gru", "export", "--c", self.out, out)
        self.assertEqual(out.read_text(), "mine")
        self.run_qk("gru", "export", "--c", self.out, out, "--force")


class GruUsage(GruCase):
    def test_help_and_usage(self):
        for command in ("export", "info", "quantize", "run"):
            self.assertIn("Example", self.run_qk("gru", command, "--help").stdout)
            self.assertEqual(self.run_qk("gru", command, code=2).stdout, "")
        self.run_qk("gru", code=2)
        self.run_qk("gru", "quantize", self.model, self.out, code=2)


if __name__ == "__main__":
    unittest.main()
