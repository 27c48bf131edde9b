"""torchao's int8, int4 and FP8 tensors, as its own safetensors support writes them.

    python3 golden_torchao.py

Needs requirements.txt and torchao 0.18.0. int4 is in bytes (IntxUnpackedToInt8Tensor): the packed
kinds are made for kernels of GPUs and cannot be written without them.
"""
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch: plain eager arithmetic, no network
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from safetensors.torch import save_file
from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, \
    IntxWeightOnlyConfig, MappingType, PerAxis, PerGroup, quantize_

from golden_common import DATA, linear, save_json

LAYERS = [("model.layers.0.self_attn.q_proj", 24, 96, True),
          ("model.layers.0.mlp.down_proj", 7, 160, False)]
CASES = {
    "torchao_int8": (torch.bfloat16, Int8WeightOnlyConfig(version=2)),
    "torchao_fp8": (torch.bfloat16, Float8WeightOnlyConfig(version=2)),
    "torchao_int4_g32": (torch.bfloat16, IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=PerGroup(32))),
    "torchao_int4_asym_g32": (torch.float16, IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=PerGroup(32), mapping_type=MappingType.ASYMMETRIC)),
    "torchao_int8_channel": (torch.float16, IntxWeightOnlyConfig(
        weight_dtype=torch.int8, granularity=PerAxis(0))),
}


def write(name, dtype, config):
    tensors, truth = {}, {}
    for index, (layer, n, k, bias) in enumerate(LAYERS):
        holder = torch.nn.Sequential(linear(8100 + 13 * index + n, n, k, dtype, bias))
        quantize_(holder, config)
        tensors[f"{layer}.weight"] = holder[0].weight.data
        truth[f"{layer}.weight"] = holder[0].weight.dequantize().to(dtype).contiguous()
        if bias:
            tensors[f"{layer}.bias"] = holder[0].bias.data
    flat, metadata = flatten_tensor_state_dict(tensors)
    (DATA / name).mkdir(exist_ok=True)
    save_file(flat, DATA / name / "model.safetensors", metadata={**metadata, "format": "pt"})
    save_file(truth, DATA / name / "truth.safetensors")
    save_json(name, "config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "torch_dtype": str(dtype).removeprefix("torch."),
        "quantization_config": {"quant_method": "torchao", "modules_to_not_convert": None}})


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for case, (kind, made) in CASES.items():
        write(case, kind, made)
