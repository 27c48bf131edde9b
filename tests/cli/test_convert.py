"""qk convert: the same values in another dialect, or a sentence about what would be lost."""
import json
import os
import struct
import unittest

from harness import EVERY, GOLDEN, LOADABLE, REFUSED, Case, floats, in_place, read, safetensors


class Convert(Case):
    TARGETS = {"compressed-tensors": "compressed-tensors", "awq": "AutoAWQ gemm",
               "awq-gemv": "AutoAWQ gemv", "gptq": "GPTQ v1", "gptq-v2": "GPTQ v2"}
    # n and k are multiples of 8 in these, and the scales are F16.
    SOURCES = [name for name in LOADABLE
               if name.startswith(("awq", "gptq"))
               and "8bit" not in name and "act_order" not in name]

    def values(self, model):
        """All tensors of the model, its layers dequantized."""
        self.run_qk("dequantize", model, self.folder / "values.safetensors", "--force", "-q")
        return read(self.folder / "values.safetensors")

    def test_the_same_bits_in_every_dialect(self):
        self.assertGreater(len(self.SOURCES), 8 // EVERY)
        for name in self.SOURCES:
            expected = self.values(GOLDEN / name)
            own = {layer["dialect"] for layer in self.run_json("inspect", GOLDEN / name)["layers"]
                   if layer["dialect"] != "dense"}
            for word, dialect in self.TARGETS.items():
                out = self.folder / f"{name}-{word}"
                if dialect in own:
                    self.assertIn("already", self.fails(1, "convert", GOLDEN / name, out, "--to",
                                                        word))
                    continue
                done = self.run_json("convert", GOLDEN / name, out, "--to", word)
                self.assertEqual(done["dialect"], dialect)
                self.assertEqual(self.values(out), expected, f"{name} to {word}")
                self.assertTrue(self.run_json("verify", out)["sound"])
                found = {layer["dialect"] for layer in self.run_json("inspect", out)["layers"]}
                self.assertEqual(found - {"dense"}, {dialect})

    def test_act_order(self):
        """GPTQ and compressed-tensors say of each column which group it is; others have no place
        for that."""
        for name in ("gptq_v2_act_order_asym_g64", "gptq_v1_act_order_sym_g32",
                     "gptq_v1_8bit_act_order_g32"):
            model = GOLDEN / name
            self.assertTrue(self.run_json("inspect", model)["layers"][0]["act_order"], name)
            for options in ((), ("--packed", "--rows", 7), ("--rows", 2, "--mode", "int8")):
                done = self.run_json("multiply", model, *options, "--repeat", 1)
                self.assertLessEqual(done["share_of_bound"], 1, f"{name} {options}")
            for word in ("awq", "awq-gemv"):
                said = self.fails(4, "convert", model, self.folder / "no", "--to", word)
                self.assertIn("int8" if "8bit" in name else "act-order", said)
            out, back = self.folder / f"{name}-ct", self.folder / f"{name}-back"
            self.run_qk("convert", model, out, "--to", "compressed-tensors")
            self.assertTrue(self.run_json("inspect", out)["layers"][0]["act_order"])
            weights = json.loads((out / "config.json").read_text())[
                "quantization_config"]["config_groups"]["group_0"]["weights"]
            self.assertEqual(weights["actorder"], "group")
            self.assertEqual(self.values(out), self.values(model))
            self.run_qk("convert", out, back, "--to", "gptq-v2" if "v2" in name else "gptq")
            self.assertTrue(json.loads((back / "config.json").read_text())[
                "quantization_config"]["desc_act"])
            found, expected = read(back), read(model)
            self.assertEqual(set(found), set(expected))
            for tensor, content in expected.items():
                self.assertEqual(found[tensor], content, f"{name} {tensor}")

    def test_there_and_back_is_the_same_file(self):
        for name, back in (("awq_gemm_g128", "awq"), ("awq_gemv_g64", "awq-gemv"),
                           ("gptq_v2_asym_g128", "gptq-v2"), ("gptq_v1_asym_g64", "gptq")):
            there = self.folder / f"{name}-there"
            self.run_qk("convert", GOLDEN / name, there, "--to", "compressed-tensors", "-q")
            self.run_qk("convert", there, self.folder / name, "--to", back, "-q")
            found = read(self.folder / name)
            expected = read(GOLDEN / name / "model.safetensors")
            self.assertEqual(set(found), set(expected))
            for tensor, content in expected.items():
                self.assertEqual(found[tensor], content, f"{name} {tensor}")

    def test_gguf(self):
        """Integers in groups of 32, without zeros and with F16 scales, are Q4_0 and Q8_0."""
        model = self.folder / "model.safetensors"
        tensors = {name: tensor for name, tensor in read(GOLDEN / "dense").items()
                   if all(size % 32 == 0 for size in tensor[1])}
        model.write_bytes(safetensors(tensors))
        for bits in (4, 8):
            ct, out, back = (self.folder / f"{bits}{end}" for end in ("", ".gguf", "-back"))
            (self.folder / "in").mkdir(exist_ok=True)
            (self.folder / "in/model.safetensors").write_bytes(model.read_bytes())
            (self.folder / "in/config.json").write_text("{}")
            self.run_qk("quantize", self.folder / "in", ct, "--format", f"int{bits}", "--group", 32,
                        "--scales", "f16")
            self.run_qk("convert", ct, out, "--to", "gguf")
            self.assertEqual(self.values(out), self.values(ct))
            self.assertTrue(self.run_json("verify", out)["sound"])
            said = self.run_qk("convert", out, back, "--to", "compressed-tensors").stderr
            self.assertRegex(said, r"\Aqk: config.json has no model_type and no sizes, [^\n]+\n\Z")
            self.assertEqual(read(back), read(ct))
            for source, has in ((out, False), (ct, True)):
                done = self.run_json("dequantize", source, self.folder / "dense", "--force")
                self.assertIs(done["config_of_model"], has)
                for to, more in (("d.safetensors", ()), ("part", ("--layer", "*"))):
                    done = self.run_json("dequantize", source, self.folder / to, "--force", *more)
                    self.assertIs(done.get("config_of_model"), has if to == "part" else None)
            self.beside_gguf(out)
        for name, why in (("auto_round_mixed_groups", "group is 16"), ("bnb_nf4", "evenly spaced"),
                          ("gptq_v1_asym_g32", "not all 8")):
            self.assertIn(why, self.fails(4, "convert", GOLDEN / name, self.folder / "no.gguf",
                                          "--to", "gguf"), name)

    def beside_gguf(self, gguf):
        """A config.json there is not read, whatever the file's name, and never replaced."""
        for name in ("model.gguf", "model.bin"):
            folder, out = self.folder / f"{gguf.stem}-{name[6:]}-in", self.folder / "out"
            folder.mkdir()
            (folder / name).write_bytes(gguf.read_bytes())
            (folder / "config.json").write_text('{"model_type": "llama"}')
            for path in (folder / name, folder):
                said = self.run_qk("dequantize", path, out, "--force").stderr
                self.assertIn("as no config.json is read beside a GGUF file", said)
                self.assertEqual((out / "config.json").read_text().split(), ["{", "}"])
                for more in ((), ("--layer", "*")):
                    self.assertIn("would be replaced",
                                  self.fails(1, "dequantize", path, folder, "--force", *more))
            self.assertEqual((folder / "config.json").read_text(), '{"model_type": "llama"}')
            self.assertEqual(sorted(os.listdir(folder)), ["config.json", name])

    def test_eight_bits(self):
        """compressed-tensors and GPTQ hold each other's, with zeros and without."""
        for name, back in (("bnb_int8", None), ("torchao_int4_asym_g32", None),
                           ("gptq_v1_8bit_asym_g32", "gptq"), ("gptq_v2_8bit_g64", "gptq-v2"),
                           ("gptq_v1_8bit_act_order_asym_g32", "gptq")):
            out = self.folder / name
            self.run_qk("convert", GOLDEN / name, out, "--to", "compressed-tensors")
            self.run_qk("dequantize", GOLDEN / name, self.folder / "a", "--dtype", "f32", "--force")
            self.run_qk("dequantize", out, self.folder / "b", "--dtype", "f32", "--force")
            self.assertEqual(read(self.folder / "a"), read(self.folder / "b"))
            section = json.loads((out / "config.json").read_text())["quantization_config"]
            weights = section["config_groups"]["group_0"]["weights"]
            self.assertEqual((weights["num_bits"], weights["symmetric"]), (8, "asym" not in name))
            if back is None:
                continue
            self.run_qk("convert", out, self.folder / f"{name}-back", "--to", back)
            self.assertEqual(read(self.folder / f"{name}-back"),
                             read(GOLDEN / name / "model.safetensors"), name)
            section = json.loads((self.folder / f"{name}-back/config.json").read_text())
            section = section["quantization_config"]
            self.assertEqual((section["bits"], section["sym"]), (8, "asym" not in name))

    def test_zeros_that_are_all_8_take_no_place(self):
        for name, symmetric in (("gptq_v1_sym_g128", True), ("gptq_v1_asym_g32", False)):
            out = self.folder / name
            self.run_qk("convert", GOLDEN / name, out, "--to", "compressed-tensors", "-q")
            section = json.loads((out / "config.json").read_text())["quantization_config"]
            self.assertEqual(section["config_groups"]["group_0"]["weights"]["symmetric"],
                             symmetric)
            self.assertIn("lm_head", section["ignore"])
            self.assertEqual(any(t.endswith("zero_point") for t in read(out)), not symmetric)

    def test_what_cannot_be_held(self):
        out = self.folder / "out"
        for word in self.TARGETS:
            sentence = self.fails(4, "convert", GOLDEN / "bnb_nf4", out, "--to", word)
            self.assertIn("evenly spaced", sentence)
            self.fails(1, "convert", GOLDEN / "dense", out, "--to", word)
            for name in REFUSED:
                self.fails(4, "convert", GOLDEN / name, out, "--to", word)
            if word != "compressed-tensors":
                sentence = self.fails(4, "convert", GOLDEN / "bnb_int8", out, "--to", word)
                self.assertIn("words of 4" if "gptq" in word else "its codes are int8", sentence)
        self.assertIn("8 codes", self.fails(4, "convert", GOLDEN / "ct_int4_sym_g128", out,
                                            "--to", "gptq"))
        self.fails(2, "convert", GOLDEN / "bnb_nf4", out, "--to", "mlx")
        self.fails(2, "convert", GOLDEN / "bnb_nf4", out)

    def test_a_zero_of_0_is_not_for_v1(self):
        rows = [0.0] * 8 + [float(i) for i in range(8)]  # no value below 0: zeros are 0
        weight = ("F16", [8, 16], b"".join(struct.pack("<e", v) for v in rows) * 8)
        path = self.write("in.safetensors", safetensors({"model.a.weight": weight}))
        source = self.folder / "q"
        self.run_qk("quantize", path, source, "--format", "int4", "--group", "16", "--asymmetric")
        self.assertIn("v2", self.fails(4, "convert", source, self.folder / "out", "--to", "gptq"))
        for word in ("gptq-v2", "awq"):
            self.run_qk("convert", source, self.folder / word, "--to", word)
            self.assertEqual(self.values(self.folder / word), self.values(source))

    @in_place
    def test_in_place_and_without_force(self):
        model = self.folder / "model"
        model.mkdir()
        for name in ("model.safetensors", "config.json"):
            self.write(f"model/{name}", (GOLDEN / "awq_gemm_g64" / name).read_bytes())
        expected = self.values(model)
        self.fails(1, "convert", model, model, "--to", "gptq-v2")
        self.run_qk("convert", model, model, "--to", "gptq-v2", "--force")
        self.assertEqual(self.values(model), expected)


class Recast(Case):
    """What is no integer of 4 bits, and integers whose scales or groups change."""
    # Golden checkpoints, targets that hold them, and the configuration's method and format.
    HELD = {
        "compressed-tensors": (
            "compressed-tensors", "format",
            {"fp8_block_32": "float-quantized", "fp8_block_ue8m0": "float-quantized",
             "bnb_int8": "pack-quantized"}),
        "bitsandbytes": (
            "bitsandbytes", "load_in_8bit",
            {"bnb_nf4_nested": False, "bnb_nf4_nested_half": False, "bnb_fp4_nested": False,
             "ct_int8_channel": True, "ct_int8_tensor": True, "ct_pack8_channel": True}),
        "bitsandbytes-nested": ("bitsandbytes", "bnb_4bit_use_double_quant",
                                {"bnb_nf4": True, "bnb_fp4": True}),
        "deepseek": ("fp8", "expert_dtype", {"ct_mxfp4": "fp4"}),
        "awq-gemv": ("awq", "version", {"ct_int4_sym_g128": "gemv", "ct_int4_asym_g32": "gemv"})}

    def values(self, model):
        self.run_qk("dequantize", model, self.folder / "values.safetensors", "--dtype", "f32",
                    "--force", "-q")
        return read(self.folder / "values.safetensors")

    def model(self, name, config="{}", **tensors):
        folder = self.folder / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(safetensors(
            {key.replace("__", "."): tensor for key, tensor in tensors.items()}))
        (folder / "config.json").write_text(config)
        return folder

    def test_golden_files(self):
        for word, (method, key, names) in self.HELD.items():
            for name, said in names.items():
                out = self.folder / f"{name}-{word}"
                self.run_qk("convert", GOLDEN / name, out, "--to", word, "-q")
                found, expected = self.values(out), self.values(GOLDEN / name)
                self.assertEqual(found, expected)
                self.assertTrue(self.run_json("verify", out)["sound"])
                section = json.loads((out / "config.json").read_text())["quantization_config"]
                self.assertEqual((section["quant_method"], section[key]), (method, said), name)
                self.assertIn("already", self.fails(1, "convert", out, self.folder / "no", "--to",
                                                    word))

    def test_there_and_back(self):
        for name, there, back in (("ct_mxfp4", "deepseek", "compressed-tensors"),
                                  ("bnb_nf4", "bitsandbytes-nested", "bitsandbytes")):
            self.run_qk("convert", GOLDEN / name, self.folder / f"{name}-there", "--to", there)
            self.run_qk("convert", self.folder / f"{name}-there", self.folder / name, "--to", back)
            found, expected = (read(path) for path in
                               (self.folder / name, GOLDEN / name / "model.safetensors"))
            self.assertEqual(set(found), set(expected))
            for tensor, (*described, data) in found.items():
                # Behind an odd number of codes the package leaves half a byte as it was.
                whole = len(data) - (tensor.endswith("v_proj.weight"))
                self.assertEqual((described, data[:whole]),
                                 ([*expected[tensor][:2]], expected[tensor][2][:whole]), tensor)

    def test_mxfp4_of_gguf(self):
        """ggml's code 8 is 0, so that -0 has no place there; its scale 255 is a number."""
        codes = bytes(b for b in range(256) if b % 16 != 8 and b // 16 != 8)
        scales = bytes(range(14))

        def model(name, codes, scales):
            return self.model(name, a__weight_packed=("U8", [len(codes) // 16, 16], codes),
                              a__weight_scale=("U8", [len(codes) // 16, 1], scales))
        source = model("source", codes[:224], scales)
        self.run_qk("convert", source, self.folder / "out.gguf", "--to", "gguf")
        self.assertEqual(self.values(self.folder / "out.gguf"), self.values(source))
        self.run_qk("convert", self.folder / "out.gguf", self.folder / "back", "--to",
                    "compressed-tensors")
        self.assertEqual(read(self.folder / "back"), read(source))
        for name, other, why in (
                ("zeros", (b"\x08" * 16 + codes[:16], b"\x7f\x7f"), "16 of its weights are -0"),
                ("nan", (codes[:32], b"\x7f\xff"), "a scale is NaN")):
            self.assertIn(why, self.fails(4, "convert", model(name, *other),
                                          self.folder / "no.gguf", "--to", "gguf"))
        # A record of MXFP4 whose scale is 255, and one that has ggml's second zero.
        path = self.folder / "out.gguf"
        content = path.read_bytes()
        at = len(content) - 256  # 14 records of 17 bytes, filled up to a multiple of 32
        path.write_bytes(content[:at] + b"\xff" + content[at + 1:])
        self.assertIn("a scale is 2^127", self.fails(4, "convert", path, self.folder / "no", "--to",
                                                     "deepseek"))
        path.write_bytes(content[:at + 1] + b"\x80" + content[at + 2:])
        self.run_qk("convert", path, self.folder / "zero", "--to", "compressed-tensors")
        self.assertEqual(self.values(self.folder / "zero"), self.values(path))

    def test_global_that_multiplies_and_divides(self):
        def model(name, **others):
            codes = ("U8", [2, 16], bytes(range(32)))
            scales = ("F8_E4M3", [2, 2], bytes([0x38, 0x41, 0x01, 0x7e]))
            return self.model(name, a__weight_scale=scales, **{
                "a__weight_packed" if "a__weight_global_scale" in others else "a__weight": codes,
                **others})
        divides = model("divides", a__weight_global_scale=("F32", [1], floats([1024])))
        self.run_qk("convert", divides, self.folder / "there", "--to", "modelopt")
        self.assertEqual(read(self.folder / "there")["a.weight_scale_2"],
                         ("F32", [], floats([2**-10])))
        section = json.loads((self.folder / "there/config.json").read_text())["quantization_config"]
        self.assertEqual((section["quant_method"], section["quant_algo"]),
                         ("modelopt", "W4A16_NVFP4"))
        self.assertEqual(self.values(self.folder / "there"), self.values(divides))
        self.run_qk("convert", self.folder / "there", self.folder / "back", "--to",
                    "compressed-tensors")
        self.assertEqual(read(self.folder / "back"), read(divides))
        for name, word in (("ct_nvfp4", "modelopt"), ("modelopt_nvfp4", "compressed-tensors")):
            self.assertRegex(self.fails(4, "convert", GOLDEN / name, self.folder / "no", "--to",
                                        word),
                             "instead changes at least [1-9][0-9]* of its [0-9]+ different scales")

    def test_zeros_of_8_bits(self):
        """Layers with zeros and without in one model; scales of 0, subnormal and infinite ones."""
        scales, zeros = [0.0, 2**-24, -0.5, float("inf")], bytes([0xfd, 0x80, 0x7f, 0])
        codes = ("I8", [4, 16], bytes(range(100, 164)))

        def model(name, other):
            return self.model(
                name, a__weight=codes, a__weight_scale=("F16", [4, 1], struct.pack("<4e", *scales)),
                a__weight_zero_point=("I8", [4, 1], zeros), b__weight=codes,
                b__weight_scale=other)
        f16 = ("F16", [4, 1], struct.pack("<4e", 1, -0.0, 2**-20, 3))
        for word in ("compressed-tensors", "gptq-v2"):
            source, out = self.folder / f"to-{word}", self.folder / f"is-{word}"
            model(source.name, f16)
            if word == "compressed-tensors":
                self.run_qk("convert", source, self.folder / "words", "--to", "gptq-v2")
                source = self.folder / "words"
            self.run_qk("convert", source, out, "--to", word)
            self.assertEqual(self.values(out), self.values(source), word)
        self.assertIn("zero of 0", self.fails(4, "convert", source, self.folder / "no", "--to",
                                              "gptq"))
        wide = ("F32", [4, 1], floats([1, 2, 3, 1 + 2**-20]))
        self.assertIn("its scale 1.00000095 is no number of the 16 bits", self.fails(
            4, "convert", model("wide", wide), self.folder / "no", "--to", "gptq-v2"))

    def test_scales_and_groups_that_do_not_fit(self):
        out = self.folder / "out"
        wide = ("F32", [64, 512], floats([(i * 7919 % 32749 - 16000) / 9973 * (1 + i // 32)
                                          for i in range(64 * 512)]))
        self.run_qk("quantize", self.write("w.safetensors", safetensors({"a.weight": wide})),
                    self.folder / "nf4", "--block", 32)
        self.assertIn("more than 256 different scales",
                      self.fails(4, "convert", self.folder / "nf4", out, "--to",
                                 "bitsandbytes-nested"))
        tiny = ("BF16", [8, 32], struct.pack("<H", 0x2f80) * 256)  # 2^-32
        self.run_qk("quantize", self.write("t.safetensors", safetensors({"a.weight": tiny})),
                    self.folder / "int4", "--format", "int4", "--group", 32)
        self.assertRegex(self.fails(4, "convert", self.folder / "int4", out, "--to", "awq"),
                         "its scales are bf16, and one of them, [0-9.e-]+, is no f16 number")
        no_scb = struct.pack("<I", 0x3c010244)
        eight = self.model("int8", a__weight=("I8", [1, 16], bytes(range(16))),
                           a__weight_scale=("F32", [1, 1], no_scb))
        self.assertIn("none gives the scale", self.fails(4, "convert", eight, out, "--to",
                                                         "bitsandbytes"))
        self.assertIn("one scale a row", self.fails(4, "convert", GOLDEN / "ct_int8_g64", out,
                                                    "--to", "bitsandbytes"))
        for name, word, why in (("ct_fp8_tensor", "gguf", "e4m3"),
                                ("ct_fp8_tensor", "modelopt", "e4m3"),
                                ("deepseek_v4", "compressed-tensors", "one format for all"),
                                ("ct_nvfp4", "deepseek", "e2m1 with e4m3 scales"),
                                ("gptq_v1_8bit_asym_g32", "bitsandbytes", "minima")):
            self.assertIn(why, self.fails(4, "convert", GOLDEN / name, self.folder / "no.gguf",
                                          "--to", word))


if __name__ == "__main__":
    unittest.main()
