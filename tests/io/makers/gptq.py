"""GPTQModel calibrates, quantizes and saves the model, in shards."""
import contextlib
import logging
import os

os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")  # its pools want two, whatever the machine has
import torch
from gptqmodel import BACKEND, GPTQModel, QuantizeConfig
from gptqmodel.nn_modules.qlinear.torch import TorchLinear

from . import add_tokenizer

logging.disable(logging.WARNING)
ORDER = {"desc_act": True, "act_group_aware": False}
PLAIN = {"desc_act": False}
KINDS = {
    "gptq_v1": ("int4", {"bits": 4, "format": "gptq", **PLAIN}),
    "gptq_v2": ("int4", {"bits": 4, "format": "gptq_v2", "sym": False, **PLAIN}),
    "gptq_act_order": ("int4", {"bits": 4, "format": "gptq", **ORDER}),
    "gptq_v2_act_order": ("int4", {"bits": 4, "format": "gptq_v2", "sym": False, **ORDER}),
    "gptq_8bit": ("int8", {"bits": 8, "format": "gptq", **PLAIN}),
    "gptq_8bit_act_order": ("int8", {"bits": 8, "format": "gptq", **ORDER}),
}


def models(kind):
    """One kind with experts: each of their layers takes the package seconds."""
    return ("llama", "qwen2_tied") + (("qwen3_moe",) if kind == "gptq_v1" else ())


def make(source, folder, kind):
    add_tokenizer(source)
    config = QuantizeConfig(group_size=32, offload_to_disk=False, device="cpu", **KINDS[kind][1])
    model = GPTQModel.load(str(source), config)
    rows = [torch.arange(32).reshape(1, 32) * (step + 3) % 96 for step in range(16)]
    with contextlib.chdir(source):  # it writes a log where it runs
        model.quantize([{"input_ids": row, "attention_mask": torch.ones_like(row)}
                        for row in rows], batch_size=1)
    model.save(str(folder), max_shard_size="100KB")
    model = GPTQModel.load(str(folder), device="cpu", backend=BACKEND.GPTQ_TORCH,
                           dtype=torch.float16)  # that of the scales in the file
    return {f"{name}.weight": module.dequantize_weight().t().contiguous()
            for name, module in model.model.named_modules() if isinstance(module, TorchLinear)}
