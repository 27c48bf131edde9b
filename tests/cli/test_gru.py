"""qk gru: weights and data in, a .qkg file and hidden states out."""
import math
import os
import random
import resource
import struct
import subprocess
import unittest

from harness import COMMAND, Case, floats, safetensors

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


class GruRun(GruCase):
    def setUp(self):
        super().setUp()
        self.quantize()

    def run_gru(self, data, *more, to="h.f32"):
        self.run_qk("gru", "run", self.out, data, self.folder / to, "--force", *more)
        return (self.folder / to).read_bytes()

    def test_same_values_in_every_container(self):
        states = self.run_gru(self.data)
        self.assertEqual(len(states), STEPS * H * 4)
        for version in (1, 2, 3):
            data = self.write("x.npy", npy((STEPS, C), floats(self.x), version=version))
            self.assertEqual(self.run_gru(data), states)
            self.run_gru(data, to="h.npy")
            shape, found = read_npy(self.folder / "h.npy")
            self.assertEqual((shape, floats(found)), ((STEPS, H), states))
        # Twice the same sequence, side by side.
        pairs = floats([v for t in range(STEPS) for v in 2 * self.x[t * C:(t + 1) * C]])
        both = self.run_gru(self.write("two.f32", pairs), "--batch", 2)
        step = H * 4
        self.assertEqual(both, b"".join(2 * states[t * step:(t + 1) * step]
                                        for t in range(STEPS)))

    def test_pieces(self):
        """A batch of two has pieces of half as many steps, and the same bits."""
        steps, step = 2 ** 18 // (C + H) + 1000, H * 4
        x = floats(numbers(steps * C, 1, 7))
        states = self.run_gru(self.write("long.f32", x))
        pairs = b"".join(2 * x[t:t + C * 4] for t in range(0, len(x), C * 4))
        both = self.run_gru(self.write("pairs.f32", pairs), "--batch", 2)
        self.assertTrue(both == b"".join(2 * states[t:t + step]
                                         for t in range(0, len(states), step)))

    def peak_bytes(self, steps):
        """Of a run over so many steps of zeros."""
        zeros = self.folder / "zeros.f32"
        with open(zeros, "wb") as file:
            file.truncate(steps * C * 4)
        child = subprocess.Popen([*COMMAND, "gru", "run", "-q", "--force", str(self.out),
                                  str(zeros), str(self.folder / "h.f32"), "--threads", "1"],
                                 stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(child.returncode, 0)
        self.assertEqual((self.folder / "h.f32").stat().st_size, steps * H * 4)
        return usage.ru_maxrss * 1024

    def test_memory_is_bounded(self):
        # 40000 steps are more than one piece already; 50 times as many are 24 MB in, 32 MB out.
        self.assertLess(self.peak_bytes(2_000_000), self.peak_bytes(40_000) + 12_000_000)

    def test_report(self):
        report = self.run_json("gru", "run", self.out, self.data, self.folder / "h.npy")
        seconds = report.pop("run_seconds")
        self.assertGreater(seconds, 0)
        self.assertEqual(report, {"file": str(self.out), "input": str(self.data),
                                  "output": str(self.folder / "h.npy"), "steps": STEPS,
                                  "batch": 1, "input_size": C, "hidden_size": H})

    def test_states_carry_over(self):
        """Two halves, the second from the first's last state, are the whole."""
        for preset in PRESETS:
            self.quantize("--preset", preset)
            states = self.run_gru(self.data)
            half = STEPS // 2
            first = self.write("first.f32", floats(self.x[:half * C]))
            second = self.write("second.f32", floats(self.x[half * C:]))
            for name in ("s.f32", "s.npy"):
                state = self.folder / name
                begin = self.run_gru(first, "--final-state", state)
                end = self.run_gru(second, "--initial-state", state)
                self.assertEqual(begin + end, states)
                self.assertNotEqual(self.run_gru(second), end)
                if name == "s.npy":
                    shape, found = read_npy(state)
                    self.assertEqual((shape, floats(found)), ((1, H), begin[-4 * H:]))
                state.unlink()
        both = floats(self.x[:2 * C])
        two = floats([0.5] * H + [-0.25] * H)
        for name, content in (("two.f32", two), ("two.npy", npy((2, H), two))):
            self.run_gru(self.write("x2.f32", both), "--batch", 2, "--initial-state",
                         self.write(name, content))
        for code, name, content in ((1, "three.f32", two + two[:4 * H]),
                                    (3, "odd.f32", two[:-4]), (3, "none.f32", b""),
                                    (4, "codes.i8", bytes(2 * H)), (2, "h.bin", two),
                                    (1, "wide.npy", npy((2, H + 1), two + b"12345678"))):
            self.fails(code, "gru", "run", self.out, self.folder / "x2.f32",
                       self.folder / "y.f32", "--batch", 2, "--initial-state",
                       self.write(name, content))
        self.fails(2, "gru", "run", self.out, self.data, self.folder / "y.f32", "--final-state",
                   self.folder / "s.i8")

    def test_codes(self):
        """Integers in and out are the same run: real = (code - zero) * 2^-shift."""
        for preset, x_kind, h_kind in (("w8a8", "b", "b"), ("w8h16", "b", "h"),
                                       ("w16a16", "h", "h")):
            self.quantize("--preset", preset)
            states = struct.unpack(f"<{STEPS * H}f", self.run_gru(self.data))
            tensors = {t["name"]: t for t in self.run_json("gru", "info", self.out)["tensors"]}
            ends = {"b": ("i8", "|i1", 127), "h": ("i16", "<i2", 32767)}

            def grid(name):
                return tensors[name]["zero_point"], 2.0 ** tensors[name]["shift_min"]

            zero, scale = grid("x")
            name, descr, most = ends[x_kind]
            codes = [max(-most - 1, min(most, round(v * scale) + zero)) for v in self.x]
            raw = struct.pack(f"<{len(codes)}{x_kind}", *codes)
            zero, scale = grid("h")
            wanted = [round(v * scale) + zero for v in states]
            packed = struct.pack(f"<{len(wanted)}{h_kind}", *wanted)
            for data in (self.data, self.write(f"x.{name}", raw),
                         self.write("x.npy", npy((STEPS, C), raw, descr=descr))):
                self.assertEqual(self.run_gru(data, to=f"h.{ends[h_kind][0]}"), packed)
                self.run_gru(data, "--codes", to="h.npy")
                self.assertEqual(read_npy(self.folder / "h.npy"), ((STEPS, H), wanted))
                self.assertEqual(self.run_gru(data), floats(states))
            wrong = "i16" if x_kind == "b" else "i8"
            self.fails(1, "gru", "run", self.out, self.write(f"y.{wrong}", 2 * raw),
                       self.folder / "none.f32")
            wrong = "i16" if h_kind == "b" else "i8"
            self.fails(1, "gru", "run", self.out, self.data, self.folder / f"none.{wrong}")
        self.fails(2, "gru", "run", self.out, self.data, self.folder / "none.f32", "--codes")

    def test_refusals_leave_nothing(self):
        content = floats(self.x)
        for code, name, data in (
                (4, "f8.npy", npy((STEPS, C), content, descr="<f8")),
                (4, "order.npy", npy((STEPS, C), content, order="True")),
                (4, "rank.npy", npy((STEPS * C,), content)),
                (1, "size.npy", npy((STEPS, C + 1), content)),
                (3, "more.npy", npy((STEPS, C), content + b"1")),
                (3, "less.npy", npy((STEPS, C), content[:-1])),
                (3, "huge.npy", npy((10 ** 30, C), content)),
                (3, "large.npy", npy((2 ** 48, C), content)),
                (3, "negative.npy", npy((-1, C), content)),
                (3, "none.npy", npy((0, C), b"")),
                (3, "batch.npy", npy((STEPS, 0, C), b"")),
                (3, "short.npy", b"\x93NUMPY\x01\x00\xff\xff{"),
                (3, "empty.npy", b""),
                (3, "text.npy", b"\x93NUMPY\x01\x00\x02\x00{}"),
                (3, "empty.f32", b"")):
            self.fails(code, "gru", "run", self.out, self.write(name, data),
                       self.folder / "h.npy")
        self.fails(2, "gru", "run", self.out, self.data, self.folder / "h.txt")
        self.fails(2, "gru", "run", self.out, self.write("x.npy", npy((STEPS, C), content)),
                   self.folder / "h.npy", "--batch", 2)
        self.fails(3, "gru", "run", self.out, self.data, self.folder / "no" / "h.npy")
        self.fails(3, "gru", "run", self.model, self.data, self.folder / "h.npy")

    def test_full_disk(self):
        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))

        before = sorted(self.folder.rglob("*"))
        done = subprocess.run([*COMMAND, "gru", "run", str(self.out), str(self.data),
                               str(self.folder / "h.f32")], capture_output=True, text=True,
                              preexec_fn=small_files, restore_signals=False, timeout=120)
        self.assertEqual((done.returncode, done.stdout), (3, ""), done.stderr)
        self.assertRegex(done.stderr, r"\Aqk: [^\n]+\n\Z")
        self.assertEqual(sorted(self.folder.rglob("*")), before)


class GruUsage(GruCase):
    def test_help_and_usage(self):
        for command in ("info", "quantize", "run"):
            self.assertIn("Example", self.run_qk("gru", command, "--help").stdout)
            self.assertEqual(self.run_qk("gru", command, code=2).stdout, "")
        self.run_qk("gru", code=2)
        self.run_qk("gru", "quantize", self.model, self.out, code=2)


if __name__ == "__main__":
    unittest.main()
