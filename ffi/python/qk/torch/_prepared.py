"""Weights over torch's memory, made ready once: wrapped, and repacked for their device."""
from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from .._abi import CONSTANTS, lib
from .._arrays import dense_desc
from .._context import Context, current_context, workspace
from .._errors import refuse
from .._tensor import Tensor
from ._form import form_of

_FORMATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_NO_ROOM = CONSTANTS["QK_ERROR_WORKSPACE"]
_wrap, _destroy, _linear = lib.qk_tensor_wrap, lib.qk_tensor_destroy, lib.qk_linear
_byref, _pointer = ctypes.byref, ctypes.c_void_p

_descs: dict[tuple[torch.dtype, int, int], Any] = {}  # of dense [m,k]; few shapes repeat


def _dense(dtype: torch.dtype, rows: int, columns: int) -> Any:
    key = dtype, rows, columns
    desc = _descs.get(key)
    if desc is None:
        if dtype not in _FORMATS:
            raise refuse("FORMAT", f"x: is {dtype}, accepted are float32, float16 and bfloat16")
        if len(_descs) > 4096:
            _descs.clear()
        desc = _descs[key] = _byref(dense_desc(_FORMATS[dtype], (rows, columns)))
    return desc


def is_capturing(tensor: torch.Tensor) -> bool:
    """Is a CUDA graph being recorded? Then nothing may be allocated or waited for."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def context_of(tensor: torch.Tensor) -> Context:
    """This thread's context of a tensor's device, on torch's current stream."""
    if tensor.is_cpu:
        return current_context()
    if not tensor.is_cuda:
        raise refuse("ARGUMENT", f"x: is on the device {tensor.device}, accepted are cpu and cuda")
    index = tensor.device.index or 0
    context = current_context("cuda", index)
    context.follow_stream(torch.cuda.current_stream(index).cuda_stream or None)
    return context


def _versions(planes: Sequence[torch.Tensor]) -> list[int]:
    """Counts of changes in place; tensors made under inference_mode have none."""
    try:
        return [plane._version for plane in planes]
    except RuntimeError:
        return [0 if plane.is_inference() else plane._version for plane in planes]


class Prepared:
    """The weight of some planes. It holds none of them: they own it, by `prepared`."""

    __slots__ = ("_references", "_known", "weight", "n", "k")

    def __init__(self, planes: Sequence[torch.Tensor], text: str, packed: bool) -> None:
        form = form_of(text)
        for plane, given in zip(form.planes, planes):
            if given.dtype != plane.dtype or tuple(given.shape) != plane.shape:
                raise refuse("FORMAT", f"{plane.name}: is {given.dtype} {list(given.shape)}, of "
                             f"{text} it is {plane.dtype} {list(plane.shape)}")
        if len(planes) != len(form.planes):
            raise refuse("ARGUMENT", f"planes: are {len(planes)}, of {text} they are "
                         + ", ".join(plane.name for plane in form.planes))
        self._references = [weakref.ref(plane) for plane in planes]
        self._known = _versions(planes)
        self.n, self.k = form.shape
        self.weight = wrapped(planes, text)
        if packed and not is_capturing(planes[0]):
            self.weight = self.weight.repack()
        self.weight._keep = None  # the planes: they would keep themselves alive

    def fits(self, planes: Sequence[torch.Tensor]) -> bool:
        """Was this made of these planes, as they are now?"""
        for plane, reference in zip(planes, self._references):
            if reference() is not plane:
                return False
        return _versions(planes) == self._known


def wrapped(planes: Sequence[torch.Tensor], text: str) -> Tensor:
    """A qk.Tensor over the planes, as they are stored."""
    form = form_of(text)
    arrays = {plane.name: given.detach() for plane, given in zip(form.planes, planes)}
    return Tensor.from_planes(form.shape, form.format, arrays, context=context_of(planes[0]),
                              **form.options)


_entries: dict[tuple[int, bool], Prepared] = {}  # by the first plane's id, while it lives


