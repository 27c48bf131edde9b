"""Weights of GRUs as other packages store them, in PyTorch's order of gates: r, z, n."""
from __future__ import annotations

from typing import Any

import numpy as np

from . import _torch
from ._checks import INT32_MAX, integer
from ._errors import refuse

Array = np.ndarray[Any, Any]


def host_array(values: Any, name: str) -> Array:
    """f32 on the host, from any package."""
    if _torch.is_tensor(values):
        values = _torch.host_floats(values, name)
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "biufV":  # V: bfloat16 and others of ml_dtypes
            raise TypeError
        return np.asarray(array, np.float32, order="C")
    except (TypeError, ValueError):
        raise refuse("FORMAT", f"{name}: is a {type(values).__name__}, accepted are arrays of real "
                     "numbers") from None


def require_gru(module: Any) -> None:
    """A torch.nn.GRU, or what has the names of its weights."""
    mode = getattr(module, "mode", "GRU")
    if mode != "GRU" or not hasattr(module, "weight_ih_l0"):
        kind = type(module).__name__ if mode == "GRU" else f"torch.nn.{mode.split('_')[0]}"
        raise refuse("ARGUMENT", f"module: is a {kind}, accepted is torch.nn.GRU")
    if getattr(module, "proj_size", 0):
        raise refuse("ARGUMENT", f"module: projects h to {module.proj_size} (proj_size), accepted "
                     "is 0")


def to_rzn(values: Array) -> Array:
    """Rows [3h,...] of Keras and ONNX, which begin with z."""
    if values.shape[0] % 3:
        raise refuse("SHAPE", f"weights: {values.shape[0]} rows are not three gates")
    z, r, n = np.split(values, 3)
    return np.ascontiguousarray(np.concatenate([r, z, n]), np.float32)


def torch_arrays(module: Any, layer: int, reverse: bool) -> Any:
    """w_ih, w_hh, b_ih and b_hh of one layer and direction of a torch.nn.GRU."""
    suffix = f"_l{integer(layer, 'layer', 0, INT32_MAX)}{'_reverse' if reverse else ''}"
    if not hasattr(module, f"weight_ih{suffix}"):
        raise refuse("ARGUMENT", f"module: has no weight_ih{suffix}")
    parts = (getattr(module, name + suffix, None)
             for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    return tuple(None if part is None else host_array(part, "module") for part in parts)


def keras_arrays(weights: Any, reset_after: bool) -> Any:
    """The same of [kernel [c,3h], recurrent kernel [h,3h], bias], whose bias is [2,3h] where reset
    comes after the product, and else [3h]."""
    kernel, recurrent, *rest = (host_array(part, "weights") for part in weights)
    b_ih = b_hh = None
    if rest:
        wanted = (2, kernel.shape[1]) if reset_after else (kernel.shape[1],)
        if rest[0].shape != wanted:
            raise refuse("SHAPE", f"weights: the bias is {list(rest[0].shape)}, must be "
                         f"{list(wanted)} with reset_after={reset_after}")
        b_ih, b_hh = (to_rzn(part) for part in rest[0]) if reset_after else (to_rzn(rest[0]), None)
    return to_rzn(kernel.T), to_rzn(recurrent.T), b_ih, b_hh
