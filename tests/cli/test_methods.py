"""What qk says about files of methods and kinds that it does not load: nothing untrue."""
import json
import struct
import unittest

import methods
from harness import GOLDEN, Case, floats, read, safetensors


class Methods(Case):
    def folder_of(self, method):
        folder = self.folder / method.key
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(safetensors(method.tensors))
        for name, content in method.files.items():
            (folder / name).write_text(json.dumps(content))
        return folder

    def check_said(self, method):
        folder, layer, reason = self.folder_of(method), method.layer, method.reason
        found = self.run_json("inspect", folder)
        row, = (row for row in found["layers"] if row["name"] == layer)
        self.assertEqual((row["loadable"], row["reason"], row["method"]),
                         (False, reason, method.name))
        self.assertEqual(found["refused_layers"], 1)
        own = sum(len(t[2]) for name, t in method.tensors.items() if name.startswith(layer))
        self.assertLessEqual(row["bytes"], own)
        if method in methods.FOREIGN:
            self.assertEqual(row["bytes"], own)
        table = self.run_qk("inspect", folder).stdout
        line, = (line for line in table.splitlines() if line.startswith(layer))
        self.assertIn(f"  {method.name}  ", line)
        self.assertTrue(line.endswith(f"  no: {reason}"), line)

        found = self.run_json("verify", folder, code=4)
        self.assertEqual(found["findings"], [{"kind": "refused", "name": layer, "text": reason}])
        self.assertIs(found["sound"], False)
        self.assertEqual(found["refused_layers"], 1)
        text = self.run_qk("verify", folder, code=4).stdout
        self.assertIn(f"refused: {layer}: {reason}\n", text)
        self.assertNotIn("sound", text)

        out = self.folder / "out"
        self.assertEqual(self.fails(4, "dequantize", folder, out),
                         f"qk: {layer}: {reason} (--layer picks others)\n")
        for command in (["quantize", folder, out], ["convert", folder, out, "--to", "awq"],
                        ["multiply", folder], ["multiply", folder, layer]):
            self.assertEqual(self.fails(4, *command), f"qk: {layer}: {reason}\n")

    def test_methods_that_qk_names(self):
        for method in methods.FOREIGN:
            with self.subTest(method.key):
                self.check_said(method)

    def test_kinds_of_its_dialects_that_qk_does_not_load(self):
        for method in methods.REFUSED:
            with self.subTest(method.key):
                self.check_said(method)

    def test_a_method_that_no_tensor_shows(self):
        reason = ('the model is quantized with quant_method "next", which qk does not load: '
                  + methods.GENERAL)
        dense = {"a.weight": ("F32", [2, 2], floats([1, 2, 3, 4]))}
        folder = self.folder / "next"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(safetensors(dense))
        (folder / "config.json").write_text('{"quantization_config": {"quant_method": "next"}}')
        found = self.run_json("inspect", folder)
        self.assertEqual((found["quant_method"], found["quant_method_known"]), ("next", False))
        self.assertIn(reason, self.run_qk("inspect", folder).stdout)
        found = self.run_json("verify", folder, code=4)
        self.assertEqual(found["findings"],
                         [{"kind": "refused", "name": "configuration", "text": reason}])
        self.assertEqual((found["sound"], found["refused_layers"]), (False, 0))
        self.assertIn("no faults, but a model that qk cannot load\n",
                      self.run_qk("verify", folder, code=4).stdout)
        for command in (["dequantize", folder, self.folder / "out"],
                        ["quantize", folder, self.folder / "out"], ["multiply", folder],
                        ["convert", folder, self.folder / "out", "--to", "awq"]):
            self.assertEqual(self.fails(4, *command), f"qk: {reason}\n")
        self.run_qk("multiply", folder, "a", "--repeat", 1)  # a dense layer is what it is

    def test_many_layers_of_one_method_are_one_line(self):
        tensors = {f"l.{i}{suffix}": tensor for i in range(12)
                   for suffix, tensor in methods.QUARK.items()}
        path = self.write("a.safetensors", safetensors(tensors))
        text = self.run_qk("verify", path, code=4).stdout
        self.assertEqual(text.count("refused: "), 1)
        self.assertIn("refused: l.0 and 11 more: MXFP4 (", text)
        self.assertIn("no faults, but 12 layers that qk cannot load\n", text)
        self.assertEqual(len(self.run_json("verify", path, code=4)["findings"]), 12)

    def test_a_known_method_is_known(self):
        for name in ("awq_gemm_g128", "gptq_v2_sym_g32", "ct_int4_sym_g32", "bnb_nf4"):
            found = self.run_json("inspect", GOLDEN / name)
            self.assertIs(found["quant_method_known"], True)
        self.assertEqual(self.run_json("inspect", GOLDEN / "awq_gemm_g128")["quant_method"], "awq")
        self.assertEqual(self.run_json("inspect", GOLDEN / "dense")["quant_method"], "")


