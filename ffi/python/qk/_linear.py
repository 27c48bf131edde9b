"""y = x . transpose(w) + bias, in one call or prepared for many."""
from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from . import _arrays
from ._abi import CONSTANTS, lib
from ._context import current_context, workspace
from ._errors import make_error
from ._tensor import Tensor, asarray, context_for

_linear = lib.qk_linear
_wrap, _destroy, _why = lib.qk_tensor_wrap, lib.qk_tensor_destroy, lib.qk_context_error
_FORMAT_OF = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16"}
_byref, _pointer, _addressof = ctypes.byref, ctypes.c_void_p, ctypes.addressof
_at: Any = ctypes.c_char.from_buffer  # of an array's memory; ndarray.ctypes takes ten times as long


@functools.lru_cache(maxsize=4096)
def _desc(dtype: Any, shape: tuple[int, ...]) -> Any:
    return _byref(_arrays.dense_desc(_FORMAT_OF[dtype], shape))


def linear(x: Any, w: Tensor, bias: Any = None, *, out: Any = None) -> Any:
    """x [..., k] dense, w [n,k], bias [n] or None: y [..., n] in x's type, package and device.

    out: where y goes, compact, not overlapping an input; else a new array. On a GPU the call
    queues its work on the caller's stream and returns.
    """
    if type(x) is np.ndarray and bias is None:
        y = _small(x, w, out)
        if y is not None:
            return y
    context = context_for(x)
    x = x if hasattr(x, "shape") else np.asarray(x, np.float32)
    shape = (*x.shape[:-1], w.shape[0])
    y = out if out is not None else _arrays.empty_like(x, shape)
    dx = asarray(x, context=context)
    fresh = y is None  # packages whose arrays are immutable, and Tensor
    dy = (Tensor.from_desc(_arrays.dense_desc(dx.format, shape), context) if fresh
          else asarray(y, context=context, name="out", output=True))
    db = None if bias is None else asarray(bias, context=context, name="bias")
    rows = max(1, int(np.prod(shape[:-1], dtype=np.int64)))
    _multiply(context, rows, dx, w, db, dy)
    return _arrays.hand_over(x, dy) if fresh else y


def _multiply(context: Any, rows: int, x: Tensor, w: Tensor, bias: Tensor | None,
              y: Tensor) -> None:
    def need() -> int:
        return workspace(context, lib.qk_linear_workspace, w, rows)

    if context.device == "cuda" and context.workspace_bytes is None:
        context.grow_for_speed(need())
    context.call_growing(need, _linear, x, w, bias, y)


def _small(x: Any, w: Tensor, out: Any) -> Any:
    """numpy in and out with nothing between: what a call on a tiny shape spends its time on.

    None where anything is unusual; the general way then says what.
    """
    dtype, shape = x.dtype, x.shape
    if dtype not in _FORMAT_OF or not 0 < len(shape) <= 4 or not x.flags.carray or not x.size:
        return None
    wanted = (*shape[:-1], w._desc.shape[0])
    if out is None:
        y = np.empty(wanted, dtype)
    elif type(out) is np.ndarray and out.flags.carray and out.shape == wanted \
            and out.dtype == dtype:
        y = out
    else:
        return None
    context = current_context()
    dx, dy = _pointer(), _pointer()
    with context._lock:
        handle = context._handle
        status = _wrap(handle, _desc(dtype, shape), _byref(_pointer(_addressof(_at(x)))), 1,
                       _byref(dx))
        if not status:
            status = _wrap(handle, _desc(dtype, wanted), _byref(_pointer(_addressof(_at(y)))), 1,
                           _byref(dy))
        if not status:
            status = _linear(handle, dx, w._handle, None, dy)
        sentence = _why(handle) if status else b""
        _destroy(dx)
        _destroy(dy)
    if status == CONSTANTS["QK_ERROR_WORKSPACE"]:
        return None
    if status:
        raise make_error(status, sentence)
    return y


class PreparedLinear:
    """One product over fixed arrays: `call()` reads x and writes y, and allocates nothing.

    For loops that reuse their buffers, so x and bias must be compact. x, w, bias and y stay alive
    with it, and are not to be closed before; on a GPU it can be captured in a CUDA graph.
    """

    __slots__ = ("_call", "_operands", "_context", "_workspace", "y")

    def __init__(self, x: Any, w: Tensor, bias: Any = None, out: Any = None) -> None:
        context = context_for(x)
        if out is None:
            out = _arrays.empty_like(x, (*x.shape[:-1], w.shape[0]))
        dx = asarray(x, context=context, output=True)  # a copy would not see what x holds later
        dy = asarray(out, context=context, name="out", output=True)
        db = None if bias is None else asarray(bias, context=context, name="bias", output=True)
        self._operands, self.y = (dx, w, db, dy, x, out), out
        self._context = context if context.device == "cuda" else None
        rows = max(1, int(np.prod(x.shape[:-1], dtype=np.int64)))
        _multiply(context, rows, dx, w, db, dy)
        # A captured graph holds the scratch of now: a child keeps it if the context grows again.
        self._workspace = None if context.device == "cpu" else Tensor.empty((1,), context=context)
        self._call = _bind(context, dx, w, db, dy)

    def __call__(self) -> Any:
        """Multiplies what x holds now; returns y, the array given as out."""
        if self._context is not None:
            x = self._operands[4]
            self._context.follow_stream(_arrays.stream_of(x, self._context.index))
        self._call()
        return self.y


def _bind(context: Any, x: Tensor, w: Tensor, bias: Tensor | None, y: Tensor) -> Any:
    """The call as a closure over addresses: no look-ups are left in it."""
    arguments = (_pointer(x.handle), _pointer(w.handle),
                 _pointer(bias.handle if bias is not None else None), _pointer(y.handle))
    acquire, release = context._lock.acquire, context._lock.release

    def run() -> None:
        acquire()
        status = _linear(context._handle, *arguments)  # a context that grows changes its handle
        if status:
            sentence = lib.qk_context_error(context._handle)
            release()
            raise make_error(status, sentence)
        release()

    return run


def prepare(x: Any, w: Tensor, bias: Any = None, *, out: Any = None) -> PreparedLinear:
    """linear(x, w, bias, out=out) to be repeated on the same arrays; runs once."""
    return PreparedLinear(x, w, bias, out)
