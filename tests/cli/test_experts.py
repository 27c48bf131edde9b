"""Experts in GGUF's tensors of three dimensions, and the report that finds the originals of all."""
import math
import struct
import unittest

from fused import DOWN, EXPERTS, GATE_UP, GPT_OSS, FusedCase, joined, read_gguf, turned, weights
from harness import floats, read, safetensors


def resized(content, name, shape, wrong):
    """A GGUF file whose last tensor, of Q4_0, has another shape."""
    before, after = (name.encode() + struct.pack("<I3Q", 3, *sizes[::-1])
                     for sizes in (shape, wrong))
    assert content.count(before) == 1
    more = (math.prod(wrong) - math.prod(shape)) // 32 * 18
    content = content.replace(before, after)
    return content + bytes(more) if more > 0 else content[:len(content) + more]


class Together(FusedCase):
    def test_gguf_has_experts_of_three_dimensions(self):
        for turn in (False, True):
            pair, bias = self.pair("F32", n=32), ("F32", [3, 96], floats(range(288)))
            model = self.model({**{name: turned(tensor) if turn else tensor
                                   for name, tensor in pair.items()}, f"{DOWN}_bias": bias}, "")
            plain = self.model(self.as_layers(pair), "", "plain")
            for form in ("q4_0", "q8_0"):
                out, twin = self.folder / "out.gguf", self.folder / "twin.gguf"
                self.run_qk("quantize", model, out, "--format", form, "--force")
                self.run_qk("quantize", plain, twin, "--format", form, "--exclude", "none",
                            "--force")
                expected = {name: (kind, pair[name.removesuffix(".weight")][1], data)
                            for name, (kind, _, data) in read_gguf(twin).items()}
                expected[f"{DOWN}.bias"] = bias
                self.assertEqual(read_gguf(out), expected)
                mixture, = self.run_json("inspect", out)["experts"]
                self.assertEqual((mixture["name"], mixture["experts"], mixture["loadable"]),
                                 (EXPERTS, 3, True))
                self.assertEqual([(p["name"], p["shape"], p["has_bias"])
                                  for p in mixture["projections"]],
                                 [(DOWN, [3, 96, 32], True), (GATE_UP, [3, 64, 96], False)])
                self.assertTrue(self.run_json("verify", out)["sound"])
                back = self.folder / "back.safetensors"
                self.run_qk("dequantize", out, back, "--force")
                self.assertEqual(read(back)[f"{GATE_UP}.weight"][1], [3, 64, 96])
        self.assertIn("rows of 16, no multiple of the group of 32", self.fails(
            1, "quantize", self.model(self.pair(n=16)), self.folder / "no.gguf", "--format",
            "q4_0"))

    def test_gpt_oss_in_gguf_stays_experts(self):
        """Their bias too: [E,n] under the layer's name."""
        blocks = bytes(b for b in range(256) if b % 16 != 8 and b // 16 != 8)[:224]
        source = self.model({f"{DOWN}_blocks": ("U8", [2, 7, 1, 16], blocks),
                             f"{DOWN}_scales": ("U8", [2, 7, 1], bytes(range(100, 114))),
                             f"{DOWN}_bias": ("F32", [2, 7], floats(range(14)))})
        out, back = self.folder / "out.gguf", self.folder / "back"
        self.run_qk("convert", source, out, "--to", "gguf")
        found = read_gguf(out)
        self.assertEqual({name: (kind, shape) for name, (kind, shape, _) in found.items()},
                         {f"{DOWN}.weight": ("MXFP4", [2, 7, 32]), f"{DOWN}.bias": ("F32", [2, 7])})
        self.run_qk("dequantize", out, self.folder / "a.safetensors", "--dtype", "f32")
        self.run_qk("dequantize", source, self.folder / "b.safetensors", "--dtype", "f32")
        self.assertEqual(turned(read(self.folder / "a.safetensors")[f"{DOWN}.weight"]),
                         read(self.folder / "b.safetensors")[DOWN])
        # Other dialects have no experts in one layer.
        self.assertIn(f"{DOWN}: gpt-oss's experts are read in its own dialect alone", self.fails(
            4, "convert", source, back, "--to", "compressed-tensors"))
        self.assertIn(f"{DOWN}: its experts are one tensor, and compressed-tensors has a layer of "
                      "each", self.fails(4, "convert", out, back, "--to", "compressed-tensors"))

    def test_experts_of_gguf_are_converted_one_by_one(self):
        """As if the file had layers an expert; to GGUF there is nothing to do."""
        for sizes in ({"n": 32}, {"experts": 1, "n": 1056, "k": 2048}):
            pair = self.pair(**sizes)
            other = {"model.layers.0.q_proj.weight": ("BF16", [64, 96], weights("BF16", 6144, 5))}
            model = self.model({**pair, **other}, "")
            single = self.model({**self.singles(pair), **other}, "", "single")
            for form, words in (("q4_0", ("compressed-tensors", "gptq-v2", "awq")),
                                ("q8_0", ("compressed-tensors", "gptq"))):
                files = [self.folder / "joined.gguf", self.folder / "single.gguf"]
                for source, file in zip((model, single), files):
                    self.run_qk("quantize", source, file, "--format", form, "--force")
                for word in words:
                    said = [self.run_json("convert", file, self.folder / f"{i}.safetensors", "--to",
                                          word, "--force") for i, file in enumerate(files)]
                    self.assertEqual(said[0]["converted_layers"], said[1]["converted_layers"])
                    found, expected = (read(self.folder / f"{i}.safetensors") for i in (0, 1))
                    self.assertEqual(found, expected, (form, word))
                    self.assertIn(f"{EXPERTS}.0.up_proj", " ".join(found))
            self.assertIn("nothing to do: the layers are GGUF already", self.fails(
                1, "convert", files[0], self.folder / "no.gguf", "--to", "gguf"))

    def test_experts_of_gguf_that_stay_together(self):
        """No names for single experts, no partner, one of other sizes, or a bias: a refusal."""
        out = self.folder / "no"
        pair = self.pair(n=32)
        bias = {f"{DOWN}_bias": ("F32", [3, 96], floats(range(288)))}
        both = self.folder / "both.gguf"
        self.run_qk("quantize", self.model({**pair, **bias}, ""), both, "--format", "q4_0")
        self.assertIn(f"{DOWN}: its experts are one tensor, and compressed-tensors has a layer of "
                      "each; it has a bias of all of them",
                      self.fails(4, "convert", both, out, "--to", "compressed-tensors"))
        # gate_up_proj under another name: neither is half of a pair.
        plain = self.folder / "plain.gguf"
        self.run_qk("quantize", self.model(pair, ""), plain, "--format", "q4_0", "--force")
        content = plain.read_bytes()
        self.assertEqual(content.count(b"gate_up_proj"), 1)
        plain.write_bytes(content.replace(b"gate_up_proj", b"gate_in_proj"))
        self.assertIn(f"{DOWN}: its experts are one tensor", self.fails(
            4, "convert", plain, out, "--to", "compressed-tensors"))
        # Sizes that belong to no pair: the number of experts, n, k.
        for wrong in ([2, 96, 32], [3, 96, 64], [3, 64, 32]):
            plain.write_bytes(resized(content, f"{DOWN}.weight", pair[DOWN][1], wrong))
            self.assertEqual(self.run_json("verify", plain)["sound"], True)
            self.assertIn("qk makes those of X.experts.gate_up_proj [E,2n,k]", self.fails(
                4, "convert", plain, out, "--to", "compressed-tensors"))
        # llama.cpp's names, of the same lengths.
        renamed = {b"b.experts.gate_up_proj": b"blk.0.ffn_gate_up_exps",
                   b"b.experts.down_proj": b"blk.0.ffn_down_exps"}
        short = self.model({f"b.{name[name.index('experts'):]}": tensor
                            for name, tensor in pair.items()}, "", "short")
        self.run_qk("quantize", short, plain, "--format", "q4_0", "--force")
        content = plain.read_bytes()
        for name, other in renamed.items():
            content = content.replace(name, other)
        plain.write_bytes(content)
        self.assertIn("blk.0.ffn_down_exps: its experts are one tensor", self.fails(
            4, "convert", plain, out, "--to", "compressed-tensors"))
        self.assertFalse(out.exists())

    def test_an_expert_of_its_own_beside_all(self):
        """One of two layers of a name would be lost, whether it is dense or quantized."""
        pair, up = self.pair(n=32), f"{EXPERTS}.0.up_proj"
        model = self.model({**pair, f"{up}.weight": ("BF16", [32, 96], weights("BF16", 3072, 5))},
                           "")
        for excludes, kind in ((up, "30"), ("none", "Q4_0")):  # 30: BF16
            both, out = self.folder / "both.gguf", self.folder / "no"
            self.run_qk("quantize", model, both, "--format", "q4_0", "--exclude", excludes,
                        "--force")
            kinds = {name: of for name, (of, _, _) in read_gguf(both).items()}
            self.assertEqual(kinds[f"{GATE_UP}.weight"], "Q4_0")
            self.assertEqual(kinds[f"{up}.weight"], kind)
            self.assertIn(f"{GATE_UP}: the file has {up}.weight too", self.fails(
                4, "convert", both, out, "--to", "compressed-tensors"))
            self.assertFalse(out.exists())
        # The bias alone would be that of a layer which the file does not have.
        stray = f"{EXPERTS}.2.down_proj.bias"
        self.run_qk("quantize", self.model({**pair, stray: ("F32", [96], floats(range(96)))}, ""),
                    both, "--format", "q4_0", "--force")
        self.assertEqual(read_gguf(both)[stray][1], [96])
        self.assertIn(f"the file has {stray} too", self.fails(
            4, "convert", both, out, "--to", "compressed-tensors"))
        self.assertFalse(out.exists())

    def compare(self, model, *options):
        """What quantize says of the layers, and dequantize --report of its result."""
        out, dense = self.folder / f"out{options[-1]}", self.folder / "dense.safetensors"
        done = self.run_json("quantize", model, out, *options[:-1], "--force")
        again = self.run_json("dequantize", out, dense, "--dtype", "f32", "--report", model,
                              "--force")
        self.assertEqual((done["error"], done["layers"]), (again["error"], again["layers"]))
        self.assertEqual({layer["reason"] for layer in again["layers"]}, {""})
        return again

    def test_report_compares_fused_experts(self):
        for dtype, sizes in (("BF16", {"n": 64}), ("F32", {"n": 96, "k": 96}),
                             ("F16", {"experts": 2, "n": 1056, "k": 2048})):
            pair, turn = self.pair(dtype, **sizes), self.transposed(dtype, **sizes)
            count = 3 * pair[GATE_UP][1][0]
            straight = self.compare(self.model(pair, "qwen3_moe"), "--format", "int4", "--group",
                                    "32", "")
            self.assertEqual(len(straight["layers"]), count)
            llama4 = self.model(turn, "llama4", "llama4")
            same = self.compare(llama4, "--format", "int4", "--group", "32", "")
            self.assertEqual(same["layers"], straight["layers"])
            self.compare(llama4, "--format", "nf4", "--nested", "")
            self.compare(self.model(turn, "gpt_oss", "oss"), *GPT_OSS, "")
            both = [self.compare(model, "--format", "q8_0", ".gguf")["layers"]
                    for model in (self.model(pair, ""), self.model(turn, "", "turned"))]
            self.assertEqual(both[0], both[1])
            self.assertEqual(len(both[0]), 2)

    def test_report_of_one_of_a_pair(self):
        """As a shard has it: gpt-oss's are transposed; a square one of others may be either way."""
        straight, turn = self.pair(n=96, k=96), self.transposed(n=96, k=96)
        dense, file = self.folder / "dense.safetensors", self.folder / "out.gguf"
        model = self.model(turn, "gpt_oss")
        whole = {layer["name"]: layer for layer in self.compare(model, *GPT_OSS, "")["layers"]}
        alone = self.write("down.safetensors", safetensors({DOWN: turn[DOWN]}))
        report = self.run_json("dequantize", self.folder / "out", dense, "--dtype", "f32",
                               "--report", alone, "--force")
        found = {layer["name"]: layer for layer in report["layers"]}
        self.assertEqual(found[DOWN], whole[DOWN])
        self.assertEqual(found[GATE_UP]["reason"], "the original has no layer of this name")
        self.run_qk("quantize", self.model(straight, ""), file, "--format", "q8_0")
        self.assertIn("the original has no layer of this name", self.fails(
            1, "dequantize", file, dense, "--report", alone, "--force"))
        pair = self.pair()
        said = self.run_json("quantize", self.model(pair, ""), file, "--format", "q8_0", "--force")
        alone = self.write("down.safetensors", safetensors({DOWN: pair[DOWN]}))
        report = self.run_json("dequantize", file, dense, "--dtype", "f32", "--report", alone,
                               "--force")
        self.assertEqual([layer for layer in report["layers"] if not layer["reason"]],
                         [layer for layer in said["layers"] if layer["name"] == DOWN])

    def test_report_of_experts_that_do_not_belong_together(self):
        pair, turn = self.pair(), self.transposed()
        out, dense = self.folder / "out", self.folder / "dense.safetensors"
        self.run_qk("quantize", self.model(self.singles(pair), ""), out, "--format", "int4",
                    "--group", "32", "--exclude", "none")
        fewer = {name: (dtype, [2, *shape[1:]], data[:len(data) * 2 // 3])
                 for name, (dtype, shape, data) in pair.items()}
        report = self.run_json("dequantize", out, dense, "--report", self.model(fewer, "", "fewer"))
        self.assertEqual({layer["name"]: layer["reason"] for layer in report["layers"]
                          if layer["reason"]},
                         {f"{EXPERTS}.2.{part}": "the original has no layer of this name"
                          for part in ("down_proj", "gate_proj", "up_proj")})
        # In gpt-oss gate and up alternate: their halves are no layers.
        self.assertIn("the original has no layer of this name", self.fails(
            1, "dequantize", out, dense, "--force", "--report", self.model(turn, "gpt_oss", "oss")))
        # Experts of all in one tensor, which is no pair's.
        name = "blk.0.ffn_gate_exps.weight"
        alone = {name: ("F32", [2, 32, 64], floats(range(4096)))}
        one = self.write("alone.safetensors", safetensors({name: joined(alone[name])}))
        self.run_qk("quantize", one, self.folder / "one.gguf", "--format", "q8_0", "--exclude",
                    "none")
        report = self.run_json("dequantize", self.folder / "one.gguf", dense, "--force", "--report",
                               self.write("all.safetensors", safetensors(alone)))
        self.assertEqual(report["error"]["compared_weights"], 4096)


if __name__ == "__main__":
    unittest.main()
