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
GOLDEN = pathlib.Path(__file__).parents[1] / "golden/data"
TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
# Layers whose rows and columns any of the packages takes, one of zeros and one of tiny weights.
SHAPES = {"model.layers.0.mlp.up_proj": (160, 128), "model.layers.0.mlp.down_proj": (64, 384),
          "model.layers.1.mlp.up_proj": (32, 128), "model.layers.1.mlp.down_proj": (8, 256)}


# GPTQ files of other programs: bits, symmetric, act-order.
GPTQ_FILES = (("gptq_v1_8bit_g32", 8, True, False), ("gptq_v1_8bit_asym_g32", 8, False, False),
              ("gptq_v1_8bit_act_order_g32", 8, True, True),
              ("gptq_v1_8bit_act_order_asym_g32", 8, False, True),
              ("gptq_v2_8bit_g64", 8, True, False), ("gptq_v1_asym_g64", 4, False, False),
              ("gptq_v1_act_order_sym_g32", 4, True, True),
              ("gptq_v1_act_order_asym_g32", 4, False, True),
              ("gptq_v2_act_order_asym_g64", 4, False, True))

# Others', with the type of their scales.
COMPRESSED_FILES = (("torchao_int4_asym_g32", torch.float16), ("torchao_int8", torch.float32),
                    ("torchao_fp8", torch.float32), ("fp8_block_32", torch.float32),
                    ("fp8_block_ue8m0", torch.float32), ("bnb_int8", torch.float32))


def run_qk(*arguments):
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: {done.stderr}")


def same_bits(found, expected):
    found = found.detach().contiguous()
    whole = {2: torch.int16, 4: torch.int32}[expected.element_size()]
    return found.dtype == expected.dtype and torch.equal(found.view(whole), expected.view(whole))