class Experts(Case):
    @staticmethod
    def mixture(count, down="F16"):
        """Experts of DeepSeek's FP4, their last projection dense."""
        tensors = {"m.gate.weight": ("F32", [count, 64], floats([1] * 64 * count))}
        for e in range(count):
            for name in ("gate_proj", "up_proj"):
                layer = f"m.experts.{e}.{name}"
                tensors[f"{layer}.weight"] = ("I8", [4, 32], bytes(128))
                tensors[f"{layer}.scale"] = ("F8_E8M0", [4, 2], bytes([127] * 8))
            tensors[f"m.experts.{e}.down_proj.weight"] = (down, [64, 4], bytes(512))
        return tensors

    def test_a_mixture_is_one_line(self):
        path = self.write("a.safetensors", safetensors(self.mixture(12)))
        mixture, = self.run_json("inspect", path)["experts"]
        self.assertEqual((mixture["name"], mixture["experts"], mixture["loadable"]),
                         ("m.experts", 12, True))
        self.assertEqual(mixture["not_quantized"], ["down_proj"])
        self.assertEqual([(p["name"], p["format"], p["shape"]) for p in mixture["projections"]],
                         [("m.experts.*.down_proj", "f16", [12, 64, 4]),
                          ("m.experts.*.gate_proj", "e2m1", [12, 4, 64]),
                          ("m.experts.*.up_proj", "e2m1", [12, 4, 64])])
        lines = [line for line in self.run_qk("inspect", path).stdout.splitlines()
                 if "expert" in line]
        self.assertEqual(len(lines), 1)
        self.assertRegex(lines[0], r"^m\.experts  dense, MXFP4  f16, e2m1  12 x "
                         r"\(down_proj 64 x 4, gate_proj 4 x 64, up_proj 4 x 64\) +-, 32 +-, "
                         r"e8m0 +9\.4 kB  "
                         r"yes; not quantized: down_proj$")

    def test_columns_stay_where_they_are(self):
        """Shapes of three projections are longer than any other cell."""
        tensors = {"model.layers.0.q_proj.weight": ("BF16", [2, 32], bytes(128))}
        for name, n, k in (("down_projection", 1, 1024), ("gate_projection", 1024, 1),
                           ("up_projection", 1024, 1)):
            tensors[f"model.layers.0.mlp.experts.0.{name}.weight"] = ("BF16", [n, k], bytes(2048))
        path = self.write("a.safetensors", safetensors(tensors))
        head, *rows = self.run_qk("inspect", path).stdout.splitlines()[:3]
        shapes = "1 x (down_projection 1 x 1024, gate_projection 1024 x 1, up_projection 1024 x 1)"
        self.assertIn(shapes, rows[1])
        at = head.index("  loads")
        self.assertEqual([row[at:at + 5] for row in rows], ["  yes"] * 2)
        # Of a very long name only its own row sticks out.
        tensors["x" * 200 + ".weight"] = ("BF16", [2, 32], bytes(128))
        path = self.write("b.safetensors", safetensors(tensors))
        self.assertEqual(self.run_qk("inspect", path).stdout.splitlines()[0], head)

    def test_experts_that_differ_are_named(self):
        tensors = self.mixture(3)
        del tensors["m.experts.1.up_proj.weight"], tensors["m.experts.1.up_proj.scale"]
        mixture, = self.run_json("inspect", self.write("a.safetensors",
                                                       safetensors(tensors)))["experts"]
        reason = "up_proj: expert 1 is missing; there is an expert 2"
        self.assertEqual((mixture["loadable"], mixture["reason"]), (False, reason))
        tensors["m.experts.1.up_proj.weight"] = ("F16", [4, 64], bytes(512))
        table = self.run_qk("inspect", self.write("b.safetensors", safetensors(tensors))).stdout
        self.assertIn("  no: up_proj: expert 1 is dense f16 [4,64], expert 0 MXFP4 e2m1 [4,64] in "
                      "groups of 32 with e8m0 scales; one tensor is of one kind\n", table)
        tensors = self.mixture(3)  # without the last: two projections of their own would load
        del tensors["m.experts.2.up_proj.weight"], tensors["m.experts.2.up_proj.scale"]
        mixture, = self.run_json("inspect", self.write("c.safetensors",
                                                       safetensors(tensors)))["experts"]
        self.assertEqual((mixture["experts"], mixture["loadable"], mixture["reason"]),
                         (3, False, "up_proj: 2 experts, down_proj has 3"))

    def test_fused_experts_are_listed_and_stay(self):
        fused = ("BF16", [2, 4, 64], struct.pack("<512H", *[0x3f80] * 512))
        tensors = {"l.0.mlp.experts.gate_up_proj": fused,
                   "l.0.block_sparse_moe.input_linear.weight": fused,
                   "l.0.conv1d.weight": ("F32", [4, 1, 4], floats([1] * 16)),
                   "l.0.up_proj.weight": ("F32", [4, 64], floats([1] * 256))}
        path = self.write("a.safetensors", safetensors(tensors))
        found = self.run_json("inspect", path)
        self.assertEqual([(t["name"], t["shape"], t["bytes"]) for t in found["fused_experts"]],
                         [("l.0.block_sparse_moe.input_linear.weight", [2, 4, 64], 1024),
                          ("l.0.mlp.experts.gate_up_proj", [2, 4, 64], 1024)])
        self.assertEqual(found["fused_expert_bytes"], 2048)
        table = self.run_qk("inspect", path).stdout
        self.assertRegex(table, r"l\.0\.mlp\.experts +- +- +2 x \(gate_up_proj -\) .*no: "
                                r"gate_up_proj: without down_proj, which may be .*\n")
        self.assertIn("2 tensors of fused experts, 2.0 kB; ", table)
        self.assertEqual(self.run_json("verify", path)["fused_experts"], 2)
        self.assertIn("2 tensors of fused experts read as dense\n",
                      self.run_qk("verify", path).stdout)
        out = self.folder / "b.safetensors"
        self.run_qk("quantize", path, out)
        self.assertEqual(read(out)["l.0.mlp.experts.gate_up_proj"], fused)
        self.run_qk("dequantize", out, self.folder / "c.safetensors")
        self.assertEqual(read(self.folder / "c.safetensors")["l.0.mlp.experts.gate_up_proj"], fused)
        bad = dict(tensors, **{"l.0.mlp.experts.gate_up_proj": (*fused[:2], b"\xff" * 1024)})
        found = self.run_json("verify", self.write("d.safetensors", safetensors(bad)), code=1)
        self.assertEqual([f["name"] for f in found["findings"]], ["l.0.mlp.experts.gate_up_proj"])


