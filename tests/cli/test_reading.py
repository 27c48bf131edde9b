"""qk inspect, verify and multiply: results, exit codes, damaged files."""
import itertools
import json
import math
import os
import shutil
import struct
import subprocess
import unittest

from harness import (COMMAND, GOLDEN, LOADABLE, REFUSED, Case, floats, pack, read, safetensors,
                     too_large_for_f16)

Q = "model.layers.0.self_attn.q_proj"


class Inspect(Case):
    def test_golden(self):
        self.assertGreater(len(LOADABLE), 15)
        for name in LOADABLE:
            found = self.run_json("inspect", "--tensors", GOLDEN / name)
            tensors = read(GOLDEN / name)
            self.assertEqual({t["name"]: (t["dtype"], t["shape"], t["bytes"])
                              for t in found["tensors"]},
                             {n: (d, s, len(b)) for n, (d, s, b) in tensors.items()})
            truth = read(GOLDEN / name / "truth.safetensors")
            layers = {layer["name"]: layer for layer in found["layers"]}
            for weight, (_, shape, _) in truth.items():
                layer = layers[weight.removesuffix(".weight")]
                self.assertTrue(layer["loadable"], layer)
                self.assertEqual(layer["shape"], shape)
            table = self.run_qk("inspect", GOLDEN / name).stdout
            for layer in layers:  # experts in one line, under the name that they share
                self.assertIn(layer.split(".experts.")[0], table)

    def test_refused_layers_have_a_reason(self):
        self.assertGreaterEqual(len(REFUSED), 2)
        for name in REFUSED:
            layer, = self.run_json("inspect", GOLDEN / name)["layers"]
            self.assertFalse(layer["loadable"])
            self.assertIn(layer["reason"], self.run_qk("inspect", GOLDEN / name).stdout)

    def test_control_characters_stay_in_the_file(self):
        name = "a\x1b[31m\x07\x7f\u009b2J\u202e\u00e9.weight"
        path = self.write("a.safetensors", safetensors({name: ("F32", [1, 1], floats([1]))}))
        for options in ([], ["--tensors"]):
            shown = self.run_qk("inspect", path, *options).stdout
            self.assertIn("a?[31m???2J?\u00e9", shown)
            self.assertFalse(any(ord(c) < 32 and c != "\n" or 127 <= ord(c) < 160 for c in shown))
        self.assertEqual(self.run_json("inspect", path)["layers"][0]["name"] + ".weight", name)


    def test_a_path_that_is_no_utf8(self):
        path = os.fsencode(self.folder) + b"/a\x7f\xff\xc2\x9b\xe2\x80.safetensors"
        done = subprocess.run([*map(os.fsencode, COMMAND), b"inspect", path], capture_output=True)
        self.assertEqual((done.returncode, done.stdout), (3, b""))
        said = done.stderr.decode()  # which must be UTF-8
        self.assertIn("a?", said)
        self.assertFalse(any(ord(c) < 32 and c != "\n" or 127 <= ord(c) < 160 for c in said))

    def test_natural_order(self):
        names = ["a.1", "a.2", "a.10", "a.11", "b", "l.02.x", "l.2.x", "l.10.x", "l.10.y", "l2.1"]
        tensors = {n + ".weight": ("F32", [1, 1], floats([1])) for n in names}
        path = self.write("a.safetensors", safetensors(tensors))
        self.assertEqual([layer["name"] for layer in self.run_json("inspect", path)["layers"]],
                         names)
        tensors = self.run_json("inspect", path, "--tensors")["tensors"]
        self.assertEqual([t["name"] for t in tensors], [n + ".weight" for n in names])
        table = self.run_qk("inspect", path, "--tensors").stdout.splitlines()
        self.assertEqual([line.split()[0] for line in table if " F32 " in line],
                         [n + ".weight" for n in names])
        self.assertEqual([line.split()[0] for line in table if " dense " in line], names)
        done = self.run_json("quantize", path, self.folder / "b.safetensors", "--exclude", "a.*")
        self.assertEqual(done["dense_layers"], names[:4])
        chosen = self.run_json("multiply", self.folder / "b.safetensors", "--repeat", 1)
        self.assertEqual(chosen["layer"], "b")
        bad = {n + ".weight": ("F32", [1, 1], floats([math.nan])) for n in names}
        found = self.run_json("verify", self.write("c.safetensors", safetensors(bad)), code=1)
        self.assertEqual([f["name"] for f in found["findings"]], [n + ".weight" for n in names])

    def test_a_long_name_does_not_widen_the_table(self):
        tensors = {n + ".weight": ("F32", [1, 1], floats([1])) for n in ("a", "b" * 1000)}
        path = self.write("a.safetensors", safetensors(tensors))
        lines = self.run_qk("inspect", path).stdout.splitlines()
        row, = (line for line in lines if line.startswith("a "))
        self.assertLess(len(row), 60)
        self.assertTrue(any("b" * 1000 in line for line in lines))


