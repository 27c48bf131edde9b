"""The qk command as a user runs it: results, exit codes, and what is left on disk."""
import itertools
import json
import math
import os
import pty
import select
import signal
import struct
import subprocess
import unittest

from harness import COMMAND, GOLDEN, LOADABLE, REFUSED, Case, floats, pack, read, safetensors

Q = "model.layers.0.self_attn.q_proj"


class Usage(Case):
    def test_info(self):
        info = self.run_json("info")
        self.assertRegex(info["version"], r"^\d+\.\d+\.\d+$")
        self.assertEqual(info["cpu_devices"], 1)
        self.assertIn(info["version"], self.run_qk("info").stdout)
        self.assertIn(info["build"], self.run_qk("--version").stdout)

    def test_help(self):
        self.assertIn("Exit codes", self.run_qk("--help").stdout)
        for command in ("inspect", "verify", "dequantize", "quantize", "multiply"):
            self.assertIn("Example", self.run_qk(command, "--help").stdout)

    def test_wrong_command_lines(self):
        for arguments in ([], ["nonsense"], ["inspect"], ["inspect", "a", "b"], ["info", "--nope"],
                          ["verify", "a", "--threads", "-1"], ["dequantize", "a"],
                          ["dequantize", "a", "b", "--dtype", "f8"],
                          ["quantize", "a", "b", "--format", "int3"],
                          ["multiply", "a", "--rows", "0"]):
            done = self.run_qk(*arguments, code=2)
            self.assertEqual(done.stdout, "", arguments)
            self.assertNotEqual(done.stderr, "", arguments)

    def test_full_disk_behind_stdout(self):
        with open("/dev/full", "w") as full:
            done = self.run_qk("inspect", GOLDEN / LOADABLE[0], code=3, stdout=full)
        self.assertEqual(done.stderr, "qk: cannot write to standard output\n")


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
            for layer in layers:
                self.assertIn(layer, table)

    def test_refused_layers_have_a_reason(self):
        self.assertGreater(len(REFUSED), 2)
        for name in REFUSED:
            layer, = self.run_json("inspect", GOLDEN / name)["layers"]
            self.assertFalse(layer["loadable"])
            self.assertIn(layer["reason"], self.run_qk("inspect", GOLDEN / name).stdout)

    def test_control_characters_stay_in_the_file(self):
        name = "a\x1b[31m\x07\u009b2J.weight"
        path = self.write("a.safetensors", safetensors({name: ("F32", [1, 1], floats([1]))}))
        for options in ([], ["--tensors"]):
            shown = self.run_qk("inspect", path, *options).stdout
            self.assertIn("a?[31m??2J", shown)
            self.assertFalse(any(ord(c) < 32 and c != "\n" or 127 <= ord(c) < 160 for c in shown))
        self.assertEqual(self.run_json("inspect", path)["layers"][0]["name"] + ".weight", name)


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

    def test_another_table_is_refused(self):
        tensors = read(GOLDEN / "bnb_nf4")
        dtype, shape, content = tensors[f"{Q}.weight.quant_map"]
        tensors[f"{Q}.weight.quant_map"] = (dtype, shape, content[:-4] + floats([2]))
        path = self.write("a.safetensors", safetensors(tensors))
        finding, = self.run_json("verify", path, code=4)["findings"]
        self.assertEqual((finding["kind"], finding["name"]), ("refused", Q))


