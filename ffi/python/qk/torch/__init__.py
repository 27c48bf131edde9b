"""Quantized weights as PyTorch modules and operators.

    import qk.torch
    layer = qk.torch.Linear.from_linear(linear, "nf4", group_size=64, nested=True)
    report = qk.torch.replace_linear(model, "nf4")
    model = AutoModelForCausalLM.from_pretrained(name, quantization_config=qk.torch.QkConfig())
    gru = qk.torch.QuantGRU.from_torch(gru).calibrate(x)  # trained as the integers that it becomes

torch.compile, torch.export, autograd, autocast and checkpointing see operators of torch.library;
eager calls without gradients go to libqk at once. Needs PyTorch, which `import qk` alone does not;
where transformers is installed, "qk" becomes one of its quantization methods.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 4):
    raise ImportError(f"qk.torch: needs PyTorch 2.4 or newer, installed is {torch.__version__}")

from . import _operators  # noqa: F401  registers torch.ops.qk
from ._embedding import Embedding
from ._experts import Experts
from ._gru import QuantGRU
from ._linear import Linear
from ._replace import Report, dequantize_linear, replace_linear

if TYPE_CHECKING:
    from ._transformers import QkConfig, QkHfQuantizer

__all__ = ["Embedding", "Experts", "Linear", "QkConfig", "QkHfQuantizer", "QuantGRU", "Report",
           "dequantize_linear", "replace_linear"]


def __getattr__(name: str) -> Any:
    """The names that need transformers."""
    if name in ("QkConfig", "QkHfQuantizer"):
        return getattr(importlib.import_module(f"{__name__}._transformers"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


try:  # registers the method
    importlib.import_module(f"{__name__}._transformers")
except ImportError:  # not installed, or too old: naming QkConfig says which
    pass
