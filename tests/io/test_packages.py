"""Models of 8 bits that the packages themselves made go through qk and keep their weights' bits.

    QK_COMMAND=PATH/TO/qk python3 test_packages.py

Every model is small and of random weights of a fixed seed; nothing is downloaded. It is sharded or
in one file, with biases, with a tied head, or of experts. qk inspects and verifies it, dequantizes
it, and multiplies by one layer; transformers loads what qk wrote, whose weights must be those that
the package itself dequantizes to. Needs torch, transformers, accelerate, bitsandbytes and
compressed-tensors, and gptqmodel for GPTQ, so it runs before a release and not in CI.
"""
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch: plain eager arithmetic
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
try:
    import accelerate  # noqa: F401  (bitsandbytes needs it inside transformers)
    import bitsandbytes
    import compressed_tensors
    import torch
    import transformers
    from bitsandbytes.autograd._functions import MatMul8bitFp
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, \
        apply_quantization_config
    from compressed_tensors.quantization.utils import calculate_qparams
    from safetensors.torch import load_file, save_file
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

try:
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.quantization.config import QuantizeConfig
    from gptqmodel.quantization.quantizer import Quantizer
except ImportError:
    TorchLinear = None

COMMAND = shlex.split(os.environ["QK_COMMAND"])
SMALL = {"vocab_size": 96, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
         "head_dim": 32, "initializer_range": 0.1}
# head_dim 20: rows and columns of the projections that no block of 128 divides.
MODELS = {
    "llama": transformers.LlamaConfig(**SMALL),
    "llama_odd": transformers.LlamaConfig(**{**SMALL, "head_dim": 20, "intermediate_size": 200}),
    "qwen2_tied": transformers.Qwen2Config(**SMALL, tie_word_embeddings=True),  # with biases
    "qwen3_moe": transformers.Qwen3MoeConfig(**SMALL, moe_intermediate_size=128, num_experts=4,
                                             num_experts_per_tok=2),
}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
BLOCK = [128, 128]
COMPRESSED = {  # the format, and the weights of its config group
    "pack_g32": ("pack-quantized", {**INT8, "strategy": "group", "group_size": 32}),
    "pack_asymmetric": ("pack-quantized", {**INT8, "symmetric": False, "strategy": "group",
                                           "group_size": 64}),
    "pack_channel": ("pack-quantized", {**INT8, "strategy": "channel"}),
    "int_channel": ("int-quantized", {**INT8, "strategy": "channel"}),
    "int_asymmetric": ("int-quantized", {**INT8, "symmetric": False, "strategy": "channel"}),
    "int_tensor": ("int-quantized", {**INT8, "strategy": "tensor"}),
    "float_tensor": ("float-quantized", {**FP8, "strategy": "tensor"}),
    "float_channel": ("float-quantized", {**FP8, "strategy": "channel"}),
    "float_block": ("float-quantized", {**FP8, "strategy": "block", "block_structure": BLOCK}),
}