class Dequantize(Case):
    def test_golden_bits(self):
        for name in LOADABLE:
            out = self.folder / name
            self.run_qk("dequantize", GOLDEN / name, out)
            self.assertEqual(sorted(os.listdir(out)), ["config.json", "model.safetensors"])
            self.assertNotIn("quantization_config", json.loads((out / "config.json").read_text()))
            written = read(out)
            truth = read(GOLDEN / name / "truth.safetensors")
            for weight, expected in truth.items():
                self.assertEqual(written[weight], expected, f"{name} {weight}")
            for other in set(written) - set(truth):
                self.assertEqual(written[other], read(GOLDEN / name)[other])
            found = self.run_json("inspect", out)
            self.assertEqual((found["quantized_layers"], found["refused_layers"]), (0, 0))

    def test_one_layer_as_f32(self):
        out = self.folder / "one.safetensors"
        done = self.run_json("dequantize", GOLDEN / "bnb_nf4", out, "--layer", "*.q_proj",
                             "--dtype", "f32")
        self.assertEqual((done["decoded_layers"], done["copied_tensors"]), (1, 1))
        written = read(out)
        self.assertEqual(sorted(written), [f"{Q}.bias", f"{Q}.weight"])
        self.assertEqual(written[f"{Q}.weight"][:2], ("F32", [96, 128]))
        self.assertEqual(os.listdir(self.folder), ["one.safetensors"])

    def test_refusals_leave_nothing(self):
        golden = GOLDEN / "bnb_nf4"
        self.fails(2, "dequantize", golden, self.folder / "out", "--layer", "nope*")
        self.fails(1, "dequantize", GOLDEN / "dense", self.folder / "out")
        for name in REFUSED:
            self.fails(4, "dequantize", GOLDEN / name, self.folder / "out")
        self.fails(3, "dequantize", golden, self.folder / "no" / "such.safetensors")
        self.fails(3, "dequantize", golden, self.folder / "no" / "such")
        self.fails(3, "dequantize", golden, "/dev/null")
        # A layer whose damage shows only when it is read, in a new directory.
        tensors = read(golden)
        tensors[f"{Q}.weight"] = ("U8", [6144, 1], tensors[f"{Q}.weight"][2])
        tensors["clash.weight"] = ("F32", [1, 1], floats([1]))
        tensors["clash.qweight"] = ("I32", [8, 1], bytes(32))
        path = self.write("clash.safetensors", safetensors(tensors))
        self.fails(4, "dequantize", path, self.folder / "out")

    def test_existing_files(self):
        for existing in ("model.safetensors", "config.json"):
            out = self.folder / existing.split(".")[0]
            out.mkdir()
            (out / existing).write_text("mine")
            self.fails(1, "dequantize", GOLDEN / "bnb_nf4", out)
            self.assertEqual((out / existing).read_text(), "mine")
            self.run_qk("dequantize", GOLDEN / "bnb_nf4", out, "--force", "-q")
            self.assertEqual(sorted(os.listdir(out)), ["config.json", "model.safetensors"])
            self.assertEqual(len(read(out)), 8)