def layers_of(tensors, suffix):
    return {key.removesuffix(suffix) for key in tensors if key.endswith(suffix)}


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

    def check_gptq(self, tensors, section, dense):
        """GPTQModel's module takes these tensors as they are, and decodes them to these weights."""
        from gptqmodel.nn_modules.qlinear.torch import TorchLinear
        from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module
        for name in layers_of(tensors, ".qweight"):
            n, k = dense[name + ".weight"].shape
            module = TorchLinear(bits=section["bits"], group_size=section["group_size"],
                                 sym=section["sym"], desc_act=section["desc_act"],
                                 in_features=k, out_features=n, bias=False)
            for part in ("qweight", "qzeros", "scales", "g_idx"):
                own, tensor = getattr(module, part), tensors[f"{name}.{part}"]
                self.assertEqual((own.dtype, own.shape), (tensor.dtype, tensor.shape), part)
                setattr(module, part, tensor)
            if section["checkpoint_format"] == "gptq":
                convert_gptq_v1_to_v2_format_module(module, section["bits"], torch.int32)
            module.post_init()
            found = module.dequantize_weight().t()
            self.assertTrue(same_bits(found, dense[name + ".weight"]), name)

    def test_gptq(self):
        try:
            import gptqmodel
        except ImportError as error:
            self.skipTest(str(error))
        self.assertTrue(gptqmodel)
        for options in (["--group", "32"], ["--group", "128"]):
            tensors, section, dense = self.quantized(torch.float16, "--format", "int4",
                                                     "--dialect", "gptq-v2", *options)
            self.assertEqual((section["sym"], section["desc_act"], section["checkpoint_format"]),
                             (True, False, "gptq_v2"))
            self.assertEqual(layers_of(tensors, ".qweight"), set(SHAPES))
            self.check_gptq(tensors, section, dense)

    def test_gptq_from_others(self):
        """8 bits, zeros and act-order, by way of compressed-tensors."""
        try:
            import gptqmodel
        except ImportError as error:
            self.skipTest(str(error))
        self.assertTrue(gptqmodel)
        for kind, group in (("int8", "32"), ("int8", "row"), ("int4", "32")):
            for target in ("gptq", "gptq-v2"):
                with self.subTest(kind=kind, group=group, target=target):
                    self.quantized(torch.float16, "--format", kind, "--group", group)
                    tensors, section, dense = self.converted(self.folder / "out", target,
                                                             torch.float16)
                    self.assertEqual(layers_of(tensors, ".qweight"), set(SHAPES))
                    self.assertEqual((section["bits"], section["sym"]), (int(kind[3]), True))
                    self.check_gptq(tensors, section, dense)
        for name, bits, sym, ordered in GPTQ_FILES:
            for target in ("gptq", "gptq-v2"):
                if target == "gptq" and name == "gptq_v2_act_order_asym_g64":
                    continue  # a zero of 0, which v1 does not hold
                with self.subTest(name=name, target=target):
                    self.converted(GOLDEN / name, "compressed-tensors", torch.float16)
                    tensors, section, dense = self.converted(self.folder / "compressed-tensors",
                                                             target, torch.float16)
                    self.assertEqual((section["bits"], section["sym"], section["desc_act"]),
                                     (bits, sym, ordered))
                    self.check_gptq(tensors, section, dense)

    def test_gguf(self):
        for kind in ("q4_0", "q8_0"):
            self.check_gguf(kind, self.folder / "source", self.source(torch.bfloat16))

    def test_gguf_of_fused_experts(self):
        """[E,2n,k] and [E,k,n], as they are and transposed: one tensor of three dimensions."""
        experts, path = "model.layers.0.mlp.experts", self.folder / "experts.safetensors"
        for turned in (False, True):
            weights = {f"{experts}.{name}.weight": (torch.randn(3, n, k) * 0.1).bfloat16()
                       for name, n, k in (("gate_up_proj", 192, 64), ("down_proj", 64, 96))}
            save_file({name.removesuffix(".weight"): (weight.mT if turned else weight).contiguous()
                       for name, weight in weights.items()}, path)
            for kind in ("q4_0", "q8_0"):
                self.check_gguf(kind, path, weights)

    def check_gguf(self, kind, source, weights):
        """The package decodes what qk quantizes to qk's bits, and has the same records."""
        try:
            import gguf
        except ImportError as error:
            self.skipTest(str(error))
        out, dense = self.folder / "out.gguf", self.folder / "dense.safetensors"
        run_qk("quantize", source, out, "--force", "--format", kind)
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
        layers = layers_of(tensors, ".weight_scale")
        self.assertTrue(layers)
        tensors = {key: tensor for key, tensor in tensors.items()
                   if key.rpartition(".")[0] in layers and not key.endswith(".bias")}
        for name in layers:
            n, k = dense[name + ".weight"].shape
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
        for name in layers:
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
        for name, dtype in COMPRESSED_FILES:
            with self.subTest(name=name):
                self.check_compressed(dtype, *self.converted(GOLDEN / name, "compressed-tensors",
                                                             dtype))

    def test_compressed_tensors_from_gptq(self):
        """Act-order only where compressed-tensors is 0.13 or older: later versions have none."""
        try:
            import compressed_tensors
        except ImportError as error:
            self.skipTest(str(error))
        has_order = tuple(map(int, compressed_tensors.__version__.split(".")[:2])) <= (0, 13)
        for name, bits, sym, ordered in GPTQ_FILES:
            if ordered and not has_order:
                continue
            with self.subTest(name=name):
                tensors, section, dense = self.converted(GOLDEN / name, "compressed-tensors",
                                                         torch.float16)
                weights = section["config_groups"]["group_0"]["weights"]
                self.assertEqual((weights["num_bits"], weights["symmetric"], weights["actorder"]),
                                 (bits, sym, "group" if ordered else None))
                self.check_compressed(torch.float16, tensors, section, dense)
        if not has_order:
            self.skipTest(f"compressed-tensors {compressed_tensors.__version__} reads no "
                          "act-order: the other files passed")

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
