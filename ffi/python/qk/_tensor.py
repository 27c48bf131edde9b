"""Tensors: shape, format, layout and storage on one device."""
from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from . import _arrays, _torch
from ._abi import CONSTANTS, FORMAT_NAMES, LAYOUT_NAMES, LAYOUTS, PLANES, lib
from ._checks import INT64_MAX, Handle, integer
from ._context import Context, current_context
from ._desc import DESC as _DESC
from ._desc import lookup, make_desc, quantized_desc
from ._errors import refuse
from ._planes import address_of, host_plane, plane_bytes, wrap_planes
from ._slices import slice_planes
from ._values import float_format, values_of

_DENSE = ("f32", "f16", "bf16", "i8", "i16", "i32")
_byref = ctypes.byref


class Tensor(Handle):
    """A dense array or a quantized weight [n,k], on the CPU or a GPU.

    Made by asarray, quantize, load, repack or Tensor.empty. Dense ones export themselves by
    DLPack and, on a GPU, __cuda_array_interface__, so `torch.from_dlpack(t)` shares the memory.
    `with tensor:` closes it at the end; a garbage-collected one closes itself.
    """

    __slots__ = ("_desc", "context", "_keep", "__weakref__")
    _destroy = lib.qk_tensor_destroy
    _what = "tensor"
    _instead = "repack(), to() and to_device() make other tensors, qk.save() a file"
    __array_ufunc__ = None  # numpy steps back: array @ tensor is an error, not an object array

    def __init__(self, handle: int, context: Context, keep: Any = None, desc: Any = None) -> None:
        self._handle = handle
        self.context, self._keep = context, keep
        if desc is None:
            desc = _DESC(struct_size=ctypes.sizeof(_DESC))
            context.call_for(lib.qk_tensor_describe, handle, _byref(desc))
        self._desc = desc

    @classmethod
    def empty(cls, shape: tuple[int, ...], format: str = "f32", *, scale: str | None = None,
              layout: str = "row", group_size: int = 0, grouping: str = "default",
              scale_group_size: int = 0, symmetric: bool = False,
              global_scale: str | None = None, global_divides: bool = False,
              float_min: bool = False, ordered: bool = False,
              context: Context | None = None) -> Tensor:
        """Uninitialised storage of the context's device; a weight's shape is (n, k).

        scale: "f32", "f16", "bf16", "e8m0", "e4m3", or nested "lut8" and "i8"; group_size: codes a
        scale, -1 for a row. global_scale: "one" or "rows", a number that e8m0 and e4m3 scales are
        multiplied by, or with global_divides divided by. float_min: u4_affine and s8 have a minimum
        a group in plane "zero", stored as its scale is, instead of a zero point. ordered: columns
        are stored in the order that plane "order" gives (act-order).
        """
        desc = make_desc(shape, format, scale=scale, layout=layout, group_size=group_size,
                         grouping=grouping, scale_group_size=scale_group_size,
                         symmetric=symmetric, global_scale=global_scale,
                         global_divides=global_divides, float_min=float_min, ordered=ordered)
        return cls.from_desc(desc, context)

    @classmethod
    def from_desc(cls, desc: Any, context: Context | None = None) -> Tensor:
        """Uninitialised storage for a qk_tensor_desc, as Checkpoint.layers hands them out."""
        context = context or current_context()
        out = ctypes.c_void_p()
        context.call(lib.qk_tensor_create, _byref(desc), _byref(out))
        return cls(out.value or 0, context)

    @classmethod
    def from_planes(cls, shape: tuple[int, ...], format: str, planes: dict[str, Any], *,
                    context: Context | None = None, **options: Any) -> Tensor:
        """A weight over the memory of arrays, without a copy: {"data": codes, "scale": scales}.

        Arrays of any package (DLPack, __cuda_array_interface__, the buffer protocol) and any
        element type, compact, each at least its plane's bytes; they stay alive with the tensor.
        One that may not be written makes the tensor an input only. options: as for empty().
        """
        return cls.over(make_desc(shape, format, **options), planes, context)

    @classmethod
    def over(cls, desc: Any, planes: dict[str, Any], context: Context | None = None) -> Tensor:
        """from_planes() for a qk_tensor_desc; the description is written to."""
        handle, context, keep = wrap_planes(desc, planes, context)
        return cls(handle, context, keep)

    # ---- what it is

    @property
    def desc(self) -> Any:
        """The qk_tensor_desc, grouping resolved; read it only."""
        return self._desc

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical elements; (n, k) of a weight."""
        return tuple(self._desc.shape[:self._desc.rank])

    @property
    def format(self) -> str:
        """"f32", "nf4", "u4_affine", ..."""
        return FORMAT_NAMES[self._desc.format]

    @property
    def layout(self) -> str:
        """"row", "row_high", "awq_gemm", ..., "packed"."""
        return LAYOUT_NAMES[self._desc.layout]

    @property
    def group_size(self) -> int:
        """Codes a scale; -1 for one group a row, 0 where dense."""
        return int(self._desc.group_size)

    @property
    def scale_format(self) -> str | None:
        return FORMAT_NAMES.get(self._desc.scale_format)

    @property
    def is_dense(self) -> bool:
        return self.format in _DENSE

    @property
    def nbytes(self) -> int:
        """Of all planes; not known of a packed tensor, whose form is the device's own."""
        return sum(plane_bytes(self._desc, plane) for plane in PLANES.values())

    def workspace_bytes(self, m: int = 1) -> int:
        """Scratch that multiplying up to m rows takes in the current context (and its mode)."""
        out = ctypes.c_size_t()
        context = current_context(self.context.device, self.context.index)
        context.call(lib.qk_linear_workspace, self, integer(m, "m", 1, INT64_MAX), _byref(out))
        return out.value

    # ---- its bytes

    def plane(self, plane: str) -> np.ndarray[Any, Any]:
        """A copy of one plane on the host: bytes as uint8, scales as stored (bf16: uint16 bits)."""
        index = lookup(PLANES, plane, "plane")
        raw = np.empty(plane_bytes(self._desc, index), np.uint8)
        self.context.call(lib.qk_tensor_download, self, index, raw.ctypes.data, raw.size)
        minima = self._desc.flags & CONSTANTS["QK_TENSOR_FLOAT_MIN"]
        format = self.format if index == PLANES["data"] else {
            PLANES["scale"]: self.scale_format,
            PLANES["zero"]: self.scale_format if minima else None}.get(index, "f32")
        if index == PLANES["order"]:
            return raw.view(np.int32)
        types = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16, "i8": np.int8,
                 "i16": np.int16, "i32": np.int32, "s8": np.int8}
        typed = raw.view(types.get(format or "", np.uint8))
        return typed.reshape(self.shape) if self.is_dense else typed

    def set_plane(self, plane: str, values: np.ndarray[Any, Any]) -> None:
        """Fills one plane from host memory: exactly its bytes, any dtype."""
        values = np.ascontiguousarray(values)
        self.context.call(lib.qk_tensor_upload, self, lookup(PLANES, plane, "plane"),
                          values.ctypes.data, values.nbytes)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A dense tensor as a new numpy array (bf16 needs ml_dtypes)."""
        return self.plane("data").view(_arrays.numpy_dtype(self.format))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if not self.is_dense:
            raise TypeError(f"{self.format} is quantized; dequantize() makes it an array")
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CONSTANTS[f"QK_DEVICE_{self.context.device.upper()}"], self.context.index

    def __dlpack__(self, *, stream: Any = None, max_version: tuple[int, int] | None = None,
                   dl_device: Any = None, copy: bool | None = None, plane: str = "data") -> Any:
        """The memory of one plane, shared: dense data, or codes and scales as runs."""
        old = max_version is None or max_version[0] < 1
        if old and self._desc.flags & CONSTANTS["QK_TENSOR_READ_ONLY"]:
            raise BufferError("only DLPack 1.x can say that this tensor is read-only")
        if copy or dl_device not in (None, self.__dlpack_device__()):
            raise BufferError("qk exports its own memory, without a copy")
        if self.context.device == "cuda" and (self.context.stream or 1) != (stream or 1):
            self.context.synchronize()  # the consumer's stream knows nothing of ours
        out = ctypes.c_void_p()
        self.context.call_for(lib.qk_tensor_to_dlpack, self.handle, lookup(PLANES, plane, "plane"),
                              _byref(out))
        return _arrays.make_capsule(out.value or 0, old)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if (self.context.device != "cuda" or not self.is_dense or self.format == "bf16"
                or self._desc.row_stride):
            raise AttributeError("__cuda_array_interface__")
        return {"shape": self.shape, "typestr": _arrays.numpy_dtype(self.format).str, "version": 3,
                "data": (address_of(self, "data") or None,
                         bool(self._desc.flags & CONSTANTS["QK_TENSOR_READ_ONLY"])),
                "stream": self.context.stream or 1}

    # ---- operations

    def repack(self, layout: str = "packed") -> Tensor:
        """The same values in another layout, lossless; do it once, when loading.

        "packed" is the device's fastest for products.
        """
        desc = _DESC.from_buffer_copy(self.desc)
        desc.layout = lookup(LAYOUTS, layout, "layout")
        desc.flags &= ~CONSTANTS["QK_TENSOR_READ_ONLY"]
        out = Tensor.from_desc(desc, self.context)
        self.context.call(lib.qk_repack, self, out)
        return out

    def slice(self, dim: int, begin: int, end: int, *, context: Context | None = None) -> Tensor:
        """Rows (dim 0) or columns (dim 1) begin to end of a weight [n,k] as a weight of their own.

        The values are the same, the layout too; groups are smaller where a slice begins within one,
        and second groups where those of nested scales are cut. context: where to, by default where
        it is. Of a weight in the host's memory only the slice's bytes are read; one on a GPU takes
        its way through the host. Not of a packed weight: slice, then repack.
        """
        desc, planes = slice_planes(self._desc, lambda name: host_plane(self, name), dim,
                                    integer(begin, "begin", 0, INT64_MAX),
                                    integer(end, "end", 0, INT64_MAX))
        out = Tensor.from_desc(desc, context or self.context)
        for name, plane in planes.items():
            out.set_plane(name, plane)
        return out

    def to(self, dtype: Any = "f32") -> Tensor:
        """The values as a new dense tensor on the same device: dequantized, or converted."""
        format = float_format(dtype)
        out = Tensor.from_desc(_arrays.dense_desc(format, self.shape), self.context)
        if self.is_dense:
            out.set_plane("data", _arrays.convert(self.plane("data"), self.format, format))
        else:
            self.context.call(lib.qk_dequantize, self, out)
        return out

    def to_device(self, device: str, index: int = 0, *, context: Context | None = None) -> Tensor:
        """A copy on another device (by way of the host); not of a packed tensor. [waits]"""
        desc = _DESC.from_buffer_copy(self._desc)
        desc.flags &= ~CONSTANTS["QK_TENSOR_READ_ONLY"]
        out = Tensor.from_desc(desc, context or current_context(device, index))
        for plane, number in PLANES.items():
            if plane_bytes(desc, number):
                out.set_plane(plane, self.plane(plane))
        return out

    def dequantize(self, dtype: Any = None, *, out: Any = None, like: Any = None,
                   transposed: bool = False) -> Any:
        """The values [n,k], or with transposed [k,n]; f32, or in dtype, or in like's type.

        A numpy array (CPU) or dense Tensor (GPU), or an array of the package that `like` or dtype
        (torch.float16) is of, on the weight's device; or written to `out`.
        """
        return values_of(self, dtype, out, like, transposed)

    def __matmul__(self, x: Any) -> Any:
        """w @ x as in numpy: w [n,k], x [k] gives [n], x [k,m] gives [n,m]."""
        from ._linear import linear
        _arrays.require_values(x, "x")
        if getattr(x, "ndim", 1) == 1:
            return linear(x, self)
        if x.ndim != 2:
            raise refuse("SHAPE", f"x: has {x.ndim} dimensions, w @ x takes 1 or 2")
        transposed = x.T if hasattr(x, "T") else x
        return linear(transposed, self).T

    def close(self) -> None:
        """Gives the storage back; views exported before stay valid."""
        super().close()
        self._keep = None

    def __repr__(self) -> str:
        how = "" if self.is_dense else f", {self.layout}, groups of {self.group_size}"
        return f"<qk.Tensor {self.format}{list(self.shape)}{how}, {self.context.device}>"


def context_for(array: Any, name: str = "x") -> Context:
    """The current context of the array's device, on the stream of the array's package."""
    if isinstance(array, Tensor):
        return array.context
    device, index = _arrays.device_of(array, name)
    context = current_context(device, index)
    if device == "cuda":
        context.follow_stream(_arrays.stream_of(array, index))
    return context


def wrap_memory(context: Context, memory: _arrays.Memory, name: str) -> Tensor:
    if (memory.device, memory.device_index) != (context.device, context.index):
        raise refuse("DEVICE_MIX", f"{name}: lives on {memory.device}:{memory.device_index}, the "
                     f"context on {context.device}:{context.index}")
    if not 1 <= len(memory.shape) <= CONSTANTS["QK_MAX_RANK"]:
        raise refuse("SHAPE", f"{name}: rank is {len(memory.shape)}, accepted are 1 to 4")
    desc = _arrays.dense_desc(memory.format, memory.shape, memory.read_only, memory.row_stride)
    out = ctypes.c_void_p()
    planes = ctypes.c_void_p(memory.pointer)
    context.call(lib.qk_tensor_wrap, _byref(desc), _byref(planes), 1, _byref(out))
    return Tensor(out.value or 0, context, memory.keep, desc)


def asarray(array: Any, *, context: Context | None = None, name: str = "x",
            output: bool = False, rows_apart: bool = False) -> Tensor:
    """Any array as a dense Tensor over the same memory: numpy, DLPack, __cuda_array_interface__.

    A numpy or torch array that is not compact is copied first, except as an output. rows_apart:
    slices of a wider array are taken as they are, as x and y of products may be.
    """
    if isinstance(array, Tensor):
        return array
    if output and isinstance(array, (list, tuple)):  # what is made of it would be written
        raise refuse("ARGUMENT", f"{name}: is a {type(array).__name__}, accepted are arrays")
    context = context or context_for(array, name)
    if isinstance(array, np.ndarray):
        return wrap_memory(context, _arrays.from_numpy(array, name, output, rows_apart), name)
    exported = _arrays.export(array, name, context.stream, output, rows_apart)
    if isinstance(exported, _arrays.Memory):
        return wrap_memory(context, exported, name)
    out = ctypes.c_void_p()
    pointer = _arrays.capsule_pointer(exported)
    context.call(lib.qk_tensor_from_dlpack, pointer, _byref(out))
    _arrays.mark_used(exported)
    return Tensor(out.value or 0, context)


def dynamic_table() -> np.ndarray[Any, Any]:
    """bitsandbytes' signed 256-entry code, ascending, f32 [256]."""
    table = np.empty(256, np.float32)
    lib.qk_dynamic_table(table.ctypes.data)
    return table


