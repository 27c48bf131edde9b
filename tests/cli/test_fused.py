"""Experts in two dense tensors: as they are, transposed, into gpt-oss's tensors and GGUF's."""
import json
import math
import struct
import unittest
from array import array

from harness import Case, floats, read, safetensors

EXPERTS = "model.layers.0.mlp.experts"
GATE_UP, DOWN = f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"
GPT_OSS = ["--format", "mxfp4", "--dialect", "gpt-oss"]
GGUF_TYPES = {0: ("F32", 1, 4), 2: ("Q4_0", 32, 18), 8: ("Q8_0", 32, 34), 39: ("MXFP4", 32, 17)}
WIDTHS = {"F32": "I", "F16": "H", "BF16": "H"}


def weights(dtype, count, seed):
    """Some that are no multiples of each other, as bytes."""
    some = min(count, 10007)  # a prime: rows and experts differ
    values = [((seed + 7 * i) % 253 - 126) * 2.0 ** (i * 11 % 17 - 12) for i in range(some)]
    words = array("I", floats(values))
    if dtype == "F16":
        words = array("H", struct.pack(f"<{some}e", *values))
    if dtype == "BF16":
        words = array("H", (word >> 16 for word in words))
    return (words * (count // some + 1))[:count].tobytes()


def turned(tensor):
    """[E,k,n] as [E,n,k], or the other way."""
    dtype, (experts, rows, columns), data = tensor
    words = array(WIDTHS[dtype], data)
    size, out = rows * columns, array(WIDTHS[dtype])
    for e in range(experts):
        expert = words[e * size:(e + 1) * size]
        for column in range(columns):
            out += expert[column::columns]
    return dtype, [experts, columns, rows], out.tobytes()


def joined(tensor):
    dtype, (experts, n, k), data = tensor
    return dtype, [experts * n, k], data


def read_gguf(path):
    """{name: (type, shape, bytes)}; of types that are not listed, no bytes."""
    content, at = path.read_bytes(), 24
    count, pairs = struct.unpack_from("<QQ", content, 8)

    def number(form):
        nonlocal at
        value, = struct.unpack_from("<" + form, content, at)
        at += struct.calcsize("<" + form)
        return value

    def text():
        nonlocal at
        size = number("Q")
        at += size
        return content[at - size:at].decode()

    for _ in range(pairs):
        text()
        assert number("I") == 8  # a string
        text()
    found = []
    for _ in range(count):
        name = text()
        shape = [number("Q") for _ in range(number("I"))][::-1]
        found.append((name, shape, number("I"), number("Q")))
    begin, tensors = -(-at // 32) * 32, {}
    for name, shape, kind, offset in found:
        word, codes, size = GGUF_TYPES.get(kind, (str(kind), 1, 0))
        data = content[begin + offset:][:math.prod(shape) // codes * size]
        tensors[name] = (word, shape, data)
    return tensors


class Fused(Case):
    def model(self, tensors, model_type="gpt_oss", name="model"):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        self.write(f"{name}/model.safetensors", safetensors(tensors))
        config = {"model_type": model_type} if model_type else {}
        self.write(f"{name}/config.json", json.dumps(config).encode())
        return folder

    def pair(self, dtype="BF16", experts=3, n=64, k=96):
        """gate_up_proj [E,2n,k] and down_proj [E,k,n]."""
        return {GATE_UP: (dtype, [experts, 2 * n, k], weights(dtype, experts * 2 * n * k, 3)),
                DOWN: (dtype, [experts, k, n], weights(dtype, experts * n * k, 11))}

    def transposed(self, *options, **sizes):
        return {name: turned(tensor) for name, tensor in self.pair(*options, **sizes).items()}

    def as_layers(self, pair):
        """The rows of all experts as a plain layer, under the same name."""
        return {f"{name}.weight": joined(tensor) for name, tensor in pair.items()}

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
            pair, each = self.pair(**sizes), {}
            for part, name, first in (("gate_proj", GATE_UP, 0), ("up_proj", GATE_UP, 1),
                                      ("down_proj", DOWN, 0)):
                dtype, (experts, rows, k), data = pair[name]
                rows //= 2 if name == GATE_UP else 1
                size = 2 * rows * k
                for e in range(experts):
                    at = e * len(data) // experts + first * size
                    each[f"{EXPERTS}.{e}.{part}.weight"] = (dtype, [rows, k], data[at:at + size])
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
        # Other dialects have no experts in one layer: there they are its rows.
        self.run_qk("convert", out, back, "--to", "compressed-tensors")
        self.assertEqual(read(back)[f"{DOWN}.bias"][1], [14])

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
            self.assertEqual(found["experts"], [])
            lines = [line.split("  ") for line in self.run_qk("inspect", model).stdout.splitlines()
                     if "experts" in line]
            cells = [[cell.strip() for cell in line if cell.strip()] for line in lines]
            shapes = ("gate_up_proj 96 x 128, down_proj 64 x 96" if turn else
                      "gate_up_proj 128 x 96, down_proj 96 x 64")
            self.assertEqual(cells, [
                [EXPERTS, "dense", "bf16", f"3 x ({shapes})", "-", "-", "110.6 kB",
                 "no: fused experts, transposed, no layers" if turn else
                 "no: fused experts, no layers"],
                ["model.layers.1.mlp.experts.down_proj", "dense", "f16", "2 x 4 x 8", "-", "-",
                 "128 B", "no: 2 experts in one tensor, no layer"],
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
