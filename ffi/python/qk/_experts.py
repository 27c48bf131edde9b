"""Products with experts: each row of x times the weights that a routing picks for it."""
from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import _arrays, _torch
from ._abi import CONSTANTS, STRUCTS
from ._errors import refuse
from ._linear import _weight_and_bias, input_rows
from ._multiply import _PRODUCT, _run
from ._tensor import Tensor, asarray, context_for

_EXPERTS = STRUCTS["qk_experts"]
_ACTIVATIONS = {None: "NONE", "silu": "SILU", "gelu": "GELU", "gelu_tanh": "GELU_TANH",
                "swiglu_clamped": "SWIGLU_CLAMPED"}


def experts(x: Any, w: Any, expert: Any, bias: Any = None, *, weight: Any = None,
            add_slots: bool | None = None, activation: str | None = None,
            interleaved: bool = False, limit: float = 7.0, alpha: float = 1.702,
            accumulate: bool = False, out: Any = None) -> Any:
    """Slot j of token t: x . transpose(w[e]) + bias[e], e = expert[t,j]; w [E,n,k], bias [E,n].

    x is [t,k], a row a token, or [t,top_k,k], a row a slot; expert [t,top_k] of integers. An
    activation ("silu", "gelu", "gelu_tanh", "swiglu_clamped" with limit and alpha: gpt-oss) joins
    gate and up rows, halves of n or interleaved, so that n' is n/2; else n' is n. y is
    [t,top_k,n'], or [t,n'] with add_slots, which is meant where weight [t,top_k] is given: each
    slot times its weight, added up in their order. Slots with expert < 0 are skipped; E and more
    give NaN.

    A layer of a mixture: experts(experts(x, gate_up, e, activation="silu"), down, e, weight=p).
    """
    w, bias = _weight_and_bias(w, bias)
    if not isinstance(activation, (str, type(None))) or activation not in _ACTIVATIONS:
        raise refuse("ARGUMENT", f"activation: is {activation!r}, accepted are None and "
                     f"{', '.join(map(repr, list(_ACTIVATIONS)[1:]))}")
    if len(w.shape) != 3:
        raise refuse("SHAPE", f"w: is {list(w.shape)}, of experts it is [E,n,k]")
    context = context_for(x)
    if not _torch.is_tensor(x) and not hasattr(x, "shape"):  # lists
        x = np.asarray(x, np.float32)
    dx = input_rows(x, context)
    routing = asarray(_integers(expert), context=context, name="expert")
    scales = None if weight is None else asarray(_floats(weight), context=context, name="weight")
    if len(routing.shape) != 2:
        raise refuse("SHAPE", f"expert: is {list(routing.shape)}, accepted is [t,top_k]")
    adds = weight is not None if add_slots is None else add_slots
    columns = w.shape[1] // (1 if activation is None else 2)
    shape = (routing.shape[0], columns) if adds else (*routing.shape, columns)
    if accumulate and out is None:
        raise refuse("ARGUMENT", "out: accumulate adds to it, and there is none")
    y = out if out is not None else _arrays.empty_like(x, shape)
    dy = (Tensor.from_desc(_arrays.dense_desc(dx.format, shape), context) if y is None
          else asarray(y, context=context, name="out", output=True, rows_apart=True))
    if dy.shape != shape:
        raise refuse("SHAPE", f"out: is {list(dy.shape)}, must be {list(shape)}")
    db = None if bias is None else asarray(bias, context=context, name="bias")
    chosen = _EXPERTS(
        struct_size=ctypes.sizeof(_EXPERTS), flags=bool(interleaved), expert=routing.handle,
        weight=None if scales is None else scales.handle,
        limit=_number(limit, "limit"), alpha=_number(alpha, "alpha"),
        activation=CONSTANTS[f"QK_ACTIVATION_{_ACTIVATIONS[activation]}"])
    product = _PRODUCT(struct_size=ctypes.sizeof(_PRODUCT),
                       flags=CONSTANTS["QK_PRODUCT_ACCUMULATE"] * bool(accumulate),
                       x=dx.handle, w=w.handle, bias=None if db is None else db.handle,
                       y=dy.handle, experts=ctypes.addressof(chosen))
    _run(context, (_PRODUCT * 1)(product))
    return _arrays.hand_over(x, dy) if y is None else y


def _integers(array: Any) -> Any:
    """What routers give, of any width, as the library takes it; what is too large stays so."""
    most = np.iinfo(np.int32).max
    if _torch.is_tensor(array):
        import torch
        if array.dtype.is_floating_point or array.dtype.is_complex or array.dtype == torch.bool:
            raise _no_integers(array)
        if array.dtype.itemsize >= 4 and array.dtype != torch.int32:
            wide = array.to(torch.int64)
            if not array.dtype.is_signed:  # from 2^63 on they are negative now
                wide = wide.masked_fill(wide < 0, most)
            array = wide.clamp(-1, most)
        return array.to(torch.int32).contiguous()
    if hasattr(array, "dtype") and not isinstance(array, np.ndarray):
        return array
    numbers = _array(array, "expert")
    if numbers.dtype.kind not in "iu":
        raise _no_integers(numbers)
    if numbers.dtype.kind == "i":
        numbers = np.maximum(numbers, -1)
    return np.ascontiguousarray(np.minimum(numbers, min(most, np.iinfo(numbers.dtype).max)),
                                np.int32)


def _no_integers(array: Any) -> Exception:
    return refuse("FORMAT", f"expert: is {array.dtype}, accepted are integers")


def _floats(array: Any) -> Any:
    if _torch.is_tensor(array):
        import torch
        return array.to(torch.float32).contiguous()
    if hasattr(array, "dtype") and not isinstance(array, np.ndarray):
        return array
    numbers = _array(array, "weight")
    if numbers.dtype.kind in "USOc":
        raise refuse("FORMAT", f"weight: is {numbers.dtype}, accepted are numbers")
    return np.ascontiguousarray(numbers, np.float32)


def _array(given: Any, name: str) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(given)
    except ValueError:
        raise refuse("SHAPE", f"{name}: rows of different lengths, accepted is [t,top_k]") from None


def _number(value: Any, name: str) -> float:
    try:
        if not isinstance(value, (str, bytes)):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise refuse("ARGUMENT", f"{name}: is {value!r}, accepted is a number")