class Quantize(Case):
    def layers(self, golden):
        """Block size and nesting of the golden file's layers."""
        for name, (_, _, content) in read(GOLDEN / golden).items():
            if ".quant_state." in name:
                state = json.loads(content)
                yield name.split(".weight.")[0], state["blocksize"], "nested_blocksize" in state

    def test_bitsandbytes_bytes(self):
        for golden in ("bnb_nf4", "bnb_fp4", "bnb_nf4_nested", "bnb_fp4_nested"):
            expected = read(GOLDEN / golden)
            for layer, block, nested in self.layers(golden):
                out = self.folder / f"{golden}.{layer}.safetensors"
                self.run_qk("quantize", GOLDEN / "dense", out, "--include", layer, "--block",
                            block, "--format", golden[4:7], *(["--nested"] if nested else []))
                written = read(out)
                for name in (n for n in expected if n.startswith(layer + ".")):
                    if ".quant_state." in name:
                        self.assertEqual(json.loads(written[name][2]),
                                         json.loads(expected[name][2]), name)
                    else:
                        self.assertEqual(written[name], expected[name], name)

    def test_directory_round_trip(self):
        dense = read(GOLDEN / "dense")
        for number, options in enumerate((["--format", "nf4"], ["--format", "fp4", "--nested"],
                                          ["--format", "int4", "--group", "16"],
                                          ["--format", "int4", "--group", "row", "--asymmetric"],
                                          ["--format", "int4", "--scales", "f32", "-q"])):
            out, back = self.folder / f"out{number}", self.folder / f"back{number}"
            done = self.run_qk("quantize", GOLDEN / "dense", out, *options)
            self.assertEqual(sorted(os.listdir(out)), ["config.json", "model.safetensors"])
            if "-q" in options:
                self.assertEqual((done.stdout, done.stderr), ("", ""))
            found = self.run_json("inspect", out)
            self.assertGreater(found["quantized_layers"], 0)
            self.assertEqual(found["refused_layers"], 0)
            self.assertTrue(self.run_json("verify", out)["sound"])
            self.run_qk("dequantize", out, back)
            again = read(back)
            self.assertEqual({n: s for n, (_, s, _) in again.items()},
                             {n: s for n, (_, s, _) in dense.items()})
            for layer in found["layers"]:
                self.run_qk("multiply", out, layer["name"], "--repeat", 1)

    def test_configuration(self):
        out = self.folder / "out"
        self.run_qk("quantize", GOLDEN / "dense", out, "--exclude", "*mlp*", "--nested")
        config = json.loads((out / "config.json").read_text())
        self.assertEqual(config["model_type"], "llama")
        config = config["quantization_config"]
        self.assertEqual((config["quant_method"], config["load_in_4bit"]), ("bitsandbytes", True))
        self.assertEqual((config["bnb_4bit_quant_type"], config["bnb_4bit_use_double_quant"]),
                         ("nf4", True))
        out = self.folder / "words"
        done = self.run_qk("quantize", GOLDEN / "dense", out, "--format", "int4", "--group", "32")
        self.assertIn("stays dense", done.stderr)  # rows that are no multiple of 32
        config = json.loads((out / "config.json").read_text())["quantization_config"]
        self.assertEqual((config["quant_method"], config["format"]),
                         ("compressed-tensors", "pack-quantized"))
        group, = config["config_groups"].values()
        self.assertEqual(group["weights"]["group_size"], 32)
        kept = {layer["name"] for layer in self.run_json("inspect", out)["layers"]
                if layer["dialect"] == "dense"}
        self.assertTrue(kept)
        self.assertLessEqual(kept, set(config["ignore"]))

    def test_what_is_left_dense(self):
        weight = ("F32", [2, 16], floats([i / 8 for i in range(32)]))
        tensors = {f"{n}.weight": weight for n in ("model.embed_tokens", "lm_head", "a", "b")}
        tensors["norm.weight"] = ("F32", [3], floats([1, 2, 3]))
        tensors["conv.weight"] = ("F32", [1, 1, 2], floats([1, 2]))
        path = self.write("in.safetensors", safetensors(tensors, {"format": "np", "by": "me"}))
        done = self.run_json("quantize", path, self.folder / "out.safetensors")
        self.assertEqual((done["quantized_layers"], done["copied_tensors"]), (2, 4))
        self.assertEqual(done["dense_layers"], ["lm_head", "model.embed_tokens"])
        written = read(self.folder / "out.safetensors")
        for name in set(tensors) - {"a.weight", "b.weight"}:
            self.assertEqual(written[name], tensors[name])
        self.assertEqual(written["a.weight"][:2], ("U8", [16, 1]))

    def test_refusals_leave_nothing(self):
        dense, out = GOLDEN / "dense", self.folder / "out"
        for options in (["--format", "int4", "--nested"], ["--asymmetric"], ["--scales", "f16"],
                        ["--format", "int4", "--dialect", "bitsandbytes"],
                        ["--dialect", "compressed-tensors"], ["--group", "48"],
                        ["--group", "row"], ["--group", "8192"], ["--group", "64x"],
                        ["--format", "int4", "--group", "8"], ["--include", "nope"]):
            self.fails(2, "quantize", dense, out, *options)
        self.fails(1, "quantize", dense, out, "--exclude", "*")
        self.fails(4, "quantize", GOLDEN / "bnb_nf4", out)
        weight = floats([1.0] * 31 + [math.nan])
        path = self.write("nan.safetensors", safetensors({"a.weight": ("F32", [2, 16], weight)}))
        self.assertIn("a.weight", self.fails(1, "quantize", path, out))
        self.fails(1, "quantize", path, self.folder / "out.safetensors")


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

    def test_failures(self):
        golden = GOLDEN / "bnb_nf4"
        self.fails(2, "multiply", golden, "nope")
        self.fails(2, "multiply", golden, "--device", "tpu")
        self.fails(2, "multiply", golden, "--device", "cuda:x")
        self.fails(4, "multiply", GOLDEN / "dense")
        for name in REFUSED:
            self.fails(4, "multiply", GOLDEN / name)
            self.fails(4, "multiply", GOLDEN / name, Q)


class Terminal(Case):
    """A bar on a terminal, and Ctrl-C in the middle of long work."""

    def start(self, *options):
        size = 1 << 20  # holes in the file: a gigabyte that takes no disk
        header = {f"layer{i}.weight": {"dtype": "F32", "shape": [256, 1024],
                                       "data_offsets": [i * size, (i + 1) * size]}
                  for i in range(1024)}
        path = self.write("in.safetensors", pack(header))
        os.truncate(path, path.stat().st_size + 1024 * size)
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        process = subprocess.Popen([*COMMAND, "quantize", str(path), str(self.folder / "out"),
                                    *options], stdout=subprocess.DEVNULL, stderr=slave)
        self.addCleanup(process.kill)
        os.close(slave)
        return process, master

    def interrupt(self, process):
        self.assertTrue((self.folder / "out").exists())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), -signal.SIGINT)
        self.assertEqual(os.listdir(self.folder), ["in.safetensors"])

    def test_bar_and_interrupt(self):
        process, master = self.start()
        self.assertTrue(select.select([master], [], [], 60)[0], "no bar within a minute")
        self.assertRegex(os.read(master, 100).decode(), r"^\r\[[#.]{30}\] +\d+% layer\d+")
        self.interrupt(process)

    def test_no_bar_when_quiet(self):
        for option in ("--quiet", "--json"):
            process, master = self.start(option)
            self.assertEqual(select.select([master], [], [], 1)[0], [])
            self.interrupt(process)


if __name__ == "__main__":
    unittest.main()
