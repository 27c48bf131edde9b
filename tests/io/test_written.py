"""What qk quantize and convert write is dequantized by the packages, to the same bits.

    QK_COMMAND=PATH/TO/qk python3 test_written.py

Needs torch, safetensors and, each for its own case, compressed-tensors, AutoAWQ, GPTQModel
(their packing code alone: see tests/golden/requirements-nodeps.txt) and gguf, so it runs before a
release and not in CI. A case whose package is not there says so.
"""
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch: plain eager arithmetic
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
try:
    import torch
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

COMMAND = shlex.split(os.environ["QK_COMMAND"])
TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
# Layers whose rows and columns any of the packages takes, one of zeros and one of tiny weights.
SHAPES = {"model.layers.0.mlp.up_proj": (160, 128), "model.layers.0.mlp.down_proj": (64, 384),
          "model.layers.1.mlp.up_proj": (32, 128), "model.layers.1.mlp.down_proj": (8, 256)}


def run_qk(*arguments):
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: {done.stderr}")


def same_bits(found, expected):
    found = found.detach().contiguous()
    whole = {2: torch.int16, 4: torch.int32}[expected.element_size()]
    return found.dtype == expected.dtype and torch.equal(found.view(whole), expected.view(whole))


class Written(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def source(self, dtype):
        torch.manual_seed(3)
        source = self.folder / "source"
        source.mkdir(exist_ok=True)
        weights = {name + ".weight": (torch.randn(shape) * 0.1).to(dtype)
                   for name, shape in SHAPES.items()}
        weights["model.layers.1.mlp.up_proj.weight"][:8] = 0
        weights["model.layers.1.mlp.down_proj.weight"] *= 1e-3
        save_file(weights, source / "model.safetensors")
        (source / "config.json").write_text(json.dumps(
            {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}))
        return weights

    def quantized(self, dtype, *options, decoded=None):
        """The tensors, the configuration, and the weights that qk decodes them to."""
        self.source(dtype)
        source = self.folder / "source"
        out, dense = self.folder / "out", self.folder / "dense"
        run_qk("quantize", source, out, "--force", *options)
        run_qk("dequantize", out, dense, "--force", "--dtype", TYPES[decoded or dtype])
        section = json.loads((out / "config.json").read_text())["quantization_config"]
        return (load_file(out / "model.safetensors"), section,
                load_file(dense / "model.safetensors"))

    def test_auto_awq(self):
        try:
            from awq.utils.packing_utils import dequantize_gemm
        except ImportError as error:
            self.skipTest(str(error))
        for options in (["--group", "32"], ["--group", "128", "--asymmetric"]):
            tensors, section, dense = self.quantized(torch.float16, "--format", "int4",
                                                     "--dialect", "awq", *options)
            self.assertEqual((section["quant_method"], section["version"]), ("awq", "gemm"))
            for name in SHAPES:
                found = dequantize_gemm(tensors[name + ".qweight"], tensors[name + ".qzeros"],
                                        tensors[name + ".scales"], 4, section["group_size"])
                self.assertTrue(same_bits(found.t(), dense[name + ".weight"]), name)

    def test_gptq(self):
        try:
            from gptqmodel.nn_modules.qlinear.torch import TorchLinear
        except ImportError as error:
            self.skipTest(str(error))
        for options in (["--group", "32"], ["--group", "128"]):
            tensors, section, dense = self.quantized(torch.float16, "--format", "int4",
                                                     "--dialect", "gptq-v2", *options)
            self.assertEqual((section["sym"], section["desc_act"], section["checkpoint_format"]),
                             (True, False, "gptq_v2"))
            for name, (n, k) in SHAPES.items():
                module = TorchLinear(bits=4, group_size=section["group_size"], sym=True,
                                     desc_act=False, in_features=k, out_features=n, bias=False)
                own = {part: tensors[f"{name}.{part}"]
                       for part in ("qweight", "qzeros", "scales", "g_idx")}
                for part, tensor in own.items():
                    self.assertEqual(getattr(module, part).shape, tensor.shape, part)
                    setattr(module, part, tensor)
                module.post_init()
                found = module.dequantize_weight().t()
                self.assertTrue(same_bits(found, dense[name + ".weight"]), name)

    def test_gguf(self):
        try:
            import gguf
        except ImportError as error:
            self.skipTest(str(error))
        for kind in ("q4_0", "q8_0"):
            weights = self.source(torch.bfloat16)
            out, dense = self.folder / "out.gguf", self.folder / "dense.safetensors"
            run_qk("quantize", self.folder / "source", out, "--force", "--format", kind)
            run_qk("dequantize", out, dense, "--force", "--dtype", "f32")
            decoded, found = load_file(dense), gguf.GGUFReader(str(out)).tensors
            self.assertEqual({tensor.name for tensor in found}, set(weights))
            for tensor in found:
                expected = decoded[tensor.name]
                self.assertEqual(tensor.tensor_type.name.lower(), kind)
                self.assertEqual(tuple(reversed(tensor.shape.tolist())), tuple(expected.shape))
                values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type))
                self.assertTrue(same_bits(values.reshape(expected.shape), expected), tensor.name)
                records = gguf.quants.quantize(weights[tensor.name].float().numpy(),
                                               tensor.tensor_type)
                self.assertEqual(records.tobytes(), tensor.data.tobytes(), tensor.name)

    def check_compressed(self, dtype, tensors, section, dense):
        """The package has tensors of these types and shapes, and decodes ours to these weights."""
        from compressed_tensors.compressors import ModelCompressor
        from compressed_tensors.quantization import QuantizationConfig, \
            apply_quantization_config
        config = QuantizationConfig(**section)
        model = torch.nn.Module()
        for name, (n, k) in SHAPES.items():
            layer = torch.nn.Linear(k, n, bias=False, dtype=dtype)
            model.add_module(name.replace(".", "/"), layer)
        apply_quantization_config(model, config)
        compressor = ModelCompressor(quantization_config=config)
        compressor.compress_model(model)
        own = {name.replace("/", "."): tensor
               for name, tensor in model.state_dict().items()}
        self.assertEqual({name: (tensor.dtype, tensor.shape)
                          for name, tensor in own.items()},
                         {name: (tensor.dtype, tensor.shape)
                          for name, tensor in tensors.items()})
        for name, layer in model.named_children():
            for part in dict(layer.named_parameters()) | dict(layer.named_buffers()):
                key = f"{name.replace('/', '.')}.{part}"
                if key in tensors:
                    getattr(layer, part).data = tensors[key]
        compressor.decompress_model(model)
        for name in SHAPES:
            found = model.get_submodule(name.replace(".", "/")).weight.data
            self.assertTrue(same_bits(found, dense[name + ".weight"]), name)

    def test_compressed_tensors(self):
        try:
            import compressed_tensors
        except ImportError as error:
            self.skipTest(str(error))
        self.assertTrue(compressed_tensors)
        for options in (["int4", "--group", "32"], ["int4", "--group", "row"],
                        ["int8"], ["int8", "--group", "32"], ["mxfp4"], ["nvfp4"]):
            for dtype in (torch.bfloat16, torch.float16, torch.float32):
                with self.subTest(options=options, dtype=dtype):
                    # The package decodes FP4 in bf16, whatever the weights were.
                    decoded = torch.bfloat16 if "fp4" in options[0] else dtype
                    tensors, section, dense = self.quantized(dtype, "--format", *options,
                                                             decoded=decoded)
                    self.check_compressed(dtype, tensors, section, dense)

    def converted(self, source, target, dtype):
        out, dense = self.folder / target, self.folder / "dense"
        run_qk("convert", source, out, "--force", "--to", target)
        run_qk("dequantize", out, dense, "--force", "--dtype", TYPES[dtype])
        section = json.loads((out / "config.json").read_text())["quantization_config"]
        return (load_file(out / "model.safetensors"), section,
                load_file(dense / "model.safetensors"))

    def test_compressed_tensors_from_others(self):
        try:
            import compressed_tensors
        except ImportError as error:
            self.skipTest(str(error))
        self.assertTrue(compressed_tensors)
        self.quantized(torch.bfloat16, "--format", "mxfp4")
        self.converted(self.folder / "out", "deepseek", torch.bfloat16)
        self.check_compressed(torch.bfloat16, *self.converted(
            self.folder / "deepseek", "compressed-tensors", torch.bfloat16))

    def test_bitsandbytes_from_others(self):
        """Nested scales to plain ones and back, and integers of compressed-tensors as LLM.int8."""
        try:
            import bitsandbytes.functional as bnb
        except ImportError as error:
            self.skipTest(str(error))
        for kind in ("nf4", "fp4"):
            self.quantized(torch.bfloat16, "--format", kind, "--nested")
            tensors, section, dense = self.converted(self.folder / "out", "bitsandbytes",
                                                     torch.bfloat16)
            self.assertEqual((section["bnb_4bit_quant_type"],
                              section["bnb_4bit_use_double_quant"]), (kind, False))
            for name in SHAPES:
                start = name + ".weight."
                state = bnb.QuantState.from_dict(
                    {key[len(name) + 1:]: tensor for key, tensor in tensors.items()
                     if key.startswith(start)}, device="cpu")
                found = bnb.dequantize_4bit(tensors[name + ".weight"], state)
                self.assertTrue(same_bits(found, dense[name + ".weight"]), name)
        self.quantized(torch.bfloat16, "--format", "int8")
        tensors, section, dense = self.converted(self.folder / "out", "bitsandbytes",
                                                 torch.float32)
        self.assertTrue(section["load_in_8bit"])
        for name in SHAPES:
            # As MatMul8bitFp computes it.
            scale = tensors[name + ".SCB"].unsqueeze(1).mul(1.0 / 127.0)
            self.assertTrue(same_bits(tensors[name + ".weight"].float().mul_(scale),
                                      dense[name + ".weight"]), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # with the reason of each skip
