"""One call over memory that something else owns and describes: for adapters to other packages.

    from qk import pointers
    w = pointers.weight((n, k), "nf4", {"data": codes, "scale": scales}, scale="f32",
                        layout="row_high", group_size=64)
    pointers.linear(pointers.dense(x, (m, k), "f16"), w, None, pointers.dense(y, (m, n), "f16"))

Addresses are integers. Nothing says how much memory there is at them, so that is the caller's to
know: take Tensor.from_planes where arrays can say it. Calls run in the current context of the
device, or the one given, and keep nothing.
"""
from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from ._abi import PLANES, lib
from ._arrays import dense_desc
from ._context import Context, current_context, workspace
from ._desc import lookup, make_desc
from ._planes import PLANE_ARRAY, PLANE_COUNT

__all__ = ["Operand", "dense", "dequantize", "linear", "quantize", "repack", "weight"]

_wrap, _destroy = lib.qk_tensor_wrap, lib.qk_tensor_destroy
_byref, _pointer = ctypes.byref, ctypes.c_void_p


class Operand:
    """A description and the addresses of its planes."""

    __slots__ = ("desc", "planes", "count")

    def __init__(self, desc: Any, planes: Any, count: int) -> None:
        self.desc, self.planes, self.count = desc, planes, count


@functools.lru_cache(maxsize=4096)
def _dense_desc(format: str, shape: tuple[int, ...]) -> Any:
    return _byref(dense_desc(format, shape))


@functools.lru_cache(maxsize=4096)
def _weight_desc(shape: tuple[int, ...], format: str, options: tuple[tuple[str, Any], ...]) -> Any:
    return _byref(make_desc(shape, format, **dict(options)))


def dense(address: int, shape: tuple[int, ...], format: str = "f32") -> Operand:
    """A compact row-major array."""
    return Operand(_dense_desc(format, shape), _byref(_pointer(address)), 1)


def weight(shape: tuple[int, ...], format: str, planes: dict[str, int], **options: Any) -> Operand:
    """A quantized weight; options as for Tensor.empty."""
    addresses = PLANE_ARRAY()
    for name, address in planes.items():
        addresses[lookup(PLANES, name, "planes")] = address
    desc = _weight_desc(tuple(shape), format, tuple(options.items()))
    return Operand(desc, _byref(addresses), PLANE_COUNT)


def _over(handle: Any, function: Callable[..., int], operands: tuple[Operand | None, ...],
          *rest: Any) -> int:
    """The function of a context over operands that are tensors for as long as it runs."""
    made: list[Any] = []
    status = 0
    for operand in operands:
        made.append(None if operand is None else _pointer())
        if operand is not None:
            status = _wrap(handle, operand.desc, operand.planes, operand.count, _byref(made[-1]))
            if status:
                break
    if not status:
        status = function(handle, *made, *rest)
    for tensor in made:
        if tensor is not None:
            _destroy(tensor)
    return status


def linear(x: Operand, w: Operand, bias: Operand | None, y: Operand, *, rows: int = 1,
           context: Context | None = None) -> None:
    """y = x . transpose(w) + bias; rows: m, by which scratch is asked for."""
    context = context or current_context()

    def need() -> int:
        return workspace(context, _over, lib.qk_linear_workspace, (w,), rows)

    if context.device == "cuda" and context.workspace_bytes is None:
        context.grow_for_speed(need())
    context.call_growing(need, _over, lib.qk_linear, (x, w, bias, y))


def quantize(numbers: Operand, out: Operand, *, context: Context | None = None) -> None:
    """Into what out's description says; its TABLE and SCALE_CODE planes are read."""
    (context or current_context()).call(_over, lib.qk_quantize, (numbers, out))


def dequantize(w: Operand, out: Operand, *, context: Context | None = None) -> None:
    """The values of w in out's format."""
    (context or current_context()).call(_over, lib.qk_dequantize, (w, out))


def repack(w: Operand, out: Operand, *, context: Context | None = None) -> None:
    """The same codes in out's layout."""
    (context or current_context()).call(_over, lib.qk_repack, (w, out))
