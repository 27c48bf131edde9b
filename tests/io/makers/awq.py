"""AutoAWQ's quantizer and packers, a layer at a time, with the names and the configuration that
it saves: the package itself opens no model with a transformers of today."""
import torch

from . import golden, is_projection, save_layers

packers = golden("golden_int4")
KINDS = {"awq_gemm": ("int4",), "awq_gemv": ("int4",)}
GROUP = 32


def models(_):
    return "llama", "qwen2_tied", "qwen3_moe"


def make(source, folder, kind):
    pack = packers.pack_awq_gemm if kind == "awq_gemm" else packers.pack_awq_gemv

    def packed(name, weight):
        if not is_projection(name, weight):
            return None
        layer = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        layer.weight.data = weight
        module, truth = pack(layer, GROUP, *packers.awq_parameters(layer, GROUP))
        return module.state_dict(), truth.contiguous()

    config = packers.awq_config(kind.removeprefix("awq_"), GROUP)
    return save_layers(source, folder, packed, config, dtype=torch.float16)
