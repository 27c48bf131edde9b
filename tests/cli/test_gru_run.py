"""qk gru run: sequences and states in and out, as reals and as codes."""
import os
import resource
import struct
import subprocess
import unittest

from harness import COMMAND, floats
from test_gru import C, H, PRESETS, STEPS, GruCase, npy, numbers, read_npy


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

    def test_count_clipped(self):
        """What exceeds the calibrated range is counted, and nothing else changes."""
        large = self.write("large.f32", floats([8 * value for value in self.x]))
        states = self.run_gru(large)
        said = self.run_json("gru", "run", self.out, large, self.folder / "c.f32",
                             "--count-clipped")
        self.assertEqual((self.folder / "c.f32").read_bytes(), states)
        x = {t["name"]: t for t in self.run_json("gru", "info", self.out)["tensors"]}["x"]
        half = 2 ** (x["bits"] - 1)
        codes = [round(8 * value * 2 ** x["shift_min"]) + x["zero_point"] for value in self.x]
        cut = sum(not -half <= code < half for code in codes)
        self.assertGreater(cut, 0)
        self.assertEqual(said["clipped"]["x"], {"clipped": cut, "codes": STEPS * C})
        self.assertEqual(said["clipped"]["ih"]["codes"], 3 * STEPS * H)
        self.assertNotIn("w", said["clipped"])
        text = self.run_qk("gru", "run", self.out, large, self.folder / "d.f32",
                           "--count-clipped").stdout
        self.assertIn(f"clipped: x, {cut} of {STEPS * C} codes (", text)
        small = self.write("small.f32", floats([0.0] * C))
        text = self.run_qk("gru", "run", self.out, small, self.folder / "e.f32",
                           "--count-clipped").stdout
        self.assertIn("clipped: no code, all fitted the calibrated ranges", text)
        self.assertNotIn("clipped", self.run_qk("gru", "run", self.out, small,
                                                self.folder / "f.f32").stdout)

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


if __name__ == "__main__":
    unittest.main()
