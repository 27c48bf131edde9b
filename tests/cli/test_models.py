"""qk quantize and dequantize on directories: tied heads, mixtures, what lies beside."""
import json
import os
import struct
import unittest

from harness import GOLDEN, Case, floats, in_place, read, safetensors

WEIGHT = ("F32", [8, 32], floats([i / 64 - 2 for i in range(256)]))
LAYER = "model.layers.0"
CONFIG = """{
    "architectures": ["Qwen2ForCausalLM"],
    "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "initializer_range":0.02,
    "compression_config": null,
    "model_type": "qwen2", "name": "\\u00e9 \\"}\\"",
    "nested": {"quantization_config": 1, "b": [1, 2.50]},
    "quantization_config": {"quant_method": "bitsandbytes"},
    "vocab_size": 8
}
"""
KEPT = ["architectures", "rms_norm_eps", "rope_theta", "initializer_range", "model_type", "name",
        "nested", "vocab_size"]


class Models(Case):
    def model(self, names, config="{}", **more):
        """A directory with a weight of each name, and tensors as they are given."""
        folder = self.folder / "model"
        folder.mkdir(exist_ok=True)
        tensors = {f"{name}.weight": WEIGHT for name in names}
        tensors.update({name.replace("__", "."): tensor for name, tensor in more.items()})
        self.write("model/model.safetensors", safetensors(tensors))
        self.write("model/config.json", config.encode())
        return folder

    def section(self, out):
        return json.loads((out / "config.json").read_text())["quantization_config"]

    def quantized(self, out):
        return [layer["name"] for layer in self.run_json("inspect", out)["layers"]
                if layer["dialect"] != "dense"]

    def test_the_head_of_a_tied_model_is_named(self):
        names = ["model.embed_tokens", f"{LAYER}.mlp.up_proj"]
        for number, (config, head) in enumerate((("{}", "lm_head"),
                                                 ('{"model_type": "qwen2"}', "lm_head"),
                                                 ('{"model_type": "whisper"}', "proj_out"))):
            out = self.folder / f"nf4{number}"
            self.run_qk("quantize", self.model(names, config), out)
            self.assertEqual(self.section(out)["llm_int8_skip_modules"],
                             ["model.embed_tokens", head])
        out = self.folder / "int4"
        self.run_qk("quantize", self.model(names), out, "--format", "int4", "--group", "32")
        self.assertEqual(self.section(out)["ignore"], ["model.embed_tokens", "lm_head"])
        # A head that the user wants in 4 bits is none to be skipped.
        out = self.folder / "head"
        self.run_qk("quantize", self.model([*names, "lm_head"]), out, "--exclude", "*embed*")
        self.assertEqual(self.section(out)["llm_int8_skip_modules"], ["model.embed_tokens"])
        self.assertIn("lm_head", self.quantized(out))

    def test_gptq_says_whether_the_head_is_quantized(self):
        for exclude, expected in ((["--exclude", "*embed*"], True), ([], False)):
            half = ("F16", [8, 32], struct.pack("<256e", *(i / 64 - 2 for i in range(256))))
            model = self.model([], model__embed_tokens__weight=half, lm_head__weight=half,
                               a__weight=half)
            out, back = self.folder / "int4", self.folder / "gptq"
            self.run_qk("quantize", model, out, *exclude, "--format", "int4", "--group",
                        "32", "--force", "-q")
            self.run_qk("convert", out, back, "--to", "gptq-v2", "--force", "-q")
            self.assertIs(self.section(back)["lm_head"], expected)

    def test_mixtures(self):
        experts = [f"{LAYER}.mlp.experts.{i}.up_proj" for i in range(3)]
        routers = [f"{LAYER}.mlp.gate", f"{LAYER}.block_sparse_moe.gate", f"{LAYER}.mlp.router",
                   f"{LAYER}.mlp.shared_expert_gate", f"{LAYER}.ffn.router.layer"]
        others = [f"{LAYER}.mlp.gate_proj", f"{LAYER}.mlp.shared_expert.up_proj",
                  f"{LAYER}.mlp.shared_experts.up_proj"]
        model = self.model([*experts, *routers, *others])
        out = self.folder / "nf4"
        self.run_qk("quantize", model, out)
        self.assertEqual(self.quantized(out), others)
        self.assertEqual(set(self.section(out)["llm_int8_skip_modules"]),
                         {*routers, f"{LAYER}.mlp.experts", "lm_head"})
        out = self.folder / "int4"
        int4 = ["--format", "int4", "--group", "32"]
        self.run_qk("quantize", model, out, *int4)
        self.assertEqual(set(self.quantized(out)), {*experts, *others})
        self.assertEqual(set(self.section(out)["ignore"]), {*routers, "lm_head"})
        # What transformers would not load, or read wrong, is not written, unless the user knows
        # better.
        self.assertIn("experts.0.up_proj: transformers reads no global scales of experts; give "
                      "--exclude", self.fails(4, "quantize", model, self.folder / "no",
                                              "--format", "nvfp4"))
        self.run_qk("quantize", model, self.folder / "nvfp4", "--format", "nvfp4",
                    "--exclude", "lm_head", *routers)
        self.assertEqual(set(self.quantized(self.folder / "nvfp4")), {*experts, *others})
        self.assertIn("experts.0", self.fails(4, "quantize", model, self.folder / "no", *int4,
                                              "--asymmetric"))
        self.assertIn("experts.0", self.fails(4, "quantize", model, self.folder / "no",
                                              "--format", "int4"))
        out = self.folder / "asymmetric"
        self.run_qk("quantize", model, out, *int4, "--asymmetric", "--exclude", "*experts.*")
        self.assertIn("re:model\\.layers\\.0\\.mlp\\.experts\\..*", self.section(out)["ignore"])
        out = self.folder / "some"  # one of three: the others are named one by one
        self.run_qk("quantize", model, out, "--include", experts[1], "--exclude", "none")
        self.assertLessEqual({experts[0], experts[2]},
                             set(self.section(out)["llm_int8_skip_modules"]))

    def mixture(self, config, **more):
        """Two experts in two tensors, and the same one by one."""
        rows = [[((7 * i + 3 * e) % 64 - 31) / 40 for i in range(2 * 32 * 64)] for e in range(2)]
        down = [[((5 * i + e) % 64 - 31) / 40 for i in range(64 * 32)] for e in range(2)]
        experts, each = f"{LAYER}.mlp.experts", {}
        for e in range(2):
            for part, values, shape in (("gate_proj", rows[e][:2048], [32, 64]),
                                        ("up_proj", rows[e][2048:], [32, 64]),
                                        ("down_proj", down[e], [64, 32])):
                each[f"{experts}.{e}.{part}.weight"] = ("F32", shape, floats(values))
        both = {f"{experts}.gate_up_proj": ("F32", [2, 64, 64], floats(rows[0] + rows[1])),
                f"{experts}.down_proj": ("F32", [2, 64, 32], floats(down[0] + down[1]))}
        return (self.model([f"{LAYER}.mlp.other"], config, **{**both, **more}),
                safetensors({f"{LAYER}.mlp.other.weight": WEIGHT, **each}))

    def test_fused_experts_become_experts(self):
        qwen = '{"model_type": "qwen3_moe"}'
        fused, each = self.mixture(qwen)
        (self.folder / "each").mkdir()
        self.write("each/model.safetensors", each)
        self.write("each/config.json", qwen.encode())
        out = self.folder / "out"
        for options in (["int4", "--group", "32"], ["int8"], ["mxfp4"]):
            self.run_qk("quantize", fused, out, "--format", *options, "--force")
            self.run_qk("quantize", self.folder / "each", self.folder / "twin", "--format",
                        *options, "--force")
            for name in ("model.safetensors", "config.json"):
                self.assertEqual((out / name).read_bytes(),
                                 (self.folder / "twin" / name).read_bytes(), options)
        mixture, = self.run_json("inspect", out)["experts"]
        self.assertEqual((mixture["name"], mixture["experts"], mixture["loadable"]),
                         (f"{LAYER}.mlp.experts", 2, True))

    def test_products_with_experts(self):
        model, _each = self.mixture('{"model_type": "qwen3_moe"}')
        out, name = self.folder / "out", f"{LAYER}.mlp.experts.*.down_proj"
        self.run_qk("quantize", model, out, "--format", "int4", "--group", "32")
        for options in ([], ["--packed"], ["--dtype", "bf16", "--isa", "generic"]):
            done = self.run_json("multiply", out, name, "--rows", "3", "--repeat", "1", *options)
            self.assertEqual((done["experts"], done["shape"], done["rows"]), (2, [128, 32], 3))
            self.assertLessEqual(done["share_of_bound"], 1)
            self.assertNotEqual(done["checksum"], 0)
        text = self.run_qk("multiply", out, name, "--explain").stdout
        self.assertIn("\nexperts   2, of which each row of x takes all\n", text)
        self.assertIn("int8 mode takes no", self.fails(4, "multiply", out, name, "--mode", "int8"))
        self.assertIn(f"did you mean '{name}'", self.fails(2, "multiply", out, name[:-1]))

    def test_fused_experts_that_stay(self):
        gate_up, down = f"{LAYER}.mlp.experts.gate_up_proj", f"{LAYER}.mlp.experts.down_proj"
        int4, qwen = ["--format", "int4", "--group", "32"], '{"model_type": "qwen3_moe"}'
        single = {f"{LAYER}.mlp.experts.1.up_proj.weight": WEIGHT}
        turned = {gate_up: ("F32", [2, 64, 64], floats([1] * 8192)),
                  down: ("F32", [2, 32, 64], floats([1] * 4096))}
        none = {gate_up: ("F32", [0, 64, 64], b""), down: ("F32", [0, 64, 32], b"")}
        for config, options, more, reason in (
                (qwen, [], {}, ""), (qwen, [*int4, "--asymmetric"], {}, ": transformers reads no "
                                     "zero points of experts"),
                (qwen, ["--format", "nvfp4"], {}, ": transformers reads no global scales of "
                 "experts"),
                (qwen, ["--format", "int4", "--group", "64"], {}, ": rows of 32, no multiple of "
                 "the group of 64"),
                (qwen, [*int4, "--exclude", "*.experts.1.up_proj"], {}, ": --exclude"),
                (qwen, int4, single, f": {LAYER}.mlp.experts.1.up_proj is there too"),
                (qwen, int4, turned, ", transposed"), (qwen, int4, none, ""), ("{}", int4, {}, ""),
                ('{"model_type": "mixtral"}', [*int4, "--exclude", "none"], {}, "")):
            more = {"model.b.weight": ("F32", [8, 64], floats([1] * 512)), **more}
            model, _each = self.mixture(config, **more)
            done = self.run_json("quantize", model, self.folder / "out", *options, "--force")
            kept = {entry["name"]: entry["reason"] for entry in done["dense"]}
            self.assertEqual((kept[gate_up], kept[down]), ("fused experts" + reason,) * 2)
            written = read(self.folder / "out")
            for name in (gate_up, down):
                self.assertEqual(written[name], read(model)[name])
        model, _each = self.mixture("{}")  # for a reader of the caller's
        out = self.folder / "nvfp4"
        self.run_qk("quantize", model, out, "--format", "nvfp4", "--exclude", "none")
        mixture, = self.run_json("inspect", out)["experts"]
        self.assertEqual((mixture["experts"], mixture["not_quantized"]), (2, []))

    def test_convert_says_what_transformers_does_not_read(self):
        names = [f"{LAYER}.mlp.experts.{i}.up_proj" for i in range(2)]
        for zeros, expected in (([], ""), (["--asymmetric"], f"qk: {names[0]} and 1 more: "
                                           "transformers reads no zero points of experts, ")):
            gptq, out = self.folder / f"gptq{len(zeros)}", self.folder / f"out{len(zeros)}"
            self.run_qk("quantize", self.model(names), gptq, "--format", "int4", "--group", "32",
                        "--dialect", "gptq-v2", "--exclude", "none", *zeros)
            said = self.run_qk("convert", gptq, out, "--to", "compressed-tensors").stderr
            self.assertIn(expected, said)
            self.assertEqual("transformers" in said, bool(zeros))
            done = self.run_json("convert", gptq, out, "--to", "compressed-tensors", "--force")
            self.assertEqual(done["unread_experts"], [
                {"name": name, "reason": "transformers reads no zero points of experts"}
                for name in names if zeros])
            self.assertEqual(self.run_json("convert", out, self.folder / "awq", "--to", "awq",
                                           "--force")["unread_experts"], [])

    def test_the_account(self):
        fused = ("F32", [2, 8, 32], WEIGHT[2] * 2)
        model = self.model(["model.embed_tokens", f"{LAYER}.mlp.up_proj", f"{LAYER}.mlp.router"],
                           **{f"{LAYER}.mlp.experts.down_proj": fused,
                              f"{LAYER}.norm.weight": ("F32", [8], floats(range(8)))})
        done = self.run_json("quantize", model, self.folder / "out")
        dense = {entry["name"]: entry for entry in done["dense"]}
        self.assertEqual(sum(entry["bytes"] for entry in dense.values()), done["dense_bytes"])
        self.assertEqual(done["dense_bytes"], 4 * 1024 + 32)
        self.assertIn("fused experts", dense[f"{LAYER}.mlp.experts.down_proj"]["reason"])
        self.assertEqual(dense[f"{LAYER}.mlp.experts.down_proj"]["shape"], [2, 8, 32])
        self.assertEqual(dense["model.embed_tokens.weight"]["reason"], "embedding")
        self.assertEqual(dense[f"{LAYER}.mlp.router.weight"]["reason"], "router")
        self.assertEqual(set(dense) | {f"{LAYER}.mlp.up_proj.weight"}, set(read(model)))
        text = self.run_qk("quantize", model, self.folder / "out", "--force").stdout
        self.assertRegex(text, r"2\.0 kB +1  fused experts[^\n]*experts\.down_proj")
        self.assertLess(text.index("fused"), text.index("router"))  # the most bytes first

    def test_the_configuration_keeps_what_it_said(self):
        model = self.model([f"{LAYER}.mlp.up_proj"], CONFIG)
        out = self.folder / "out"
        self.run_qk("quantize", model, out)
        text = (out / "config.json").read_text()
        self.assertEqual(list(json.loads(text)), [*KEPT, "quantization_config"])
        for piece in ('    "architectures": ["Qwen2ForCausalLM"],\n    "rms_norm_eps": 1e-06, '
                      '"rope_theta": 1000000.0, "initializer_range":0.02,',
                      '"model_type": "qwen2", "name": "\\u00e9 \\"}\\"",',
                      '"nested": {"quantization_config": 1, "b": [1, 2.50]},'):
            self.assertIn(piece, text)
        self.assertEqual(self.section(out)["load_in_4bit"], True)
        self.run_qk("dequantize", out, self.folder / "back")
        again = json.loads((self.folder / "back/config.json").read_text())
        self.assertEqual(list(again), KEPT)

    def test_gpt2_is_refused(self):
        model = self.model(["h.0.attn.c_attn"], '{"model_type": "gpt2"}')
        self.assertIn("gpt2", self.fails(4, "quantize", model, self.folder / "out"))


