"""Products of torch's tensors with prepared weights: of values alone, no gradient, no trace.

On a tiny shape a call is what surrounds qk_linear, so that tenths of a microsecond count here:
ffi/python/bench/torch_overhead.py.
"""
from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .._abi import CONSTANTS, brief, lib
from .._arrays import dense_desc
from .._context import Context, current_context, workspace
from .._errors import Error, make_error, refuse
from .._linear import operands
from .._multiply import _PRODUCT, Product, _raw, _run
from .._tensor import Tensor
from ._prepared import Prepared, context_of, is_capturing

_FORMATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_NO_ROOM = CONSTANTS["QK_ERROR_WORKSPACE"]
_wrap, _destroy = brief(lib.qk_tensor_wrap), brief(lib.qk_tensor_destroy)
_linear = lib.qk_linear
_copy = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(ctypes.memmove, ctypes.c_void_p).value or 0)
_byref, _pointer = ctypes.byref, ctypes.c_void_p
_MAX_VIEWS = 4096
_MAX_SHAPES = 256
_MAX_SMALL = 4096  # elements


@functools.lru_cache(maxsize=4096)
def _desc(dtype: torch.dtype, *shape: int) -> Any:
    if dtype not in _FORMATS:
        raise refuse("FORMAT", f"x and bias: are {dtype}, accepted are float32, float16 and "
                     "bfloat16")
    return _byref(dense_desc(_FORMATS[dtype], shape))


