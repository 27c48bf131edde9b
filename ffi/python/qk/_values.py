"""A weight's values, in the arrays that the caller wants."""
from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from . import _arrays, _torch
from ._abi import CONSTANTS, lib
from ._errors import refuse
from ._planes import address_of

_TORCH_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def values_of(tensor: Any, dtype: Any, out: Any, like: Any, transposed: bool) -> Any:
    """Tensor.dequantize, which says what the arguments mean."""
    shape = tensor.shape[:-2] + tensor.shape[:-3:-1] if transposed else tensor.shape
    if transposed and len(shape) != 2:
        raise refuse("SHAPE", f"transposed: the weight is {list(shape)}, must be [n,k]")
    if tensor.is_dense and out is None:
        return _of_dense(tensor, dtype, like, transposed)
    result = out if out is not None else _new(tensor, dtype, like, shape)
    wrapped = _wrap(tensor, result, transposed)
    tensor.context.call(lib.qk_dequantize, tensor, wrapped)
    is_new = out is None and like is not None and result is not like
    return _arrays.hand_over(like, result) if is_new and type(result) is type(tensor) else result


def _new(tensor: Any, dtype: Any, like: Any, shape: tuple[int, ...]) -> Any:
    """An array to write to: torch's where dtype or like is, else numpy's or, on a GPU, ours."""
    torch = sys.modules.get("torch")
    is_torch = torch is not None and (_torch.is_tensor(like) or isinstance(dtype, torch.dtype))
    format = float_format(dtype if dtype is not None else "f32" if like is None else like.dtype)
    if torch is not None and is_torch:
        device = tensor.context.device
        place = "cpu" if device == "cpu" else torch.device("cuda", tensor.context.index)
        return torch.empty(shape, dtype=getattr(torch, _TORCH_NAMES[format]), device=place)
    if tensor.context.device == "cpu" and (like is None or isinstance(like, np.ndarray)):
        return np.empty(shape, _arrays.numpy_dtype(format))
    return type(tensor).from_desc(_arrays.dense_desc(format, shape), tensor.context)


def _wrap(tensor: Any, result: Any, transposed: bool) -> Any:
    """The array as what qk_dequantize writes."""
    from ._tensor import asarray
    plain = asarray(result, context=tensor.context, name="out", output=True, rows_apart=True)
    if not transposed:
        return plain
    if plain.shape != tensor.shape[::-1]:
        raise refuse("SHAPE", f"out: is {list(plain.shape)}, must be {list(tensor.shape[::-1])}")
    desc = type(plain.desc).from_buffer_copy(plain.desc)
    desc.shape[:2] = tensor.shape
    desc.flags |= CONSTANTS["QK_TENSOR_COLUMN_MAJOR"]
    handle, memory = ctypes.c_void_p(), ctypes.c_void_p(address_of(plain, "data"))
    tensor.context.call(lib.qk_tensor_wrap, ctypes.byref(desc), ctypes.byref(memory), 1,
                        ctypes.byref(handle))
    return type(tensor)(handle.value or 0, tensor.context, plain)


def _of_dense(tensor: Any, dtype: Any, like: Any, transposed: bool) -> Any:
    """What needs no decoding: converted on the host."""
    if transposed or like is not None:
        raise refuse("FORMAT", f"dequantize: the weight is {tensor.format}; like and transposed "
                     "are for quantized ones, asarray() and a transpose are what this one needs")
    dense = tensor.to("f32" if dtype is None else dtype)
    return dense.numpy() if tensor.context.device == "cpu" else dense


def float_format(dtype: Any) -> str:
    format = _arrays.format_of(dtype)
    if format not in ("f32", "f16", "bf16"):
        raise refuse("FORMAT", f"dtype: is {dtype!r}, accepted are f32, f16 and bf16")
    return format
