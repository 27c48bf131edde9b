"""DeepSeek-V4 as DeepSeek names its tensors, which transformers saves so: experts of FP4 codes
with E8M0 scales, the other projections FP8 in blocks. compressed-tensors makes the codes,
transformers' operations the blocks and what both are decoded to: it writes no such file itself."""
import torch
from transformers import FineGrainedFP8Config

from . import fp8, golden, save_layers

KINDS = {"deepseek_v4": (None,)}
SAME_MODEL = True
PROJECTIONS = tuple(f".{part}.weight" for part in (
    "wq_a", "wq_b", "wo_a", "wo_b", "w1", "w2", "w3"))


def models(_):
    return ("deepseek_v4",)


def make(source, folder, _):
    config = FineGrainedFP8Config(modules_to_not_convert=["lm_head"], scale_fmt="ue8m0")
    packages = golden("package_quantizers")

    def expert(weight):
        made = packages.mxfp4(weight)
        codes, scale = made["data"].view(torch.int8), made["scale"].view(torch.float8_e8m0fnu)
        return codes, scale, fp8.decoded(config, codes, scale)

    def quantize(name, tensor):
        if not name.endswith(PROJECTIONS):
            return None
        made = expert(tensor) if ".experts." in name else fp8.in_blocks(config, tensor)
        return made and ({"weight": made[0], "scale": made[1]}, made[2])

    return save_layers(source, folder, quantize, {**config.to_dict(), "expert_dtype": "fp4"},
                       dtype=torch.bfloat16)
