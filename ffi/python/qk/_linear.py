"""y = x . transpose(w) + bias, in one call or prepared for many."""
from __future__ import annotations

import ctypes
import functools
import math
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from . import _arrays, _torch
from ._abi import CONSTANTS, brief, lib
from ._context import current_context, workspace
from ._errors import refuse
from ._tensor import Tensor, asarray, context_for

_linear = lib.qk_linear
_wrap, _destroy = brief(lib.qk_tensor_wrap), brief(lib.qk_tensor_destroy)
_FORMAT_OF = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16"}
_byref, _pointer, _addressof = ctypes.byref, ctypes.c_void_p, ctypes.addressof
_at: Any = ctypes.c_char.from_buffer  # of an array's memory; ndarray.ctypes takes ten times as long


@functools.lru_cache(maxsize=4096)
def _desc(dtype: Any, shape: tuple[int, ...]) -> Any:
    return _byref(_arrays.dense_desc(_FORMAT_OF[dtype], shape))


def _rows(w: Any) -> int:
    """n of a weight: leading dimensions, as experts have in a GGUF file, count as rows."""
    return math.prod(w.shape[:-1])


def linear(x: Any, w: Any, bias: Any = None, *, out: Any = None) -> Any:
    """x [..., k] dense, w [n,k], bias [n] or None: y [..., n] in x's type, package and device. Of
    experts, w [e,n,k], y has the rows of all, one expert after the other.

    w: a Tensor, or a Layer with the bias that it has. out: where y goes, not overlapping an input;
    else a new array. x and out may be slices of wider arrays, out[:, 8:32], without a copy of x on
    the CPU. On a GPU the call queues its work on the caller's stream and returns.
    x, bias and out of torch must not require gradients: qk computes none.
    """
    if type(w) is not Tensor:
        w, bias = _weight_and_bias(w, bias)
    if type(x) is np.ndarray and bias is None:
        y = _small(x, w, out)
        if y is not None:
            return y
    o = operands(x, w, bias, out)
    _multiply(o.context, max(1, int(np.prod(o.y.shape[:-1], dtype=np.int64))), o.x, o.w, o.bias,
              o.y)
    return o.result


class Operands(NamedTuple):
    """A product's tensors, and the array that y is handed over in (None: y itself is handed)."""

    context: Any
    x: Tensor
    w: Tensor
    bias: Tensor | None
    y: Tensor
    source: Any
    out: Any

    @property
    def result(self) -> Any:
        return _arrays.hand_over(self.source, self.y) if self.out is None else self.out


def operands(x: Any, w: Any, bias: Any = None, out: Any = None,
             transposed: bool = False) -> Operands:
    """What linear() is given, as tensors of one context."""
    w, bias = _weight_and_bias(w, bias)
    context = context_for(x)
    if not _torch.is_tensor(x) and not hasattr(x, "shape"):  # lists
        x = np.asarray(x, np.float32)
    dx = input_rows(x, context)
    shape = (*dx.shape[:-1], w.shape[-1] if transposed else _rows(w))
    y = out if out is not None else _arrays.empty_like(x, shape)
    # None: packages whose arrays are immutable, and Tensor
    dy = (Tensor.from_desc(_arrays.dense_desc(dx.format, shape), context) if y is None
          else asarray(y, context=context, name="out", output=True, rows_apart=True))
    _require_shape(dy, shape)
    db = None if bias is None else asarray(bias, context=context, name="bias")
    return Operands(context, dx, w, db, dy, x, y)


def input_rows(x: Any, context: Any) -> Tensor:
    """x of a product; on a GPU slices are copied, for the fastest kernels want compact rows."""
    return asarray(x, context=context, rows_apart=context.device == "cpu")


def _weight_and_bias(w: Any, bias: Any) -> tuple[Tensor, Any]:
    """What a call with w and bias multiplies and adds."""
    if isinstance(w, Tensor):
        return w, bias
    if not isinstance(w, Layer):
        raise refuse("ARGUMENT", f"w: is a {type(w).__name__}, accepted are qk.Tensor and "
                     "qk.Layer; qk.quantize and qk.asarray make one")
    if bias is not None and w.bias is not None:
        raise refuse("ARGUMENT", "bias: is given, and the layer has one; take layer.weight to add "
                     "another")
    return w.weight, w.bias if bias is None else bias


