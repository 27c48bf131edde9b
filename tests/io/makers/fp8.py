"""FP8 in blocks as DeepSeek-V3's and Qwen3's files have it, by transformers' own operations: with
a GPU it would quantize so while it loads. It leaves a shape that no block divides as it is."""
from unittest import mock

import torch
from transformers import FineGrainedFP8Config
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

from . import is_projection, save_layers

KINDS = {"fp8": ("e4m3", "float"), "fp8_ue8m0": ("e4m3", "ue8m0")}
SAME_MODEL = True


def models(_):
    return "llama", "qwen2_tied", "qwen3_moe"


def decoded(config, codes, scale):
    holder = mock.Mock(quantization_config=config)
    return Fp8Dequantize(holder)._dequantize_one(codes, scale, torch.bfloat16)


def in_blocks(config, weight):
    """Codes, scales and what they are decoded to, or None."""
    made = Fp8Quantize(mock.Mock(quantization_config=config)).convert({"weight": weight})
    if len(made) == 1:
        return None
    codes, scale = made.values()
    return codes, scale, decoded(config, codes, scale)


def make(source, folder, kind):
    config = FineGrainedFP8Config(modules_to_not_convert=["lm_head"], scale_fmt=KINDS[kind][1])

    def quantize(name, tensor):
        made = in_blocks(config, tensor) if is_projection(name, tensor) else None
        return made and ({"weight": made[0], "weight_scale_inv": made[1]}, made[2])

    return save_layers(source, folder, quantize, config.to_dict(), dtype=torch.bfloat16)
