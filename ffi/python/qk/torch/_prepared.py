"""Weights over torch's memory, made ready once: wrapped, and repacked for their device."""
from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Sequence
from typing import Any

import torch

from .._abi import CONSTANTS, lib
from .._arrays import dense_desc
from .._context import Context, current_context, workspace
from .._errors import Error, refuse
from .._tensor import Tensor
from ._form import form_of

_FORMATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_NO_ROOM = CONSTANTS["QK_ERROR_WORKSPACE"]
_wrap, _destroy, _linear = lib.qk_tensor_wrap, lib.qk_tensor_destroy, lib.qk_linear
_byref, _pointer = ctypes.byref, ctypes.c_void_p
_MAX_VIEWS = 4096


@functools.lru_cache(maxsize=4096)
def _desc(dtype: torch.dtype, *shape: int) -> Any:
    if dtype not in _FORMATS:
        raise refuse("FORMAT", f"x and bias: are {dtype}, accepted are float32, float16 and "
                     "bfloat16")
    return _byref(dense_desc(_FORMATS[dtype], shape))


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
    error = _call(context, x, entry, bias, y, m)
    if error is not None and error.status == _NO_ROOM and context.workspace_bytes is None:
        context._grow(workspace(context, lib.qk_linear_workspace, entry.weight, m))
        error = _call(context, x, entry, bias, y, m)
    if error is not None:
        raise error
    return y


class _Views:
    """Tensors over memory of callers, by address and description, for one handle of a context.

    Allocators give the same addresses again and again, and wrapping takes longer than looking up.
    A view is no more than its address: it is used only where a caller has memory there now.
    """

    __slots__ = ("owner", "found")

    def __init__(self, owner: int | None) -> None:
        self.owner = owner
        self.found: dict[Any, Any] = {}

    def make(self, key: Any, context: Context) -> Any:
        """The caller holds the context's lock."""
        out, (address, dtype, *shape) = _pointer(), key
        status = _wrap(self.owner, _desc(dtype, *shape), _byref(_pointer(address)), 1, _byref(out))
        if status:
            raise context.explain(status)
        self.found[key] = out
        return out

    def __del__(self) -> None:
        for view in self.found.values():
            _destroy(view)


def _call(context: Context, x: torch.Tensor, entry: Prepared, bias: torch.Tensor | None,
          y: torch.Tensor, m: int) -> Error | None:
    """qk_linear over addresses; the exception for what it says, or None."""
    dtype = x.dtype
    of_x, of_y = (x.data_ptr(), dtype, m, entry.k), (y.data_ptr(), dtype, m, entry.n)
    with context._lock:
        views, handle = context.slots, context._handle
        if views is None or views.owner != handle or len(views.found) > _MAX_VIEWS:
            views = context.slots = _Views(handle)
        found = views.found
        dx = found.get(of_x) or views.make(of_x, context)
        dy = found.get(of_y) or views.make(of_y, context)
        db = None
        if bias is not None:
            of_b = bias.data_ptr(), bias.dtype, entry.n
            db = found.get(of_b) or views.make(of_b, context)
        status = _linear(handle, dx, entry.weight._handle, db, dy)
        return context.explain(status) if status else None


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