def prepared(planes: Sequence[torch.Tensor], text: str, packed: bool = True) -> Prepared:
    """What is ready of these planes, or is made so now."""
    key = id(planes[0]), packed
    entry = _entries.get(key)
    if entry is None or not entry.fits(planes):
        entry = Prepared(planes, text, packed)
        if not packed or not is_capturing(planes[0]):
            _entries[key] = entry
            weakref.finalize(planes[0], _entries.pop, key, None)
    return entry


def multiply(x: torch.Tensor, entry: Prepared, bias: torch.Tensor | None) -> torch.Tensor:
    """x . transpose(w) + bias, of values alone: no gradient, no trace."""
    shape = x.shape
    if shape[-1] != entry.k:
        raise refuse("SHAPE", f"x: its last dimension is {shape[-1]}, must be {entry.k}")
    if not x.is_contiguous() or x.is_neg():
        x = x.resolve_neg().contiguous()
    y = x.new_empty((*shape[:-1], entry.n))
    m = x.numel() // entry.k if entry.k else 0
    if not m:
        return y
    context = context_of(x)
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    if not x.is_cpu:
        _make_room(context, entry, m, is_capturing(x))
    status = _call(context, x, entry, bias, y, m)
    if status is not None:
        if status.status != _NO_ROOM or context.workspace_bytes is not None:
            raise status
        context._grow(workspace(context, lib.qk_linear_workspace, entry.weight, m))
        status = _call(context, x, entry, bias, y, m)
        if status is not None:
            raise status
    return y


def _call(context: Context, x: torch.Tensor, entry: Prepared, bias: torch.Tensor | None,
          y: torch.Tensor, m: int) -> Any:
    """qk_linear over addresses; the exception for what it says, or None."""
    dx, db, dy = _pointer(), None, _pointer()
    n, dtype = entry.n, x.dtype
    with context._lock:
        handle = context._handle
        status = (_wrap(handle, _dense(dtype, m, entry.k), _byref(_pointer(x.data_ptr())), 1,
                        _byref(dx))
                  or _wrap(handle, _dense(dtype, m, n), _byref(_pointer(y.data_ptr())), 1,
                           _byref(dy)))
        if bias is not None and not status:
            db = _pointer()
            status = _wrap(handle, _vector(bias, n), _byref(_pointer(bias.data_ptr())), 1,
                           _byref(db))
        if not status:
            status = _linear(handle, dx, entry.weight._handle, db, dy)
        error = context.explain(status) if status else None
        _destroy(dx)
        _destroy(dy)
        if db is not None:
            _destroy(db)
    return error


_vectors: dict[tuple[torch.dtype, int], Any] = {}


def _vector(bias: torch.Tensor, n: int) -> Any:
    key = bias.dtype, n
    desc = _vectors.get(key)
    if desc is None:
        if bias.dtype not in _FORMATS:
            raise refuse("FORMAT", f"bias: is {bias.dtype}, accepted are float32, float16 and "
                         "bfloat16")
        desc = _vectors[key] = _byref(dense_desc(_FORMATS[bias.dtype], (n,)))
    return desc


_anchors: dict[Context, tuple[int | None, Tensor]] = {}
_in_graphs: list[Tensor] = []


def _make_room(context: Context, entry: Prepared, m: int, capturing: bool) -> None:
    """The scratch that kernels are faster with, and its life: a captured graph goes on using it.

    A child keeps a context's scratch where the context grows later. It is made ahead, as nothing
    may be allocated while a graph is captured.
    """
    if capturing:
        anchor = _anchors.get(context)
        if anchor is not None and anchor[1] not in _in_graphs:
            _in_graphs.append(anchor[1])
        return
    if context.workspace_bytes is None:
        context.grow_for_speed(workspace(context, lib.qk_linear_workspace, entry.weight, m))
    anchor = _anchors.get(context)
    if anchor is None or anchor[0] != context._handle:
        _anchors[context] = context._handle, Tensor.empty((1,), context=context)