def run_qk(*arguments):
    done = subprocess.run([*COMMAND, *map(str, arguments), "--json"], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: {done.stderr} {done.stdout[-2000:]}")
    return json.loads(done.stdout)


def tensors_of(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def observe(module):
    """Scales of a layer from its smallest and largest weights, by the package's own rule."""
    args, weight = module.quantization_scheme.weights, module.weight.data
    n, k = weight.shape
    rows, columns = {"tensor": (n, k), "channel": (1, k), "group": (1, args.group_size or k),
                     "block": tuple(args.block_structure or (1, k))}[args.strategy]
    pad = torch.nn.functional.pad(weight, (0, -k % columns, 0, -n % rows))
    blocks = pad.reshape(pad.shape[0] // rows, rows, pad.shape[1] // columns, columns)
    scale, zero = calculate_qparams(blocks.amin((1, 3)), blocks.amax((1, 3)), args)
    module.weight_scale.data = scale.reshape(module.weight_scale.shape).to(weight.dtype)
    if not args.symmetric:
        zeros = module.weight_zero_point
        zeros.data = zero.reshape(zeros.shape).to(zeros.dtype)


def compressed(source, folder, form, weights):
    """The model as compressed-tensors saves it, and the weights as it decompresses them."""
    group = {"targets": ["Linear"], "weights": weights}
    if form != "pack-quantized":  # weights and activations
        group["input_activations"] = {"num_bits": 8, "type": weights["type"], "strategy": "token",
                                      "dynamic": True}
    config = QuantizationConfig(config_groups={"group_0": group}, format=form,
                                quant_method="compressed-tensors", ignore=["lm_head"],
                                quantization_status=QuantizationStatus.FROZEN)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    apply_quantization_config(model, config)
    quantized = {name: module for name, module in model.named_modules()
                 if getattr(module, "quantization_scheme", None) is not None}
    for module in quantized.values():
        observe(module)
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    folder.mkdir()
    save_file({name: value.clone() for name, value in model.state_dict().items()
               if name != "lm_head.weight" or not model.config.tie_word_embeddings},
              folder / "model.safetensors")
    model.config.save_pretrained(folder)
    config.quantization_status = QuantizationStatus.COMPRESSED
    compressor.update_config(str(folder))
    compressor.decompress_model(model)
    return {f"{name}.weight": module.weight.data for name, module in quantized.items()}


def llm_int8(source, folder):
    """Saved by transformers; the weights as bitsandbytes has them where it multiplies by them."""
    config = transformers.BitsAndBytesConfig(load_in_8bit=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, quantization_config=config, device_map="cpu", dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="100KB")
    truth = {}
    for name, module in model.named_modules():
        if not isinstance(module, bitsandbytes.nn.Linear8bitLt):
            continue
        state = bitsandbytes.autograd._functions.MatmulLtState()
        state.CB, state.SCB, state.has_fp16_weights = module.weight.data, module.weight.SCB, False
        x = torch.zeros(1, module.in_features, dtype=torch.bfloat16)
        linear = torch.nn.functional.linear
        with mock.patch.object(torch.nn.functional, "linear", wraps=linear) as product:
            MatMul8bitFp.apply(x, module.weight, None, None, state)
        truth[f"{name}.weight"] = product.call_args.args[1]
    return truth


def fp8(source, folder):
    """In blocks as DeepSeek-V3's and Qwen3's, by transformers' own operations: with a GPU it would
    quantize so while it loads. It leaves a shape that no block divides as it is."""
    config = transformers.FineGrainedFP8Config(modules_to_not_convert=["lm_head"])
    holder = mock.Mock(quantization_config=config)
    tensors, truth = {}, {}
    for name, value in tensors_of(source).items():
        linear = name.endswith("_proj.weight")
        made = Fp8Quantize(holder).convert({name: value}) if linear else {name: value}
        tensors.update(made)
        if len(made) == 2:
            weight, scale = made.values()
            truth[name] = Fp8Dequantize(holder)._dequantize_one(weight, scale, torch.bfloat16)
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    settings = json.loads((source / "config.json").read_text())
    settings["quantization_config"] = config.to_dict()
    (folder / "config.json").write_text(json.dumps(settings))
    return truth


def gptq_parameters(linear, config):
    """Scales and zeros of GPTQModel's own quantizer, without its search for better codes."""
    scales, zeros = [], []
    for start in range(0, linear.in_features, config.group_size):
        quantizer = Quantizer(qcfg=config)
        quantizer.configure(perchannel=True)
        quantizer.find_params(linear.weight.data[:, start:start + config.group_size], weight=True)
        scales.append(quantizer.scale.reshape(-1, 1))
        zeros.append(quantizer.zero.reshape(-1, 1))
    return torch.cat(scales, 1).half().float(), torch.cat(zeros, 1)


def gptq(source, folder, sym, act_order):
    """Each layer packed by GPTQModel, and the weights as its module dequantizes them."""
    config = QuantizeConfig(bits=8, group_size=32, desc_act=act_order, sym=sym, format="gptq_v2",
                            offload_to_disk=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float16)
    tensors = {name: value.clone() for name, value in model.state_dict().items()
               if name != "lm_head.weight" or not model.config.tie_word_embeddings}
    truth = {}
    for name, linear in model.named_modules():
        if not isinstance(linear, torch.nn.Linear) or name == "lm_head":
            continue
        linear = linear.float()
        k = linear.in_features
        g_idx = torch.arange(k, dtype=torch.int32) // config.group_size
        if act_order:
            g_idx = g_idx[torch.randperm(k, generator=torch.Generator().manual_seed(7))]
        scales, zeros = gptq_parameters(linear, config)
        step, zero = scales[:, g_idx.long()], zeros[:, g_idx.long()]
        codes = torch.clamp(torch.round(linear.weight.data / step) + zero, 0, 255)
        linear.weight.data = (codes - zero) * step
        module = TorchLinear(bits=8, group_size=config.group_size, sym=sym, desc_act=act_order,
                             in_features=k, out_features=linear.out_features,
                             bias=linear.bias is not None)
        module.pack_original(linear, scales, zeros, g_idx)
        module.post_init()
        del tensors[f"{name}.weight"]
        for part in ("qweight", "qzeros", "scales", "g_idx"):
            tensors[f"{name}.{part}"] = getattr(module, part).clone()
        truth[f"{name}.weight"] = module.dequantize_weight().t().contiguous()
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    settings = json.loads((source / "config.json").read_text())
    settings.update(dtype="float16", quantization_config=config.to_dict())
    (folder / "config.json").write_text(json.dumps(settings, default=str))
    return truth


class EightBits(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        for name, config in MODELS.items():
            torch.manual_seed(11)
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
            with torch.no_grad():
                for value in model.parameters():
                    value.copy_(torch.randn(value.shape) * 0.1 + (value.dim() == 1))
            model.save_pretrained(cls.folder / name)

    def goes_through(self, name, truth):
        """One model, whose quantized layers are those of the truth."""
        folder, twin = self.folder / name, self.folder / f"{name}-dense"
        layers = {f"{row['name']}.weight": row for row in run_qk("inspect", folder)["layers"]}
        for weight in truth:
            self.assertTrue(layers[weight]["loadable"], layers[weight])
        self.assertGreater(len(truth), 0)
        self.assertIs(run_qk("verify", folder)["sound"], True)
        run_qk("dequantize", folder, twin)
        found = tensors_of(twin)
        for weight, expected in truth.items():
            self.assertTrue(same_bits(found[weight], expected), f"{name} {weight}")
        self.assertFalse([key for key in found if key.endswith(("scale", "scale_inv", "SCB"))])
        product = run_qk("multiply", folder, next(iter(truth)).removesuffix(".weight"),
                         "--rows", 3, "--repeat", 1)
        self.assertTrue(product)
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            twin, dtype=torch.bfloat16, output_loading_info=True)
        for key in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            self.assertFalse(report.get(key), f"{name} {key}")
        with torch.no_grad():
            logits = model(torch.arange(24).reshape(2, 12) * 7 % 96).logits
        self.assertTrue(torch.isfinite(logits).all())
        print(f"{name:28} {len(truth):3} layers, every bit", flush=True)

    def test_compressed_tensors(self):
        for model in ("llama", "llama_odd", "qwen2_tied"):
            for name, (form, weights) in COMPRESSED.items():
                if weights.get("group_size") and model == "llama_odd":
                    continue  # the package wants whole groups
                with self.subTest(model=model, format=name):
                    folder = self.folder / f"{model}-{name}"
                    truth = compressed(self.folder / model, folder, form, weights)
                    self.goes_through(folder.name, truth)

    def test_llm_int8(self):
        for model in ("llama", "llama_odd", "qwen2_tied"):
            with self.subTest(model=model):
                folder = self.folder / f"{model}-int8"
                self.goes_through(folder.name, llm_int8(self.folder / model, folder))

    @unittest.skipIf(TorchLinear is None, "gptqmodel is not there")
    def test_gptq(self):
        for model in ("llama", "qwen2_tied"):
            for kind, sym, act_order in (("gptq", True, False), ("gptq_zeros", False, False),
                                         ("gptq_act_order", True, True)):
                with self.subTest(model=model, kind=kind):
                    folder = self.folder / f"{model}-{kind}"
                    self.goes_through(folder.name,
                                      gptq(self.folder / model, folder, sym, act_order))

    def test_fp8(self):
        for model in ("llama", "qwen2_tied", "qwen3_moe"):
            with self.subTest(model=model):
                folder = self.folder / f"{model}-fp8"
                self.goes_through(folder.name, fp8(self.folder / model, folder))


if __name__ == "__main__":
    print(f"transformers {transformers.__version__}, bitsandbytes {bitsandbytes.__version__}, "
          f"compressed-tensors {compressed_tensors.__version__}, torch {torch.__version__}")
    transformers.logging.set_verbosity_error()
    unittest.main()
