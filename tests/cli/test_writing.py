"""qk dequantize and quantize: the bytes they write, and what is left when they fail."""
import json
import math
import os
import pty
import resource
import select
import shutil
import signal
import struct
import subprocess
import unittest

from harness import (COMMAND, GOLDEN, LOADABLE, REFUSED, Case, floats, in_place, pack, posix, read,
                     safetensors)

Q = "model.layers.0.self_attn.q_proj"


def as_written(weight, truth, source):
    """The name, type, shape and bytes that a layer is written with: experts of gpt-oss [e,k,n]."""
    dtype, shape, content = truth
    layer = weight.removesuffix(".weight")
    if f"{layer}_blocks" not in source:
        return weight, truth
    (experts, n), k = source[f"{layer}_blocks"][1][:2], shape[1]
    values = [content[i:i + 2] for i in range(0, len(content), 2)]
    turned = b"".join(values[(expert * n + row) * k + column] for expert in range(experts)
                      for column in range(k) for row in range(n))
    return layer, (dtype, [experts, k, n], turned)


class Dequantize(Case):
    def test_golden_bits(self):
        for name in LOADABLE:
            out = self.folder / name
            self.run_qk("dequantize", GOLDEN / name, out)
            beside = {"generation_config.json"} & set(os.listdir(GOLDEN / name))
            self.assertEqual(set(os.listdir(out)), {"config.json", "model.safetensors"} | beside)
            self.assertNotIn("quantization_config", json.loads((out / "config.json").read_text()))
            written = read(out)
            source = read(GOLDEN / name)
            truth = dict(as_written(weight, values, source) for weight, values in
                         read(GOLDEN / name / "truth.safetensors").items())
            for weight, expected in truth.items():
                self.assertEqual(written[weight], expected, f"{name} {weight}")
            for other in set(written) - set(truth):
                self.assertEqual(written[other], source[other])
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

    def test_experts_of_gpt_oss(self):
        """Experts that several blocks of rows make, written under the parameter's own name."""
        experts, n, k = 3, 1100, 2048
        name, out = "model.layers.0.mlp.experts.down_proj", self.folder / "one.safetensors"
        codes = bytes(i * 7 % 251 for i in range(experts * n * k // 2))
        self.write("model.safetensors", safetensors({
            f"{name}_blocks": ("U8", [experts, n, k // 32, 16], codes),
            f"{name}_scales": ("U8", [experts, n, k // 32], bytes([127]) * (len(codes) // 16)),
            f"{name}_bias": ("BF16", [experts, n], bytes(2 * experts * n))}))
        self.run_qk("dequantize", self.folder / "model.safetensors", out, "--layer", name)
        written = read(out)
        self.assertEqual(sorted(written), [name, f"{name}_bias"])
        dtype, shape, content = written[name]
        self.assertEqual((dtype, shape), ("BF16", [experts, k, n]))
        table = [0, 0x3f00, 0x3f80, 0x3fc0, 0x4000, 0x4040, 0x4080, 0x40c0]  # in bf16
        for expert, column, row in ((0, 0, 0), (0, 5, 1099), (1, 2047, 0), (1, 64, 900),
                                    (2, 1000, 1), (2, 2047, 1099)):
            at = (expert * n + row) * k + column
            code = codes[at // 2] >> at % 2 * 4 & 15
            found, = struct.unpack_from("<H", content, 2 * ((expert * k + column) * n + row))
            self.assertEqual(found, table[code % 8] | code // 8 << 15, (expert, column, row))

    def test_refusals_leave_nothing(self):
        golden = GOLDEN / "bnb_nf4"
        self.fails(2, "dequantize", golden, self.folder / "out", "--layer", "nope*")
        self.fails(1, "dequantize", GOLDEN / "dense", self.folder / "out")
        for name in REFUSED:
            self.fails(4, "dequantize", GOLDEN / name, self.folder / "out")
        self.fails(3, "dequantize", golden, self.folder / "no" / "such.safetensors")
        self.fails(3, "dequantize", golden, self.folder / "no" / "such")
        self.fails(3, "dequantize", golden, "/dev/null")
        # A dense tensor of the name that the decoded layer would get.
        tensors = read(GOLDEN / "awq_gemm_g128")
        tensors["model.layers.0.mlp.down_proj.weight"] = ("F16", [1, 1], bytes(2))
        (self.folder / "in").mkdir()
        self.write("in/model.safetensors", safetensors(tensors))
        shutil.copy(GOLDEN / "awq_gemm_g128" / "config.json", self.folder / "in")
        self.fails(1, "dequantize", self.folder / "in", self.folder / "out")

    @posix
    def test_full_disk(self):
        def small_files():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))

        for command in (["dequantize", GOLDEN / "bnb_nf4"], ["quantize", GOLDEN / "dense"]):
            for out in ("out", "out.safetensors"):
                done = subprocess.run([*COMMAND, *map(str, command), str(self.folder / out)],
                                      capture_output=True, text=True, preexec_fn=small_files,
                                      timeout=120)
                self.assertEqual((done.returncode, done.stdout), (3, ""), done.stderr)
                self.assertRegex(done.stderr, r"\Aqk: [^\n]+\n\Z")
                self.assertEqual(os.listdir(self.folder), [])

    def test_existing_files(self):
        for existing in ("model.safetensors", "config.json"):
            out = self.folder / existing.split(".")[0]
            out.mkdir()
            (out / existing).write_text("mine")
            for path in (out, f"{out}/"):
                self.assertEqual(self.fails(1, "dequantize", GOLDEN / "bnb_nf4", path),
                                 f"qk: {out / existing} exists; --force replaces it\n")
            self.assertEqual((out / existing).read_text(), "mine")
            self.run_qk("dequantize", GOLDEN / "bnb_nf4", out, "--force", "-q")
            self.assertEqual(sorted(os.listdir(out)), ["config.json", "model.safetensors"])
            self.assertEqual(len(read(out)), 8)

    @in_place
    def test_in_place(self):
        place = self.folder / "model"
        shutil.copytree(GOLDEN / "dense", place)
        os.chmod(place, 0o755)
        self.run_qk("quantize", place, place, "--force")
        self.assertEqual(self.run_json("verify", place)["decoded_layers"], 6)
        self.run_qk("dequantize", place, place, "--force")
        self.assertEqual({n: s for n, (_, s, _) in read(place).items()},
                         {n: s for n, (_, s, _) in read(GOLDEN / "dense").items()})


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
                                          ["--format", "int4", "--scales", "f32", "-q"],
                                          ["--format", "int8"],
                                          ["--format", "int8", "--group", "16"],
                                          ["--format", "mxfp4"], ["--format", "nvfp4"],
                                          ["--format", "int4", "--dialect", "awq", "--group", 16])):
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

    def test_dialects_of_int4(self):
        """Written at once, or through compressed-tensors: the same file."""
        tensors = {name: tensor for name, tensor in read(GOLDEN / "dense").items()
                   if all(size % 16 == 0 for size in tensor[1])}
        model = self.folder / "model"
        model.mkdir()
        (model / "model.safetensors").write_bytes(safetensors(tensors))
        (model / "config.json").write_text("{}")
        for options in (["--group", "32"], ["--group", "row", "--asymmetric"]):
            for dialect in ("awq", "gptq-v2"):
                ways = [self.folder / way for way in ("at once", "first", "then")]
                common = ["quantize", model, "--format", "int4", "--scales", "f16", *options]
                self.run_qk(*common, ways[0], "--dialect", dialect, "--force")
                self.run_qk(*common, ways[1], "--force")
                self.run_qk("convert", ways[1], ways[2], "--to", dialect, "--force")
                self.assertEqual(*(read(ways[i]) for i in (0, 2)))
                self.assertEqual(*(json.loads((ways[i] / "config.json").read_text())
                                   for i in (0, 2)))
        # Weights in F32 get scales that the dialect has.
        wide = {"a.weight": ("F32", [8, 16], floats([i / 8 for i in range(128)]))}
        (model / "model.safetensors").write_bytes(safetensors(wide))
        for dialect in ("awq", "gptq-v2"):
            out = self.folder / f"{dialect}-wide"
            self.run_qk("quantize", model, out, "--format", "int4", "--group", "16", "--dialect",
                        dialect)
            self.assertEqual(read(out)["a.scales"][0], "F16")
        # GPTQ's configuration has no word for layers that stay dense.
        self.assertIn("no word", self.fails(4, "quantize", GOLDEN / "dense", self.folder / "no",
                                            "--format", "int4", "--dialect", "gptq-v2"))

    def test_int8_words(self):
        """Codes plus 128, four in a word of a row, as docs/formats.md has them."""
        out = self.folder / "out.safetensors"
        weights = {"a.weight": ("F32", [2, 6], floats([-1, 1, 0.5, 0, 0.25, 1] * 2))}
        source = self.write("in.safetensors", safetensors(weights))
        self.run_qk("quantize", source, out, "--format", "int8")
        written = read(out)
        dtype, shape, codes = written["a.weight_packed"]
        self.assertEqual((dtype, shape), ("I32", [2, 2]))
        self.assertEqual((codes[6:8], codes[14:]), (bytes(2), bytes(2)))
        self.assertEqual(written["a.weight_scale"][:2], ("F32", [2, 1]))
        scale, = struct.unpack("<f", written["a.weight_scale"][2][:4])
        self.assertEqual(struct.pack("<f", scale), struct.pack("<f", 1 / 127.5))  # the package's
        for row in (codes[:6], codes[8:14]):
            for code, weight in zip(row, (-1, 1, 0.5, 0, 0.25, 1)):
                self.assertLessEqual(abs((code - 128) * scale - weight), scale / 2 + 1e-8)
        self.assertEqual(struct.unpack("<2q", written["a.weight_shape"][2]), (2, 6))

    def test_gguf(self):
        """Other formats and dialects have no place there, nor these anywhere else."""
        for kind in ("q4_0", "q8_0"):
            out = self.folder / f"{kind}.gguf"
            report = self.run_json("quantize", GOLDEN / "dense", out, "--format", kind)
            found = self.run_json("inspect", out)
            self.assertEqual((found["quantized_layers"], found["refused_layers"]), (3, 0))
            self.assertTrue(self.run_json("verify", out)["sound"])
            again = self.run_json("dequantize", out, self.folder / "f32.safetensors", "--dtype",
                                  "f32", "--report", GOLDEN / "dense", "--force")
            self.assertEqual(again["error"], report["error"])
            self.assertEqual({name: shape for name, (_, shape, _) in
                              read(self.folder / "f32.safetensors").items()},
                             {name: shape for name, (_, shape, _) in
                              read(GOLDEN / "dense").items()})
            self.assertEqual(len(out.read_bytes()) % 32, 0)
            for name in ("x.safetensors", "x"):
                self.assertIn("written to a file named *.gguf",
                              self.fails(4, "quantize", GOLDEN / "dense", self.folder / name,
                                         "--format", kind))
        self.assertIn("hold GGUF's types alone", self.fails(4, "quantize", GOLDEN / "dense",
                                                            self.folder / "x.gguf"))
        huge = safetensors({"a.weight": ("F32", [1, 32], floats([1e9] * 32))})
        self.assertIn("overflow", self.fails(1, "quantize", self.write("in.safetensors", huge),
                                             self.folder / "x.gguf", "--format", "q8_0"))
        long = safetensors({"a" * 64: ("F32", [1], bytes(4)), "a.weight": ("F32", [1, 32],
                                                                           floats([1] * 32))})
        self.assertIn("63 bytes", self.fails(4, "quantize", self.write("in.safetensors", long),
                                             self.folder / "x.gguf", "--format", "q8_0"))

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
        self.assertIn("no multiple of the group of 32 (", done.stdout)
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
        tensors["table.weight"] = ("I64", [1, 2], bytes(16))  # rank 2, but no weights
        path = self.write("in.safetensors", safetensors(tensors, {"format": "np", "by": "me"}))
        done = self.run_json("quantize", path, self.folder / "out.safetensors")
        self.assertEqual((done["quantized_layers"], done["copied_tensors"]), (2, 5))
        self.assertEqual(done["dense_layers"], ["lm_head", "model.embed_tokens"])
        written = read(self.folder / "out.safetensors")
        for name in set(tensors) - {"a.weight", "b.weight"}:
            self.assertEqual(written[name], tensors[name])
        self.assertEqual(written["a.weight"][:2], ("U8", [16, 1]))
        self.assertTrue(self.run_json("verify", self.folder / "out.safetensors")["sound"])
        self.run_qk("dequantize", self.folder / "out.safetensors", self.folder / "back.safetensors")
        back = read(self.folder / "back.safetensors")
        self.assertEqual(sorted(back), sorted(tensors))
        self.assertEqual(back["table.weight"], tensors["table.weight"])
        tensors["half.weight"] = ("F8_E4M3", [1, 2], bytes(2))  # quantized weights of another kind
        path = self.write("eight.safetensors", safetensors(tensors))
        self.assertIn("half", self.fails(4, "quantize", path, self.folder / "eight"))

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
        # 7.5e5 / 7.5 is more than f16 holds; two absmax of 3e38 sum to infinity.
        for value, *options in ((7.5e5, "--format", "int4", "--group", "row", "--scales", "f16"),
                                (3e38, "--group", "32", "--nested")):
            weight = floats([value] * 64)
            path = self.write("a.safetensors", safetensors({"a.weight": ("F32", [2, 32], weight)}))
            self.assertIn("overflow", self.fails(1, "quantize", path, out, *options))


class Terminal(Case):
    """A bar on a terminal, and Ctrl-C in the middle of long work."""

    def start(self, *options):
        size, count = 1 << 20, 4096  # holes in the file: four gigabytes that take no disk
        header = {f"layer{i}.weight": {"dtype": "F32", "shape": [256, 1024],
                                       "data_offsets": [i * size, (i + 1) * size]}
                  for i in range(count)}
        path = self.write("in.safetensors", pack(header))
        os.truncate(path, path.stat().st_size + count * size)
        master, slave = pty.openpty()
        self.addCleanup(os.close, master)
        process = subprocess.Popen([*COMMAND, "quantize", str(path), str(self.folder / "out"),
                                    "--threads", "1", *options], stdout=subprocess.DEVNULL,
                                   stderr=slave, env={**os.environ, "TERM": "xterm"})
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
            self.assertEqual(select.select([master], [], [], 1)[0], [], option)
            self.interrupt(process)


if __name__ == "__main__":
    unittest.main()
