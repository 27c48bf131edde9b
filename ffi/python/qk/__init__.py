"""4-bit weights and integer GRUs: qk's C library for numpy, PyTorch, CuPy and JAX.

    import qk
    y = qk.load("model.safetensors")["model.layers.0.mlp.down_proj"] @ x
    w = qk.quantize(weights, "nf4", group_size=64)          # any array [n,k]
    gru = qk.GRU.from_torch(module).calibrate(x).freeze()   # integers from here on

Arrays go in and out without a copy, on their own device and stream. What the library refuses is
an exception by the hundred of its status, with the library's sentence.
"""
from ._checkpoint import Checkpoint, LayerInfo, load
from ._context import Context, Trace, build_info, current_context, device_count, version
from ._errors import (CallError, DeviceError, Error, ExistsError, InternalError, ResourceError,
                      StorageError, UnsupportedError)
from ._experts import experts
from ._gru import GRU, GRURanges, GRUState
from ._gru_stack import StackedGRU
from ._linear import Layer, PreparedLinear, linear, prepare
from ._multiply import Plan, Product, explain, multiply
from ._save import save
from ._tensor import Tensor, asarray, dequantize, dynamic_table, quantize, repack

__version__ = version()
__all__ = [
    "CallError", "Checkpoint", "Context", "DeviceError", "Error", "ExistsError", "GRU", "GRURanges",
    "GRUState", "InternalError", "Layer", "LayerInfo", "Plan", "PreparedLinear", "Product",
    "ResourceError", "StackedGRU", "StorageError", "Tensor", "Trace", "UnsupportedError", "asarray",
    "build_info", "current_context", "dequantize", "device_count", "dynamic_table", "experts",
    "explain", "linear", "load", "multiply", "prepare", "quantize", "repack", "save", "version",
]