class Hostile(Case):
    def test_files(self):
        one = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        bad = {
            "empty": b"",
            "short": b"\x01\x02",
            "no_header": struct.pack("<Q", 1 << 60),
            "header_past_the_end": struct.pack("<Q", 100) + b"{}",
            "not_json": pack(b"hello world"),
            "not_an_object": pack(b"[1]"),
            "bad_utf8": pack(b'{"\xff":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"1234"),
            "twice": pack(b'{"a":%s,"a":%s}' % ((json.dumps(one).encode(),) * 2), b"1234"),
            "deep": pack(b'{"a":' * 5000 + b"1" + b"}" * 5000),
            "past_the_data": pack({"a": one}),
            "left_over": pack({"a": one}, b"12345678"),
            "hole": pack({"a": dict(one, data_offsets=[4, 8])}, b"12345678"),
            "wrong_size": pack({"a": dict(one, shape=[2])}, b"1234"),
            "huge": pack({"a": dict(one, shape=[1 << 40, 1 << 40])}, b"1234"),
            "negative": pack({"a": dict(one, shape=[-1])}, b"1234"),
            "fraction": pack({"a": dict(one, shape=[1.5])}, b"1234"),
        }
        for name, content in bad.items():
            path = self.write(name + ".safetensors", content)
            for command in (["inspect", path], ["verify", path], ["multiply", path],
                            ["dequantize", path, self.folder / "out"],
                            ["quantize", path, self.folder / "out.safetensors"]):
                self.fails(3, *command)

    def test_missing(self):
        self.fails(3, "inspect", self.folder / "nothing.safetensors")
        self.fails(3, "verify", self.folder)
        self.fails(3, "quantize", self.folder / "nothing", self.folder / "out")

    def test_damaged_bitsandbytes_layer(self):
        tensors = read(GOLDEN / "bnb_nf4")
        state = f"{Q}.weight.quant_state.bitsandbytes__nf4"
        for text in (b"", b"{", b"{}", b'{"quant_type":"nf4","blocksize":63}', b"[" * 4000):
            tensors[state] = ("U8", [len(text)], text)
            path = self.write("damaged.safetensors", safetensors(tensors))
            self.run_qk("inspect", path)
            self.run_qk("verify", path, code=1)
            self.fails(3, "multiply", path, Q)
            self.fails(3, "dequantize", path, self.folder / "out.safetensors")


class Verify(Case):
    def test_golden(self):
        for name in LOADABLE:
            found = self.run_json("verify", GOLDEN / name)
            self.assertTrue(found["sound"], name)
            truth = read(GOLDEN / name / "truth.safetensors")
            self.assertEqual(found["decoded_layers"], len(truth))
            self.assertEqual(found["decoded"]["values"],
                             sum(math.prod(shape) for _, shape, _ in truth.values()))
            self.assertEqual(found["tensors"], len(read(GOLDEN / name)))

    def test_refused(self):
        for name in REFUSED:
            found = self.run_json("verify", GOLDEN / name, code=4)
            self.assertEqual([f["kind"] for f in found["findings"]], ["refused"])

    def test_codes_missing(self):
        for name, codes in (("gptq_v2_sym_g32", ".qweight"), ("bnb_nf4", ".weight"),
                            ("ct_int4_asym_g32", ".weight_packed")):
            tensors = read(GOLDEN / name)
            marks = (".qzeros", ".weight.quant_map", ".weight_shape")
            mark = next(t for t in tensors if t.endswith(marks))
            del tensors[mark[:-len(next(m for m in marks if mark.endswith(m)))] + codes]
            found = self.run_json("verify", self.write("a.safetensors", safetensors(tensors)),
                                  code=1)
            self.assertEqual([f["name"] for f in found["findings"] if f["kind"] == "fault"],
                             [mark])

    def test_dense_values(self):
        values = [0.0, -0.0, 1.0, math.inf, math.nan, 2.0]
        path = self.write("a.safetensors", safetensors({"a": ("F32", [6], floats(values))}))
        found = self.run_json("verify", path, code=1)
        self.assertEqual(found["dense"], {"values": 6, "zero": 2, "nan": 1, "infinite": 1})
        self.assertEqual([(f["kind"], f["name"]) for f in found["findings"]],
                         [("fault", "a"), ("note", "a")])
        path = self.write("b.safetensors", safetensors({"a": ("F32", [2], floats([1, math.inf]))}))
        self.assertEqual(len(self.run_json("verify", path)["findings"]), 1)
        halves = struct.pack("<4H", 0x7c01, 0x7c00, 0x8000, 0x3c00)
        path = self.write("c.safetensors", safetensors({"a": ("F16", [4], halves)}))
        self.assertEqual(self.run_json("verify", path, code=1)["dense"],
                         {"values": 4, "zero": 1, "nan": 1, "infinite": 1})

    def test_scales(self):
        tensors = read(GOLDEN / "bnb_nf4")
        dtype, shape, content = tensors[f"{Q}.weight.absmax"]
        for value, code in ((math.nan, 1), (math.inf, 1), (0.0, 0)):
            tensors[f"{Q}.weight.absmax"] = (dtype, shape, floats([value]) + content[4:])
            path = self.write("a.safetensors", safetensors(tensors))
            found = self.run_json("verify", path, code=code)
            self.assertEqual([f["name"] for f in found["findings"]], [Q] * code)
            if code == 0:
                self.assertEqual(found["zero_scales"], 1)

    def test_padding_has_no_zero_scales(self):
        # AutoAWQ's gemv pads the scales of each row with zeros: 1 group of 8 places.
        for name in ("awq_gemv_g128", "awq_gemv_g64", "awq_gemv_g32"):
            tensors = read(GOLDEN / name)
            self.assertTrue(any(b"\0\0" * 3 in content for key, (_, _, content) in tensors.items()
                                if key.endswith(".scales")), "no padding to count")
            self.assertEqual(self.run_json("verify", GOLDEN / name)["zero_scales"], 0, name)
            key = next(key for key in tensors if key.endswith(".scales"))
            dtype, shape, content = tensors[key]
            tensors[key] = (dtype, shape, bytes(2) + content[2:])
            (self.folder / name).mkdir()
            self.write(name + "/model.safetensors", safetensors(tensors))
            shutil.copy(GOLDEN / name / "config.json", self.folder / name)
            self.assertEqual(self.run_json("verify", self.folder / name)["zero_scales"], 1, name)

    def test_a_table_of_its_own(self):
        """Every entry doubled is every weight doubled; all commands read it."""
        for name in ("bnb_nf4", "bnb_nf4_nested"):
            tensors = read(GOLDEN / name)
            dtype, shape, content = tensors[f"{Q}.weight.quant_map"]
            doubled = [2 * entry for entry in struct.unpack("<16f", content)]
            tensors[f"{Q}.weight.quant_map"] = (dtype, shape, floats(doubled))
            path = self.write("a.safetensors", safetensors(tensors))
            self.assertIs(self.run_json("verify", path)["sound"], True)
            self.run_json("multiply", path, Q, "--rows", 2, "--repeat", 1)
            values = []
            for number, source in enumerate((GOLDEN / name, path)):
                out = self.folder / f"{name}{number}.safetensors"
                self.run_qk("dequantize", source, out, "--layer", Q, "--dtype", "f32")
                content = read(out)[f"{Q}.weight"][2]
                values.append(struct.unpack(f"<{len(content) // 4}f", content))
            self.assertEqual([2 * value for value in values[0]], list(values[1]))


class Multiply(Case):
    def test_golden(self):
        dtypes = itertools.cycle(("f32", "f16", "bf16"))
        for name in LOADABLE:
            for layer in self.run_json("inspect", GOLDEN / name)["layers"]:
                done = self.run_json("multiply", GOLDEN / name, layer["name"], "--dtype",
                                     next(dtypes), "--rows", 3, "--repeat", 1, "--threads", 2)
                self.assertLessEqual(done["share_of_bound"], 1)
                self.assertEqual((done["shape"], done["runs"]), (layer["shape"], 1))

    def test_checksum(self):
        # One row of ones times scale 1: y is the sum of x, a multiple of 1/64.
        path = self.write("a.safetensors", safetensors({"a.weight": ("F32", [1, 8],
                                                                     floats([1.0] * 8))}))
        done = self.run_json("multiply", path, "a", "--repeat", 2)
        self.assertEqual(done["checksum"] * 64, round(done["checksum"] * 64))
        self.assertEqual((done["worst_error"], done["runs"]), (0, 2))
        self.assertIn("within its bound", self.run_qk("multiply", path, "a").stdout)

    def test_an_error_outside_its_bound_is_reported(self):
        weight = ("F32", [2, 64], floats([1.0] * 64 + too_large_for_f16(64)))
        path = self.write("a.safetensors", safetensors({"a.weight": weight}))
        self.run_qk("multiply", path, "a")
        done = self.run_qk("multiply", path, "a", "--dtype", "f16", code=1)
        self.assertIn("OUTSIDE its bound", done.stdout)
        self.assertEqual(done.stderr, "qk: a: the product is outside its error bound\n")
        done = self.run_qk("multiply", path, "a", "--dtype", "f16", "--json", code=1)
        self.assertIsNone(json.loads(done.stdout)["share_of_bound"])

    def test_weights_that_are_not_finite(self):
        weight = ("F32", [3, 8], floats([1.0] * 8 + [float("nan")] * 8 + [float("inf")] * 8))
        path = self.write("a.safetensors", safetensors({"a.weight": weight}))
        done = self.run_json("multiply", path, "a", "--repeat", 1)
        self.assertEqual((done["not_finite"], done["worst_error"]), (2, 0))
        self.assertIn("\n          2 values of y NaN or infinite, as in double",
                      self.run_qk("multiply", path, "a", "--repeat", 1).stdout)

    def test_modes(self):
        def run(layer, mode, *more):
            done = self.run_json("multiply", *layer, "--mode", mode, "--rows", 3, "--repeat", 1,
                                 *more)
            self.assertLessEqual(done["share_of_bound"], 1)
            self.assertEqual((done["mode"], done["packed"]), (mode, "--packed" in more))
            return done
        layers = [(GOLDEN / "awq_gemm_g128",), (GOLDEN / "gptq_v1_asym_g32",),
                  (GOLDEN / "bnb_nf4", Q), (GOLDEN / "bnb_nf4_nested", Q), (GOLDEN / "bnb_fp4", Q)]
        for layer in layers:
            exact = run(layer, "exact", "--packed")
            for mode in ("bf16", "int8"):
                self.assertLessEqual(run(layer, mode)["worst_error"], 0.1)
            int8 = run(layer, "int8", "--packed")
            self.assertGreater(int8["worst_error"], 100 * exact["worst_error"])
        self.assertIn("q_proj: bitsandbytes nf4 repacked, ",
                      self.run_qk("multiply", *layers[2], "--packed").stdout)
        self.assertIn(" f32 on cpu, int8 mode\n",
                      self.run_qk("multiply", *layers[0], "--mode", "int8").stdout)

    def test_weights_between_two_bf16_numbers(self):
        # 7 times the scale is 1 + 2^-8, which bf16 mode rounds by as much as it rounds anything.
        path = self.write("a.safetensors", safetensors({
            "a.weight_packed": ("I32", [64, 1], b"\xff" * 256),
            "a.weight_scale": ("F32", [64, 1], floats([(1 + 2**-8) / 7] * 64)),
            "a.weight_shape": ("I64", [2], struct.pack("<qq", 64, 1))}))
        for rows in (1, 8, 64):
            done = self.run_json("multiply", path, "a", "--mode", "bf16", "--rows", rows,
                                 "--repeat", 1, "--packed")
            self.assertLessEqual(done["share_of_bound"], 1)

    def test_explain_names_the_kernel_that_runs(self):
        for more in ([], ["--packed"], ["--rows", 5], ["--mode", "int8", "--packed"],
                     ["--isa", "generic"]):
            arguments = ["multiply", GOLDEN / "awq_gemm_g128", "--repeat", 1, "--explain", *more]
            plan = self.run_json(*arguments)["plan"]
            self.assertEqual(list(plan), ["kernel", "batch_first", "batch_last",
                                          "workspace_bytes", "reason"])
            first, last = {"--rows": (3, 2**31 - 1), "--mode": (1, 2**31 - 1)}.get(
                more[0] if more else "", (1, 2))
            self.assertEqual((plan["batch_first"], plan["batch_last"]), (first, last))
            self.assertEqual(plan["workspace_bytes"] > 0,
                             "--mode" in more and "generic" not in plan["kernel"])
            done = self.run_qk(*arguments, environment={"QK_TRACE": "1"})
            self.assertIn(f"kernel    {plan['kernel']}, ", done.stdout)
            self.assertIn(f"faster    {plan['reason'] or 'nothing is'}\n", done.stdout)
            ran = [line for line in done.stderr.splitlines() if "trace: multiply" in line]
            self.assertEqual(len(ran), 1)
            self.assertRegex(ran[0], rf"\Aqk trace: multiply {5 if '--rows' in more else 1} x 96 x "
                             rf"128, {plan['kernel']}, [0-9.]+ us\Z")
        self.assertNotIn("plan", self.run_json("multiply", GOLDEN / "awq_gemm_g128"))
        self.assertEqual(self.run_qk("multiply", GOLDEN / "awq_gemm_g128",
                                     environment={"QK_TRACE": "0"}).stderr, "")

    def test_modes_that_are_not_there(self):
        rows = self.fails(4, "multiply", GOLDEN / "bnb_nf4", "--mode", "int8")
        self.assertIn("down_proj: int8 mode takes no groups that straddle rows here, only --mode "
                      "exact", rows)
        path = self.write("a.safetensors", safetensors({"a.weight": ("F32", [1, 8],
                                                                     floats([1.0] * 8))}))
        dense = self.fails(4, "multiply", path, "a", "--mode", "bf16")
        self.assertIn("a: bf16 mode takes no f32 weights, only --mode exact", dense)
        self.fails(4, "multiply", path, "a", "--packed")
        cuda = self.fails(2, "multiply", path, "a", "--mode", "int8", "--device", "cuda")
        self.assertIn("--mode int8: --device cuda has no modes, accepted is exact", cuda)
        self.run_qk("multiply", path, "a", "--mode", "fp8", code=2)

    def test_failures(self):
        golden = GOLDEN / "bnb_nf4"
        self.fails(2, "multiply", golden, "nope")
        self.fails(2, "multiply", golden, "--device", "tpu")
        self.fails(2, "multiply", golden, "--device", "cuda:x")
        self.fails(4, "multiply", GOLDEN / "dense")
        for name in REFUSED:
            self.fails(4, "multiply", GOLDEN / name)
            self.fails(4, "multiply", GOLDEN / name, Q)


if __name__ == "__main__":
    unittest.main()
