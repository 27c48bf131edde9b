"""ModelOpt calibrates, quantizes and exports the model, in shards, with hf_quant_config.json."""
import warnings
from unittest import mock

import torch
import transformers
from modelopt.torch import quantization
from modelopt.torch.export import export_hf_checkpoint
from modelopt.torch.quantization import tensor_quant
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor
from small_models import TOKENS, tensors_of

warnings.filterwarnings("ignore")
KINDS = {
    "modelopt_nvfp4": ("e2m1", quantization.NVFP4_DEFAULT_CFG),
    "modelopt_fp8": ("e4m3", quantization.FP8_DEFAULT_CFG),
}


def models(_):
    return "llama", "qwen2_tied", "qwen3_moe", "mixtral"


def decoded(tensors, name):
    """One layer by the package's own decoder; of FP8 that is the product with the scale."""
    codes, scale = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"]
    if codes.dtype == torch.float8_e4m3fn:
        return (codes.float() * scale).to(torch.bfloat16)
    shape = torch.Size((codes.shape[0], codes.shape[1] * 2))
    weight = NVFP4QTensor(shape, torch.bfloat16, codes).dequantize(
        torch.bfloat16, scale=scale, double_scale=tensors[f"{name}.weight_scale_2"],
        block_sizes={-1: 16})
    # The package's table has +0 at code 8 and docs/formats.md has -0: that bit is not compared.
    nibbles = torch.stack((codes & 15, codes >> 4), -1).reshape(shape)
    return torch.where(nibbles == 8, -0.0, weight)


def make(source, folder, kind):
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    # The exporter runs the model once to see which layers share an input; FP4's rounding of
    # activations, which that run does too, is written for GPUs and changes no weight.
    with mock.patch.object(tensor_quant, "dynamic_block_quantize_op", lambda x, *_, **__: x):
        model = quantization.quantize(model, KINDS[kind][1], forward_loop=lambda own: own(TOKENS))
        export_hf_checkpoint(model, export_dir=folder, max_shard_size="100KB")
    tensors = tensors_of(folder)
    layers = [key.removesuffix("_scale") for key in tensors if key.endswith(".weight_scale")]
    return {name: decoded(tensors, name.removesuffix(".weight")) for name in layers}