def multiply(x: torch.Tensor, entry: Prepared, bias: torch.Tensor | None) -> torch.Tensor:
    """x . transpose(w) + bias"""
    if not x.is_contiguous() or x.is_neg():
        x = x.resolve_neg().contiguous()
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    call, context = (_on_cpu, current_context()) if x.is_cpu else (_on_gpu, context_of(x))
    y, error = call(context, x, entry, bias)
    if error is not None and error.status == _NO_ROOM and context.workspace_bytes is None:
        context._grow(_workspace(context, entry, x.numel() // entry.k))
        y, error = call(context, x, entry, bias)
    if error is not None:
        raise error
    return y


def multiply_transposed(x: torch.Tensor, entry: Prepared) -> torch.Tensor:
    """x . w"""
    y = x.new_empty((*x.shape[:-1], entry.k))
    if not y.numel():
        return y
    x, context = x.detach().resolve_neg().contiguous(), context_of(x)
    product = Product(x, entry.weight, out=y, transposed=True)
    made = operands(*product[:5])
    array = (_PRODUCT * 1)(_raw(made, product))
    if not x.is_cpu:
        _make_room(context, lambda: workspace(context, lib.qk_multiply_workspace, array, 1), x)
    _run(context, array)
    return y


def _rows(x: torch.Tensor, entry: Prepared) -> int:
    """How many x has, where its columns are the weight's."""
    if x.shape[-1] != entry.k:
        raise refuse("SHAPE", f"x: its last dimension is {x.shape[-1]}, must be {entry.k}")
    return x.numel() // entry.k if entry.k else 0


class _Views:
    """Tensors over torch's memory, for one handle of a context, which its lock protects.

    A view is no more than its address: it is used only where a caller has memory there now.
    """

    __slots__ = ("owner", "found", "small", "address", "planes")

    def __init__(self, owner: int | None) -> None:
        self.owner = owner
        self.found: dict[Any, Any] = {}  # by address and description, where these come again
        self.small: dict[Any, _Small | None] = {}  # by shapes
        self.address = _pointer()  # of what is wrapped
        self.planes = _byref(self.address)

    def at(self, tensor: torch.Tensor, *shape: int) -> Any:
        """One that stays, for later calls with memory at the same address."""
        key = tensor.data_ptr(), tensor.dtype, *shape
        view = self.found.get(key)
        if view is None:
            view = _pointer()
            self.wrap(tensor, _desc(tensor.dtype, *shape), _byref(view))
            self.found[key] = view
        return view

    def wrap(self, tensor: torch.Tensor, desc: Any, out: Any) -> None:
        self.address.value = tensor.data_ptr()
        status = _wrap(self.owner, desc, self.planes, 1, out)
        if status:
            raise make_error(status, lib.qk_context_error(self.owner))

    def __del__(self) -> None:
        for view in self.found.values():
            _destroy(view)


class _Small(NamedTuple):
    """Memory for one small x and its y, and views of it: copying takes less time than wrapping."""

    address: int  #: of x
    size: int  #: of x, bytes
    x: Any
    y: Any
    result: torch.Tensor
    keep: torch.Tensor


def _small(views: _Views, x: torch.Tensor, entry: Prepared) -> _Small | None:
    """None: not small. The caller holds the context's lock."""
    rows = _rows(x, entry)
    if not 0 < rows * max(entry.n, entry.k) <= _MAX_SMALL:
        return None
    copy, y = torch.empty_like(x), x.new_empty((*x.shape[:-1], entry.n))
    return _Small(copy.data_ptr(), x.numel() * x.element_size(), views.at(copy, rows, entry.k),
                  views.at(y, rows, entry.n), y, copy)


def _views_of(context: Context) -> _Views:
    views: _Views | None = context.slots
    if views is None or views.owner != context._handle or len(views.found) > _MAX_VIEWS \
            or len(views.small) > _MAX_SHAPES:
        views = context.slots = _Views(context._handle)
    return views


def _on_cpu(context: Context, x: torch.Tensor, entry: Prepared,
            bias: torch.Tensor | None) -> tuple[torch.Tensor, Error | None]:
    """y, or what qk_linear says against it. malloc seldom gives an address twice, so views of x and
    y would be of no use later."""
    key = x.shape, x.dtype, entry.n, entry.k
    with context._lock:
        views = _views_of(context)
        db = None if bias is None else views.at(bias, entry.n)
        if key in views.small:
            small = views.small[key]
        else:
            small = views.small[key] = _small(views, x, entry)
        if small is None:
            return _wrapped(context, views, x, entry, db)
        _copy(small.address, x.data_ptr(), small.size)
        status = _linear(views.owner, small.x, entry.weight._handle, db, small.y)
        return small.result.clone(), context.explain(status) if status else None


def _wrapped(context: Context, views: _Views, x: torch.Tensor, entry: Prepared,
             db: Any) -> tuple[torch.Tensor, Error | None]:
    """The same over memory that is wrapped for this call. The caller holds the context's lock."""
    rows = _rows(x, entry)
    y = x.new_empty((*x.shape[:-1], entry.n))
    if not rows:
        return y, None
    dx, dy = _pointer(), _pointer()
    views.wrap(x, _desc(x.dtype, rows, entry.k), _byref(dx))
    views.wrap(y, _desc(y.dtype, rows, entry.n), _byref(dy))
    status = _linear(views.owner, dx, entry.weight._handle, db, dy)
    error = context.explain(status) if status else None
    _destroy(dx)
    _destroy(dy)
    return y, error


def _on_gpu(context: Context, x: torch.Tensor, entry: Prepared,
            bias: torch.Tensor | None) -> tuple[torch.Tensor, Error | None]:
    """The same; torch's allocator gives the same addresses again and again."""
    rows = _rows(x, entry)
    y = x.new_empty((*x.shape[:-1], entry.n))
    if not rows:
        return y, None
    _make_room(context, lambda: _workspace(context, entry, rows), x)
    with context._lock:
        views = _views_of(context)
        dx, dy = views.at(x, rows, entry.k), views.at(y, rows, entry.n)
        db = None if bias is None else views.at(bias, entry.n)
        status = _linear(views.owner, dx, entry.weight._handle, db, dy)
        return y, context.explain(status) if status else None


def _workspace(context: Context, entry: Prepared, rows: int) -> int:
    return workspace(context, lib.qk_linear_workspace, entry.weight, rows)


_anchors: dict[Context, tuple[int | None, Tensor]] = {}
_in_graphs: list[Tensor] = []


def _make_room(context: Context, need: Callable[[], int], x: torch.Tensor) -> None:
    """The scratch that kernels are faster with, and its life: a captured graph goes on using it.

    A child keeps a context's scratch where the context grows later. It is made ahead, as nothing
    may be allocated while a graph is captured.
    """
    if is_capturing(x):
        anchor = _anchors.get(context)
        if anchor is not None and anchor[1] not in _in_graphs:
            _in_graphs.append(anchor[1])
        return
    if context.workspace_bytes is None:
        context.grow_for_speed(need())
    anchor = _anchors.get(context)
    if anchor is None or anchor[0] != context._handle:
        _anchors[context] = context._handle, Tensor.empty((1,), context=context)
