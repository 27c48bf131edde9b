"""Quantized modules of other packages, read as qk reads their files: bit for bit.

A module's state becomes a checkpoint in memory, with the configuration that its package would
write, so that one reader knows each dialect.
"""
from __future__ import annotations

import ctypes
import json
from typing import Any

import torch

from .._abi import lib
from .._checkpoint import Checkpoint
from .._files import Message
from .._linear import Layer

_LAYER = "layer"  # of the checkpoint's only one


def config_of(module: torch.nn.Module) -> dict[str, Any] | None:
    """The quantization_config that a file of this module would have; None of other modules."""
    kind = type(module)
    if kind.__module__.startswith("bitsandbytes."):
        return _bitsandbytes(module)
    if hasattr(module, "qweight") and hasattr(module, "scales"):
        return _packed_words(module)
    if getattr(module, "quantization_scheme", None) is not None:
        return _compressed_tensors(module)
    return None


def layer_of(module: torch.nn.Module, config: dict[str, Any]) -> Layer:
    """The module's weight and bias; raises with the reader's sentence where qk cannot hold it."""
    from safetensors.torch import save  # which every package here stands on
    state = {f"{_LAYER}.{name}": value.detach().cpu().contiguous()
             for name, value in module.state_dict().items() if isinstance(value, torch.Tensor)}
    words = state.get(f"{_LAYER}.qweight")
    if words is not None and words.dtype != torch.int32:
        raise ValueError("its package has rearranged the weight for a kernel, as some do at the "
                         "first call: replace the layer before it")
    if config["quant_method"] == "bitsandbytes":
        state.pop(f"{_LAYER}.weight_format", None)
    stored = save(state)
    text = json.dumps({"quantization_config": config}).encode()
    checkpoint = Checkpoint.__new__(Checkpoint)
    checkpoint._context, checkpoint._flags, checkpoint.path = None, 0, "memory"
    checkpoint._what, checkpoint._handle = "checkpoint in memory", None
    out = ctypes.c_void_p()
    Message().call(lib.qk_checkpoint_open_memory, stored, len(stored), text, len(text), None,
                   ctypes.byref(out))
    checkpoint._handle = out.value
    with checkpoint:
        return checkpoint[_LAYER]


def _bitsandbytes(module: Any) -> dict[str, Any] | None:
    name = type(module).__name__
    if name in ("Linear4bit", "LinearNF4", "LinearFP4"):
        return {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False,
                "bnb_4bit_quant_type": module.weight.quant_type,
                "bnb_4bit_use_double_quant": module.weight.compress_statistics}
    if name == "Linear8bitLt":
        return {"quant_method": "bitsandbytes", "load_in_4bit": False, "load_in_8bit": True}
    return None


def _packed_words(module: Any) -> dict[str, Any]:
    """AWQ and GPTQ, told apart by which dimension is packed."""
    bits = int(getattr(module, "bits", getattr(module, "w_bit", 4)))
    group = int(getattr(module, "group_size", -1))
    per_word = 32 // bits
    k = int(module.in_features)
    n = int(module.out_features)
    if tuple(module.qweight.shape) == (k // per_word, n) and module.scales.shape[-1] == n:
        version = _zeros_version(module)
        return {"quant_method": "gptq", "bits": bits, "group_size": group,
                "desc_act": bool(getattr(module, "desc_act", True)),
                "sym": bool(getattr(module, "sym", False)),
                "checkpoint_format": "gptq_v2" if version == 2 else "gptq"}
    gemm = module.qweight.shape[0] == k
    return {"quant_method": "awq", "bits": bits, "group_size": group, "zero_point": True,
            "version": "gemm" if gemm else "gemv"}


def _zeros_version(module: Any) -> int:
    """1: GPTQ's zeros are stored less one; 2: as they are. GPTQModel's mark says that it has added
    the one itself, not what a file had: kernels that need 2 have 2 once the model is loaded."""
    if not hasattr(module, "qzero_format"):  # auto_gptq's, optimum's
        return 1
    mark = int(module.qzero_format())
    stored = getattr(module, "format", None)
    is_packed_now = mark == 1 and getattr(stored, "value", stored) == "gptq"
    return 2 if getattr(module, "REQUIRES_FORMAT_V2", False) and not is_packed_now else mark


def _compressed_tensors(module: Any) -> dict[str, Any]:
    scheme = module.quantization_scheme
    weights = scheme.weights.model_dump(mode="json") if scheme.weights is not None else None
    kind = getattr(scheme, "format", None)
    kind = getattr(kind, "value", kind) or _usual_format(module, weights or {})
    return {"quant_method": "compressed-tensors", "format": kind,
            "quantization_status": "compressed", "ignore": [],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights,
                                          "format": kind, "input_activations": None,
                                          "output_activations": None}}}


def _usual_format(module: Any, weights: dict[str, Any]) -> str:
    """How compressed-tensors stores such weights where the scheme leaves it open."""
    if weights.get("type") == "int":
        return "pack-quantized" if hasattr(module, "weight_packed") else "int-quantized"
    if weights.get("num_bits") == 8:
        return "float-quantized"
    return "mxfp4-pack-quantized" if weights.get("group_size") == 32 else "nvfp4-pack-quantized"
