"""Experts in two dense tensors: as they are, transposed, and into gpt-oss's tensors."""
import json
import unittest
from array import array

from fused import DOWN, EXPERTS, GATE_UP, GPT_OSS, FusedCase, joined, read_gguf, turned
from harness import floats, read, safetensors


class Fused(FusedCase):
    def test_transposed_become_gpt_oss(self):
        """The bytes of the transposed weights as plain layers; 2112 x 2048 is transposed in two
        pieces an expert."""
        for dtype, sizes in (("F32", {}), ("F16", {}), ("BF16", {}),
                             ("BF16", {"experts": 1, "n": 32, "k": 32}),
                             ("BF16", {"experts": 2, "n": 1056, "k": 2048})):
            pair = self.pair(dtype, **sizes)
            experts, rows = pair[GATE_UP][1][:2]
            bias = ("F32", [experts, rows], floats(range(experts * rows)))
            model = self.model({**{name: turned(tensor) for name, tensor in pair.items()},
                                f"{GATE_UP}_bias": bias})
            plain = self.model(self.as_layers(pair), name="plain")
            out, twin = self.folder / "out", self.folder / "twin"
            done = self.run_json("quantize", model, out, *GPT_OSS, "--force")
            same = self.run_json("quantize", plain, twin, "--format", "mxfp4", "--exclude", "none",
                                 "--force")
            self.assertEqual((done["error"], done["layers"]), (same["error"], same["layers"]))
            self.assertEqual((done["dialect"], done["quantized_layers"]), ("gpt-oss", 2))
            self.assertEqual([entry["reason"] for entry in done["dense"]], ["bias of experts"])
            written, expected = read(out), read(twin)
            self.assertEqual(set(written), {f"{GATE_UP}_bias", *(
                name + part for name in pair for part in ("_blocks", "_scales"))})
            self.assertEqual(written[f"{GATE_UP}_bias"], bias)
            for name, (_, (experts, n, k), _) in pair.items():
                self.assertEqual(written[f"{name}_blocks"],
                                 ("U8", [experts, n, k // 32, 16],
                                  expected[f"{name}.weight_packed"][2]))
                self.assertEqual(written[f"{name}_scales"],
                                 ("U8", [experts, n, k // 32], expected[f"{name}.weight_scale"][2]))

    def test_gpt_oss_reads_what_it_wrote(self):
        pair = self.pair()
        model = self.model({**{name: turned(tensor) for name, tensor in pair.items()},
                            f"{EXPERTS}.other.weight": ("F32", [4, 32], bytes(512))})
        out, back, twin = (self.folder / name for name in ("out", "back", "twin"))
        done = self.run_json("quantize", model, out, *GPT_OSS)
        self.assertEqual({entry["name"]: entry["reason"] for entry in done["dense"]},
                         {f"{EXPERTS}.other.weight": "in gpt-oss only fused experts have 4 bits"})
        section = json.loads((out / "config.json").read_text())["quantization_config"]
        self.assertEqual(section, {"modules_to_not_convert": [f"{EXPERTS}.other", "lm_head"],
                                   "quant_method": "mxfp4"})
        mixture, = self.run_json("inspect", out)["experts"]
        self.assertEqual((mixture["name"], mixture["experts"], mixture["loadable"]),
                         (EXPERTS, 3, True))
        self.assertEqual([(p["dialect"], p["shape"]) for p in mixture["projections"]],
                         [("gpt-oss", [3, 96, 64]), ("gpt-oss", [3, 128, 96])])
        self.assertTrue(self.run_json("verify", out)["sound"])
        # Back to [E,k,2n] and [E,n,k], and from there to the same numbers again.
        self.run_qk("dequantize", out, back)
        plain = self.model(self.as_layers(pair), name="plain")
        self.run_qk("quantize", plain, twin, "--format", "mxfp4", "--exclude", "none")
        self.run_qk("dequantize", twin, self.folder / "twin-back")
        decoded = read(self.folder / "twin-back")
        for name, tensor in pair.items():
            dtype, shape, data = read(back)[name]
            self.assertEqual(joined(turned((dtype, shape, data))), decoded[f"{name}.weight"])
        self.run_qk("quantize", back, self.folder / "again", *GPT_OSS)
        self.run_qk("dequantize", self.folder / "again", self.folder / "again-back")
        again = read(self.folder / "again-back")
        for name, (_, _, data) in read(back).items():
            if name in pair:  # a weight of -0 becomes 0
                words = array("H", (0 if word == 0x8000 else word for word in array("H", data)))
                self.assertEqual(array("H", again[name][2]), words)

    def test_what_gpt_oss_has_no_word_for(self):
        both, straight = self.transposed(), self.pair()
        narrow = self.transposed(n=48)
        other = {"model.layers.1.mlp.experts." + name.rsplit(".", 1)[1]: tensor
                 for name, tensor in both.items()}
        out = self.folder / "out"
        said = self.fails(4, "quantize", self.model(both, "llama4"), out, *GPT_OSS)
        self.assertIn("model_type llama4; only gpt_oss models are read in the dialect", said)
        self.assertIn(f"no layer can be quantized ({EXPERTS}: fused experts: gpt-oss's are "
                      "transposed)", self.fails(1, "quantize", self.model(straight), out, *GPT_OSS))
        self.assertIn("fused experts, transposed: rows of 48, no multiple of the group of 32",
                      self.fails(1, "quantize", self.model(narrow), out, *GPT_OSS))
        self.assertIn("that of mxfp4 is 32", self.fails(2, "quantize", self.model(both), out,
                                                        *GPT_OSS, "--group", "64"))
        self.run_qk("quantize", self.model({**both, **other}), out, *GPT_OSS, "--exclude",
                    "*.0.*.down_proj")
        section = json.loads((out / "config.json").read_text())["quantization_config"]
        self.assertEqual(section["modules_to_not_convert"], [EXPERTS, "lm_head"])
        written = read(out)
        self.assertEqual(written[GATE_UP], both[GATE_UP])
        self.assertIn("model.layers.1.mlp.experts.down_proj_blocks", written)
        self.assertIn("fused experts)\n", self.fails(1, "quantize", self.model(straight),
                                                      self.folder / "no"))
        # Other dialects leave them, and say which one would not.
        layer = {"model.a.weight": ("F32", [8, 64], floats([1] * 512))}
        for options in ([], ["--format", "mxfp4"], ["--format", "int4", "--group", "32"]):
            for kind, hint in (("gpt_oss", ": --format mxfp4 --dialect gpt-oss takes them"),
                               ("qwen3_vl_moe", "")):
                done = self.run_json("quantize", self.model({**both, **layer}, kind), out, *options,
                                     "--force")
                kept = {entry["name"]: entry["reason"] for entry in done["dense"]}
                self.assertEqual(kept[GATE_UP], "fused experts, transposed" + hint)
                self.assertEqual(read(out)[GATE_UP], both[GATE_UP])

    def test_llama4_has_layers_an_expert(self):
        """Halves of columns, with the bytes that they have as layers of their own."""
        for sizes in ({}, {"experts": 1, "n": 1056, "k": 2048}):
            pair = self.pair(**sizes)
            each = self.singles(pair)
            model = self.model({name: turned(tensor) for name, tensor in pair.items()}, "llama4")
            single = self.model(each, "", "each")
            out, twin = self.folder / "out", self.folder / "twin"
            for options in (["int4", "--group", "32"], ["int4", "--group", "32", "--asymmetric"],
                            ["int8"], ["mxfp4"], ["nvfp4"], ["nf4"], ["fp4", "--nested"],
                            ["nf4", "--group", "1024"]):
                done = self.run_json("quantize", model, out, "--format", *options, "--force")
                same = self.run_json("quantize", single, twin, "--format", *options, "--exclude",
                                     "none", "--force")
                self.assertEqual((done["error"], done["layers"]), (same["error"], same["layers"]))
                self.assertEqual(read(out), read(twin), options)
        # What would stay dense would not load.
        model = self.model({name: turned(tensor) for name, tensor in self.pair().items()}, "llama4")
        for options, why in ((["--group", "64"], "rows of 96, no multiple of the group of 64, and "
                              "transformers does not load dense ones of llama4; give --exclude"),
                             (["--group", "32", "--include", f"{EXPERTS}.0.*"],
                              "fused experts, transposed: no --include, and")):
            self.assertIn(f"{EXPERTS}: fused experts, transposed", self.fails(
                4, "quantize", model, self.folder / "no", "--format", "int4", *options))
            self.assertIn(why, self.fails(4, "quantize", model, self.folder / "no", "--format",
                                          "int4", *options))
        bad = {name: turned(tensor) for name, tensor in self.pair().items()}
        data = bytearray(bad[GATE_UP][2])
        data[-2:] = b"\x80\x7f"
        bad[GATE_UP] = (*bad[GATE_UP][:2], bytes(data))
        self.assertIn(f"{EXPERTS}.2.up_proj.weight: 1 value is NaN or infinite", self.fails(
            1, "quantize", self.model(bad, "llama4"), self.folder / "no"))

    def test_a_pair_is_one_line(self):
        other = {"model.layers.1.mlp.experts.down_proj": ("F16", [2, 4, 8], bytes(128))}
        for turn in (False, True):
            pair = {name: turned(tensor) if turn else tensor
                    for name, tensor in self.pair().items()}
            model = self.model({**pair, **other})
            found = self.run_json("inspect", model)
            self.assertEqual([(t["name"], t["shape"], t["mixture"], t["transposed"])
                              for t in found["fused_experts"]],
                             [(DOWN, pair[DOWN][1], EXPERTS, turn),
                              (GATE_UP, pair[GATE_UP][1], EXPERTS, turn),
                              ("model.layers.1.mlp.experts.down_proj", [2, 4, 8], "", False)])
            self.assertEqual([(m["name"], m["loadable"], m["not_quantized"],
                               [p.get("shape") for p in m["projections"]])
                              for m in found["experts"]],
                             [(EXPERTS, True, ["down_proj", "gate_up_proj"],
                               [[3, 96, 64], [3, 128, 96]]),
                              ("model.layers.1.mlp.experts", False, ["down_proj"], [None])])
            lines = [line.split("  ") for line in self.run_qk("inspect", model).stdout.splitlines()
                     if "experts" in line]
            cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
            shapes = "down_proj 96 x 64, gate_up_proj 128 x 96"
            self.assertEqual(cells, [
                [EXPERTS, "dense", "bf16", f"3 x ({shapes})", "-", "-", "110.6 kB",
                 f"yes{', transposed' if turn else ''}; not quantized: down_proj, gate_up_proj"],
                ["model.layers.1.mlp.experts", "-", "-", "2 x (down_proj -)", "-", "-",
                 "128 B", "no: down_proj: without gate_up_proj, which may be in another file of "
                 "the model, nothing says whether experts are transposed"],
                cells[2]])
            self.assertIn("3 tensors of fused experts, 110.7 kB; ", cells[2][0])

    def test_dense_experts_of_llama_cpp(self):
        """Listed as what they are; they stay dense, under their names."""
        name, bias = "blk.0.ffn_gate_exps.weight", "blk.0.ffn_gate_exps.bias"
        path = self.write("a.safetensors", safetensors({
            name: ("F16", [2, 4, 32], bytes(512)), bias: ("F16", [2, 4], bytes(16)),
            "a.weight_bias": ("F32", [4], bytes(16)),
            "a.weight": ("F32", [4, 32], floats([1] * 128))}))
        out = self.folder / "a.gguf"
        done = self.run_json("quantize", path, out, "--format", "q8_0")
        self.assertEqual({t["name"]: t["reason"].split(":")[0] for t in done["dense"]},
                         {name: "fused experts", bias: "bias of experts",
                          "a.weight_bias": "vector"})
        self.assertEqual(self.run_json("inspect", out)["fused_experts"][0]["name"], name)

    def test_a_refused_one_is_on_the_line_of_its_mixture(self):
        path = self.write("a.safetensors", safetensors({
            "m.experts.gate_up_proj": ("F16", [2, 32, 8], bytes(1024)),
            "m.experts.gate_up_proj_bias": ("F16", [2, 31], bytes(124)),
            "m.experts.down_proj": ("F16", [2, 8, 16], bytes(512)),
            "blk.0.ffn_up_exps": ("F16", [2, 16, 8], bytes(512))}))
        up, experts = self.run_json("inspect", path)["experts"]
        self.assertEqual(("blk.0.ffn_*_exps", True), (up["name"], up["loadable"]))
        self.assertEqual(("m.experts", False), (experts["name"], experts["loadable"]))
        self.assertIn("expected F32, F16 or BF16 [2,32]", experts["reason"])

    def test_what_is_no_pair(self):
        """Every tensor stays as it is, and is listed by itself."""
        straight, other = self.pair(), self.transposed()
        half = ("F16", [3, 96, 64], bytes(2 * 3 * 96 * 64))
        none = {GATE_UP: ("BF16", [0, 128, 96], b""), DOWN: ("BF16", [0, 96, 64], b"")}
        huge = 2 ** 62  # times 2 is no int64
        empty = {GATE_UP: ("BF16", [0, 0, huge], b""), DOWN: ("BF16", [0, huge, 0], b"")}
        layer = {"model.a.weight": ("F32", [8, 64], floats([1] * 512)),
                 "model.a.norm": ("F32", [3], floats([1] * 3))}
        for tensors in ({GATE_UP: straight[GATE_UP]}, {DOWN: other[DOWN]},
                        {GATE_UP: ("BF16", [3, 64, 96], bytes(36864)), DOWN: straight[DOWN]},
                        {GATE_UP: straight[GATE_UP], DOWN: other[DOWN]},
                        {GATE_UP: other[GATE_UP], DOWN: straight[DOWN]},
                        {GATE_UP: straight[GATE_UP], DOWN: half}, none, empty,
                        {GATE_UP: straight[GATE_UP], DOWN: ("BF16", [1, 96, 64], bytes(12288))},
                        {f"{GATE_UP}.weight": straight[GATE_UP], f"{DOWN}.weight": straight[DOWN]},
                        {f"x{EXPERTS}_gate_up_proj": straight[GATE_UP], DOWN: straight[DOWN]}):
            model = self.model(tensors)
            found = self.run_json("inspect", model)["fused_experts"]
            self.assertEqual({t["name"]: t["mixture"] for t in found}, dict.fromkeys(tensors, ""))
            self.assertIn("no layer can be quantized\n", self.fails(
                1, "quantize", model, self.folder / "out", *GPT_OSS))
            model, out = self.model({**tensors, **layer}, ""), self.folder / "out.gguf"
            if tensors is empty:
                self.assertIn("the whole below 2^63 bytes", self.fails(
                    1, "quantize", model, self.folder / "no.gguf", "--format", "q8_0"))
                continue
            self.run_qk("quantize", model, out, "--format", "q8_0", "--force")
            self.assertTrue(self.run_json("verify", out)["sound"])  # an empty tensor may be last
            self.assertEqual({name for name, (kind, _, _) in read_gguf(out).items()
                              if kind == "Q8_0"}, {"model.a.weight"})

    def test_hostile_files(self):
        both, out = self.transposed(), self.folder / "out"
        bad = bytearray(both[DOWN][2])
        bad[-2:] = b"\xc0\x7f"
        self.assertIn(f"{DOWN}: 1 value is NaN or infinite, which no scale can hold", self.fails(
            1, "quantize", self.model({**both, DOWN: (*both[DOWN][:2], bytes(bad))}), out,
            *GPT_OSS))
        there = {f"{DOWN}_scales": ("F32", [2], bytes(8))}
        self.assertIn(f"fused experts, transposed: {DOWN} is there too", self.fails(
            1, "quantize", self.model({**both, **there}), out, *GPT_OSS))
        for kind, said in (("F32", "F32 3 x 4"), ("I32", "I32 3 x 96")):
            shape = [int(size) for size in said[4:].split(" x ")]
            wrong = {f"{DOWN}_bias": (kind, shape, bytes(4 * shape[0] * shape[1]))}
            self.assertIn(f"{DOWN}_bias is {said}, expected are floats 3 x 96", self.fails(
                1, "quantize", self.model({**both, **wrong}), out, *GPT_OSS))
        one = {f"{DOWN}_bias": ("F32", [3, 96], bytes(3 * 96 * 4))}
        self.assertIn(f"{DOWN}_bias has the biases of all experts, and transformers does not",
                      self.fails(4, "quantize", self.model({**both, **one}, "llama4"), out))
        self.assertIn("--format mxfp4 --dialect gpt-oss takes them", self.fails(
            1, "quantize", self.model(both), out, "--format", "nf4", "--include", "*experts*"))
        long = {name.replace("model.", "m" * 25 + "."): tensor for name, tensor in both.items()}
        self.assertIn("ggml's names have at most 63 bytes", self.fails(
            4, "quantize", self.model(long), self.folder / "out.gguf", "--format", "q4_0"))
        whole = safetensors(both)
        for end in (7, 100, len(whole) - 1):
            path = self.write("cut.safetensors", whole[:end])
            for command in (["inspect", path], ["quantize", path, out, *GPT_OSS]):
                self.assertIn("cut.safetensors: ", self.fails(3, *command))

    def test_more_experts_than_any_model_has(self):
        count = 300000
        model = self.model({GATE_UP: ("F16", [count, 2, 1], bytes(4 * count)),
                            DOWN: ("F16", [count, 1, 1], bytes(2 * count)),
                            "model.a.weight": ("F32", [8, 64], floats([1] * 512))}, "qwen3_moe")
        self.run_json("inspect", model)
        done = self.run_json("quantize", model, self.folder / "out", "--format", "int8")
        self.assertEqual((done["quantized_layers"], len(done["dense"])), (1, 2))


if __name__ == "__main__":
    unittest.main()