def _require_shape(out: Tensor, shape: tuple[int, ...]) -> None:
    if out.shape != shape:
        raise refuse("SHAPE", f"out: is {list(out.shape)}, must be {list(shape)}, of w's size at "
                     "the end")


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
    wanted = (*shape[:-1], w._desc.shape[0] if w._desc.rank == 2 else _rows(w))
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
        error = context.explain(status) if status else None
        _destroy(dx)
        _destroy(dy)
    if status == CONSTANTS["QK_ERROR_WORKSPACE"]:
        return None
    if error is not None:
        raise error
    return y


class PreparedLinear:
    """One product over fixed arrays: `call()` reads x and writes y, and allocates nothing.

    For loops that reuse their buffers, so x may be a slice of a wider array but no other view, and
    bias must be compact. x, w, bias and y stay alive with it, and are not to be closed before; on a
    GPU it can be captured in a CUDA graph.
    """

    __slots__ = ("_call", "_operands", "_context", "_workspace", "y")

    def __init__(self, x: Any, w: Any, bias: Any = None, out: Any = None) -> None:
        w, bias = _weight_and_bias(w, bias)
        context = context_for(x)
        # As an output is taken: a copy would not see what x holds later.
        dx = asarray(x, context=context, output=True, rows_apart=True)
        if out is None:
            out = _arrays.empty_like(x, (*x.shape[:-1], _rows(w)))
        dy = asarray(out, context=context, name="out", output=True, rows_apart=True)
        _require_shape(dy, (*dx.shape[:-1], _rows(w)))
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

    def run() -> None:
        with context._lock:
            status = _linear(context._handle, *arguments)  # a context that grows changes its handle
            if status:
                raise context.explain(status)

    return run


def prepare(x: Any, w: Any, bias: Any = None, *, out: Any = None) -> PreparedLinear:
    """linear(x, w, bias, out=out) to be repeated on the same arrays; runs once."""
    return PreparedLinear(x, w, bias, out)


class Layer:
    """A weight [n,k] and perhaps a bias [n]; whatever takes a Tensor as a weight takes a Layer.

    `layer(x)` and linear(x, layer) are x . transpose(weight) + bias for x [..., k]; `layer @ x` is
    weight @ x alone. quantize, repack and with_weight make layers with the same bias.
    """

    def __init__(self, weight: Tensor, bias: Tensor | Any = None, *, name: str = "",
                 dense_format: str | None = None) -> None:
        self.weight, self.bias, self.name = weight, bias, name
        self.dense_format = dense_format

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight.shape

    def __matmul__(self, x: Any) -> Any:
        return self.weight @ x

    __array_ufunc__ = None

    def __call__(self, x: Any, *, out: Any = None) -> Any:
        return linear(x, self.weight, self.bias, out=out)

    def repack(self, layout: str = "packed") -> Layer:
        """The same layer in another layout: "packed" for the fastest products."""
        return self.with_weight(self.weight.repack(layout))

    def with_weight(self, weight: Tensor) -> Layer:
        """The same layer, its weight in another form."""
        return Layer(weight, self.bias, name=self.name, dense_format=self.dense_format)

    def slice(self, dim: int, begin: int, end: int, *, context: Any = None) -> Layer:
        """Rows (dim 0) or columns (dim 1) of the weight as a layer of their own; see Tensor.slice.

        Rows have their part of the bias. Of slices along k the first has the whole bias and the
        others none: the sum of what they give is what the layer gives.
        """
        weight, bias = self.weight.slice(dim, begin, end, context=context), self.bias
        if bias is not None and dim == 1:
            bias = bias if begin == 0 else None
        if bias is not None:
            first, last = (begin, end) if dim == 0 else (0, bias.shape[0])
            bias = _part_of_bias(bias, first, last, weight.context)
        return Layer(weight, bias, name=self.name, dense_format=self.dense_format)

    def dequantize(self, dtype: Any = None, *, out: Any = None, like: Any = None,
                   transposed: bool = False) -> Any:
        """The weight [n,k]; see Tensor.dequantize."""
        return self.weight.dequantize(dtype, out=out, like=like, transposed=transposed)

    def close(self) -> None:
        self.weight.close()
        if isinstance(self.bias, Tensor):
            self.bias.close()

    def __enter__(self) -> Layer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<qk.Layer {self.name!r} {self.weight!r}{'' if self.bias is None else ' + bias'}>"


def _part_of_bias(bias: Any, begin: int, end: int, context: Any) -> Any:
    """Of a Tensor a copy where the weight is, of another package's array a view."""
    if not isinstance(bias, Tensor):
        return bias[begin:end]
    part = Tensor.from_desc(_arrays.dense_desc(bias.format, (end - begin,)), context)
    item = bias.nbytes // bias.shape[0]
    part.set_plane("data", bias.plane("data").view(np.uint8)[begin * item:end * item])
    return part