class Directories(Case):
    BESIDE = {"tokenizer.json": "{}", "generation_config.json": "", "chat_template.jinja": "{{x}}",
              "merges.txt": "a b\n", "modeling_x.py": "pass"}

    def setUp(self):
        super().setUp()
        self.model = self.folder / "model"
        self.model.mkdir()
        for name in ("model.safetensors", "config.json"):
            self.write(f"model/{name}", (GOLDEN / "dense" / name).read_bytes())
        for name, content in self.BESIDE.items():
            self.write(f"model/{name}", content.encode())

    def test_what_lies_beside_is_copied_or_named(self):
        for name in ("pytorch_model.bin", "other.safetensors", "pytorch_model.bin.index.json",
                     "quant_config.json", ".gitattributes"):
            self.write(f"model/{name}", b"{}")
        (self.model / "onnx").mkdir()
        os.mkfifo(self.model / "pipe")
        (self.model / "vocab.json").symlink_to(self.write("blob", b"[1]"))
        out, back = self.folder / "out", self.folder / "back"
        done = self.run_json("quantize", self.model, out)
        copied = {*self.BESIDE, "vocab.json"}
        self.assertEqual(set(done["copied_files"]), copied)
        self.assertEqual(set(os.listdir(out)), {"model.safetensors", "config.json", *copied})
        for name in copied:
            self.assertEqual((out / name).read_bytes(), (self.model / name).read_bytes())
        self.assertFalse((out / "vocab.json").is_symlink())
        left = {entry["name"]: entry["reason"] for entry in done["files_not_copied"]}
        self.assertEqual(set(left), {"pytorch_model.bin", "other.safetensors", "onnx", "pipe",
                                     "pytorch_model.bin.index.json", "quant_config.json"})
        self.assertTrue(all(left.values()))
        done = self.run_qk("dequantize", out, back)
        self.assertEqual(set(os.listdir(back)), {"model.safetensors", "config.json", *copied})
        self.assertIn("tokenizer.json", done.stdout)
        done = self.run_qk("quantize", self.model, self.folder / "notes")
        self.assertEqual(done.stderr.count("qk: not copied: "), 6)

    def test_files_by_their_names(self):
        out = self.folder / "out"
        done = self.run_json("quantize", self.model / "model.safetensors", out)
        self.assertEqual(set(done["copied_files"]), set(self.BESIDE))
        # Where no config.json says that the directory is a model's, nothing of it is taken.
        (self.model / "config.json").unlink()
        done = self.run_json("quantize", self.model / "model.safetensors", self.folder / "b")
        self.assertEqual((done["copied_files"], done["files_not_copied"]), ([], []))
        done = self.run_json("quantize", self.model, self.folder / "one.safetensors")
        self.assertEqual(done["copied_files"], [])

    def test_files_that_are_there_stay_without_force(self):
        out = self.folder / "out"
        out.mkdir()
        (out / "merges.txt").write_text("mine")
        self.assertIn("merges.txt", self.fails(1, "quantize", self.model, out))
        self.assertEqual((out / "merges.txt").read_text(), "mine")
        self.run_qk("quantize", self.model, out, "--force")
        self.assertEqual((out / "merges.txt").read_text(), "a b\n")

    @in_place
    def test_in_place(self):
        before = set(os.listdir(self.model))
        done = self.run_json("quantize", self.model, self.model, "--force")
        self.assertEqual((done["copied_files"], done["files_not_copied"]), ([], []))
        self.write("model/quantize_config.json", b'{"bits": 4, "group_size": 128}')
        done = self.run_json("dequantize", self.model, self.model, "--force")
        self.assertEqual(done["removed"], [str(self.model / "quantize_config.json")])
        self.assertEqual(set(os.listdir(self.model)), before)
        self.assertEqual(self.run_json("inspect", self.model)["quantized_layers"], 0)

    def test_a_part_is_no_model(self):
        self.run_qk("quantize", self.model, self.folder / "q")
        done = self.run_json("dequantize", self.folder / "q", self.folder / "part", "--layer",
                             "*q_proj")
        self.assertEqual(done["copied_files"], [])

    def test_a_file_that_cannot_be_read(self):
        (self.model / "secret.json").symlink_to("/proc/self/mem")
        self.assertIn("secret.json", self.fails(3, "quantize", self.model, self.folder / "out"))


if __name__ == "__main__":
    unittest.main()