class Kinds(Case):
    SAVE = "load it where it was made and save it as safetensors (save_pretrained does)"
    TAKE = "take the model's safetensors, from which it was converted"
    AGAIN = "download the file again"
    POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4995584424\n"
    KINDS = [
        ("model.ggml", b"lmgg" + bytes(24), 4, "a GGML file (llama.cpp before GGUF)", TAKE),
        ("pytorch_model.bin", b"PK\3\4" + bytes(60), 4,
         "a zip archive, as PyTorch's .bin and .pt files are", SAVE),
        ("old.pt", b"\x80\2\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.", 4,
         "a pickle of PyTorch (before 1.6)", SAVE),
        ("newer.bin", b"\x80\5\x95" + bytes(60), 4, "a Python pickle", SAVE),
        ("tf_model.h5", b"\x89HDF\r\n\x1a\n" + bytes(40), 4, "an HDF5 file (Keras)", SAVE),
        ("a.npy", b"\x93NUMPY\1\0" + bytes(60), 4, "a NumPy array", SAVE),
        ("a.tflite", b"\x1c\0\0\0TFL3" + bytes(60), 4, "a TensorFlow Lite model", SAVE),
        ("model.onnx", b"\x08\x08\x12\x07pytorch\x1a\x052.1.0" + bytes(40), 4, "an ONNX model",
         SAVE),
        ("model.safetensors.gz", b"\x1f\x8b\x08\0\1\2\3\4" + bytes(40), 4, "a gzip archive",
         "unpack it"),
        ("model.safetensors", POINTER, 3, "a Git LFS pointer, not the file itself",
         "git lfs pull, or a download of the file itself, brings it"),
        ("page.safetensors", b"<!doctype html><html>" + bytes(9), 3, "an HTML page, not a model",
         AGAIN),
        ("error.safetensors", b'{"error":{"code":404}}', 3, "a server's error, not a model", AGAIN),
    ]

    def test_files_are_called_what_they_are(self):
        for name, content, code, kind, instead in self.KINDS:
            with self.subTest(name):
                path = self.write(name, content)
                said = f"qk: {name} is {kind}, which qk does not load: {instead}\n"
                for command in (["inspect", path], ["verify", path], ["multiply", path],
                                ["dequantize", path, self.folder / "out"],
                                ["quantize", path, self.folder / "out"]):
                    self.assertEqual(self.fails(code, *command), said)

    def test_a_directory_of_nothing_else(self):
        for name, content, code, kind, instead in self.KINDS:
            if name.endswith(".gz") or name.count("safetensors"):
                continue
            folder = self.folder / ("of_" + name)
            folder.mkdir()
            (folder / name).write_bytes(content)
            (folder / "config.json").write_text("{}")
            self.assertEqual(self.fails(code, "inspect", folder),
                             f"qk: {name} is {kind}, which qk does not load: {instead}\n")

    def test_an_index_of_pickles(self):
        index = {"weight_map": {"a.weight": "pytorch_model-00001-of-00002.bin"}}
        path = self.write("pytorch_model.bin.index.json", json.dumps(index).encode())
        self.assertIn("names PyTorch's .bin files", self.fails(4, "inspect", path))
        path = self.write("config.json", b'{"model_type": "llama"}')
        self.assertIn("it is no index of a model's files", self.fails(3, "inspect", path))

    def test_a_gzip_header_is_no_gzip_archive(self):
        # A header of 0x00088b1f bytes begins with gzip's two.
        tensors = {"a.weight": ("F32", [1, 2], floats([1, 2]))}
        content = safetensors(tensors)
        size, = struct.unpack("<Q", content[:8])
        header = content[8:8 + size].ljust(0x088b1f)
        path = self.write("a.safetensors", struct.pack("<Q", len(header)) + header + floats([1, 2]))
        self.assertEqual(path.read_bytes()[:2], b"\x1f\x8b")
        self.assertIs(self.run_json("verify", path)["sound"], True)

    def test_downloads_that_ended_early(self):
        content = (GOLDEN / "gptq_v2_sym_g32" / "model.safetensors").read_bytes()
        cut = self.fails(3, "verify", self.write("a.safetensors", content[:-100]))
        self.assertRegex(cut, r"it is cut short, as an unfinished download is \((\d+) bytes of "
                              r"data, the header describes \d+\)")
        header = self.fails(3, "verify", self.write("b.safetensors", content[:50]))
        self.assertIn("does not fit into 50 bytes of file, which is cut short or no safetensors",
                      header)
        text = self.fails(3, "verify", self.write("d.safetensors", b"Entry not\nfound"))
        self.assertEqual(text, 'qk: d.safetensors is a text, no safetensors file: it begins '
                               '"Entry not found"\n')
        zeros = self.fails(3, "verify", self.write("c.safetensors", bytes(4096)))
        self.assertIn("begins with zeros, as an unfinished download does", zeros)


if __name__ == "__main__":
    unittest.main()