def quantize(array: Any, format: str = "nf4", *, group_size: int = 0,
             scale: str = "f32", nested: bool = False, symmetric: bool = True,
             layout: str | None = None, context: Context | None = None) -> Any:
    """A weight [n,k] of any array package as a quantized Tensor on the same device.

    A Layer gives a Layer, with its bias. Of a torch parameter the values are taken, no gradient.

    format: "nf4", "fp4" (bitsandbytes), "fp4_e2m1", "int4" ((code - zero) * scale), "int8",
    "lut8", "fp8" (E4M3); "mxfp4", "mxfp8" and "nvfp4", which say how scales are stored.
    group_size: codes that share a scale, 16..4096 (lut8: any from 1), -1 for a whole row, 0 for
    the format's own, else 64. scale: how scales are stored, "f32", "f16" or "bf16"; nested: as
    8-bit codes (bitsandbytes' double quantization). symmetric: int4 without zero points. layout: by
    default what the file dialects store (row_high for nf4 and fp4, word for int4, else row); pick
    the fast one with repack().
    Arrays on a GPU are quantized there, to the bytes that the CPU would make.
    """
    from ._linear import Layer  # which stands on this module
    options: dict[str, Any] = {"group_size": group_size, "scale": scale, "nested": nested,
                               "symmetric": symmetric, "layout": layout}
    if isinstance(array, Layer):
        return array.with_weight(quantize(array.weight, format, context=context, **options))
    array = _torch.detached(array)
    with_context = context or context_for(array)
    dense = asarray(array, context=with_context)
    out = Tensor.from_desc(quantized_desc(dense.shape, format, **options), with_context)
    if out.format == "lut8":
        out.set_plane("table", dynamic_table())
    if nested:
        out.set_plane("scale_code", dynamic_table())
    with_context.call(lib.qk_quantize, dense, out)
    return out


def dequantize(tensor: Any, dtype: Any = None, *, out: Any = None, like: Any = None,
               transposed: bool = False) -> Any:
    """The weight of a Tensor or Layer; see Tensor.dequantize."""
    return tensor.dequantize(dtype, out=out, like=like, transposed=transposed)


def repack(tensor: Any, layout: str = "packed") -> Any:
    """A Tensor or Layer in another layout: tensor.repack(layout)"""
    return tensor.repack(layout)
