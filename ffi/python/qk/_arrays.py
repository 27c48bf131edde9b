"""Arrays of other packages, in and out without a copy: numpy, DLPack, __cuda_array_interface__."""
from __future__ import annotations

import collections
import ctypes
import functools
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _torch
from ._abi import CONSTANTS, FORMATS, STRUCTS, lib
from ._errors import refuse

_api = ctypes.pythonapi
_api.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_New.restype = ctypes.py_object
# Names of capsules, which keep the address: of DLPack 1.x, once taken, and before 1.0.
VERSIONED, USED, OLD = b"dltensor_versioned", b"used_dltensor_versioned", b"dltensor"
DEVICE_NAMES = {1: "cpu", 2: "cuda"}  # DLPack's numbers, and qk's

_FORMAT_OF: dict[np.dtype[Any], str] = {np.dtype(np.float32): "f32", np.dtype(np.float16): "f16",
    np.dtype(np.int8): "i8", np.dtype(np.int16): "i16", np.dtype(np.int32): "i32"}
_DTYPE_OF: dict[str, np.dtype[Any]] = {name: dtype for dtype, name in _FORMAT_OF.items()}
_DLPACK_TYPES = {(2, 32): "f32", (2, 16): "f16", (4, 16): "bf16", (0, 8): "i8", (0, 16): "i16",
                 (0, 32): "i32"}


class _DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32),
                ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


class Memory(NamedTuple):
    """A dense array as its address; `keep` holds it alive."""

    pointer: int
    shape: tuple[int, ...]
    format: str
    device: str
    device_index: int
    read_only: bool
    keep: Any
    row_stride: int = 0  # as qk_tensor_desc has it


def numpy_dtype(format: str) -> np.dtype[Any]:
    """numpy's type for a dense format; bf16 needs the package ml_dtypes."""
    if format in _DTYPE_OF:
        return np.dtype(_DTYPE_OF[format])
    if format == "bf16":
        try:
            import ml_dtypes
            return np.dtype(ml_dtypes.bfloat16)  # type: ignore[no-any-return]
        except ImportError:
            raise TypeError("numpy has no bfloat16: install ml_dtypes, take dtype='f32', or "
                            "Tensor.plane('data') for the bits") from None
    raise TypeError(f"{format} is not dense")


def format_of(dtype: Any) -> str | None:
    """"f32" of np.float32, torch.float32, "float32" or "f32"; None where qk has no such type."""
    if isinstance(dtype, str) and dtype in FORMATS:
        return dtype
    text = str(dtype).rsplit(".", 1)[-1]
    if text in ("bfloat16", "<class 'bfloat16'>"):
        return "bf16"
    try:
        return _FORMAT_OF.get(np.dtype(dtype if isinstance(dtype, (type, np.dtype)) else text))
    except TypeError:
        return None


@functools.lru_cache(maxsize=4096)
def dense_desc(format: str, shape: tuple[int, ...], read_only: bool = False,
               row_stride: int = 0) -> Any:
    """The description of a dense tensor; shared, so it is never written."""
    if not 1 <= len(shape) <= CONSTANTS["QK_MAX_RANK"]:
        raise refuse("SHAPE", f"rank is {len(shape)}, accepted are 1 to 4")
    desc = STRUCTS["qk_tensor_desc"](
        struct_size=ctypes.sizeof(STRUCTS["qk_tensor_desc"]), format=FORMATS[format],
        rank=len(shape), flags=CONSTANTS["QK_TENSOR_READ_ONLY"] if read_only else 0,
        row_stride=row_stride)
    desc.shape[:len(shape)] = shape
    return desc


def _row_stride(shape: tuple[int, ...], strides: Sequence[int]) -> int:
    """From one row to the next where rows are runs equally far apart, else 0; both in elements."""
    if not shape or (shape[-1] != 1 and strides[-1] != 1):
        return 0
    first = expected = 0
    for extent, stride in zip(reversed(shape[:-1]), reversed(strides[:-1])):
        if extent == 1:
            continue
        if stride < shape[-1] or (first and stride != expected):
            return 0
        first, expected = first or stride, stride * extent
    return first


def _refuse_gaps(name: str, rows_apart: bool) -> Exception:
    return refuse("SHAPE", f"{name}: is not row-major with its rows equally far apart" if rows_apart
                  else f"{name}: is not compact and row-major")


def from_numpy(array: np.ndarray[Any, Any], name: str, output: bool,
               rows_apart: bool = False) -> Memory:
    format = _FORMAT_OF.get(array.dtype) or format_of(array.dtype)
    if format is None:
        raise refuse("FORMAT", f"{name}: is {array.dtype}, accepted are float32, float16, "
                     "bfloat16, int8, int16 and int32")
    if isinstance(array, np.ma.MaskedArray):
        raise refuse("ARGUMENT", f"{name}: is a masked array, accepted are arrays without a mask; "
                     f"{name}.filled(0) makes one")
    stride = 0
    if not array.flags.c_contiguous:
        if rows_apart:
            steps = [divmod(step, array.itemsize) for step in array.strides]
            stride = _row_stride(array.shape, [0 if rest else whole for whole, rest in steps])
        if not stride and output:
            raise _refuse_gaps(name, rows_apart)
        if not stride:
            array = np.ascontiguousarray(array)
    facts = array.__array_interface__
    return Memory(facts["data"][0], array.shape, format, "cpu", 0, facts["data"][1], array, stride)


def _from_cuda_interface(array: Any, name: str) -> Memory:
    facts = array.__cuda_array_interface__
    format = _FORMAT_OF.get(np.dtype(facts["typestr"]))
    if format is None:
        raise refuse("FORMAT", f"{name}: is {facts['typestr']}, accepted are <f4, <f2, |i1, <i2, "
                     "<i4")
    if facts.get("strides") is not None:
        size = np.dtype(facts["typestr"]).itemsize
        for extent, stride in zip(reversed(facts["shape"]), reversed(facts["strides"])):
            if extent != 1 and stride != size:
                raise refuse("SHAPE", f"{name}: is not compact and row-major")
            size *= extent
    device = getattr(getattr(array, "device", None), "id", 0)
    return Memory(facts["data"][0], tuple(facts["shape"]), format, "cuda",
                  device if isinstance(device, int) else 0, bool(facts["data"][1]), array)


def _from_old_dlpack(capsule: Any, name: str) -> Memory:
    """DLPack before 1.0: the capsule stays the owner and is kept with the tensor."""
    tensor = _DLTensor.from_address(_api.PyCapsule_GetPointer(capsule, OLD))
    format = _DLPACK_TYPES.get((tensor.code, tensor.bits))
    shape = tuple(tensor.shape[:tensor.ndim])
    if format is None or tensor.lanes != 1:
        raise refuse("FORMAT", f"{name}: DLPack type (code {tensor.code}, {tensor.bits} bits) is "
                     "not f32, f16, bf16, i8 or i16")
    size = 1
    for i in reversed(range(tensor.ndim)):
        if tensor.strides and shape[i] != 1 and tensor.strides[i] != size:
            raise refuse("SHAPE", f"{name}: is not compact and row-major")
        size *= shape[i]
    return Memory((tensor.data or 0) + tensor.byte_offset, shape, format,
                  DEVICE_NAMES.get(tensor.device_type, "unknown"), tensor.device_id, False,
                  capsule)


_torch_formats: dict[Any, str | None] = {}  # by torch.dtype, as they are met


def _from_torch(tensor: Any, name: str, output: bool, rows_apart: bool) -> Memory:
    _torch.require_values(tensor, name)
    place = _torch.device_of(tensor, name)
    if tensor.dtype not in _torch_formats:
        _torch_formats[tensor.dtype] = format_of(tensor.dtype)
    format = _torch_formats[tensor.dtype]
    if format is None:
        raise refuse("FORMAT", f"{name}: is {tensor.dtype}, accepted are float32, float16, "
                     "bfloat16, int8, int16 and int32")
    stride = 0
    if not tensor.is_contiguous() or tensor.is_neg():
        if rows_apart and not tensor.is_neg():
            stride = _row_stride(tuple(tensor.shape), tensor.stride())
        if not stride and output:
            raise _refuse_gaps(name, rows_apart)
        if not stride:
            tensor = tensor.resolve_neg().contiguous()
    address = _torch.address_of(tensor, name)
    return Memory(address, tuple(tensor.shape), format, *place, False, tensor, stride)


def require_values(array: Any, name: str) -> None:
    """Refuses what a transformation of torch or jax puts in an array's place."""
    if type(array) is np.ndarray:
        return
    if _torch.is_tensor(array):
        _torch.require_values(array, name)
    elif _is_tracer(array) or _torch.is_proxy(array):
        raise refuse("ARGUMENT", f"{name}: is a {type(array).__name__}, which a transformation of "
                     f"{type(array).__module__.split('.')[0]} records with, without values; call "
                     "qk outside of it")


def _is_tracer(array: Any) -> bool:
    """What jax.jit, grad and vmap give a function instead of arrays."""
    core = getattr(sys.modules.get("jax"), "core", None)
    return core is not None and isinstance(array, core.Tracer)


def device_of(array: Any, name: str = "x") -> tuple[str, int]:
    """("cuda", 0) of any array-like."""
    if isinstance(array, np.ndarray):
        return "cpu", 0
    if _torch.is_tensor(array):
        return _torch.device_of(array, name)
    require_values(array, name)
    if hasattr(array, "__dlpack_device__"):
        kind, index = array.__dlpack_device__()
        if int(kind) not in DEVICE_NAMES:
            raise refuse("ARGUMENT", f"{name}: is on DLPack's device {int(kind)}, accepted are 1 "
                         "(cpu) and 2 (cuda)")
        return DEVICE_NAMES[int(kind)], int(index)
    if hasattr(array, "__cuda_array_interface__"):
        return "cuda", _from_cuda_interface(array, name).device_index
    return "cpu", 0


def stream_of(array: Any, index: int) -> int | None:
    """The stream that the array's package queues its work on; None: the default stream."""
    package = type(array).__module__.split(".")[0]
    if _torch.is_tensor(array):
        return sys.modules["torch"].cuda.current_stream(index).cuda_stream or None
    if package == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr or None
    stream = getattr(array, "__cuda_array_interface__", {}).get("stream")
    return None if stream in (None, 1) else int(stream)


def export(array: Any, name: str, stream: int | None, output: bool,
           rows_apart: bool) -> Memory | Any:
    """A DLPack capsule (1.x) of the array, ready on the stream; or its memory where older."""
    if _torch.is_tensor(array):
        return _from_torch(array, name, output, rows_apart)
    require_values(array, name)
    if not hasattr(array, "__dlpack__"):
        if hasattr(array, "__cuda_array_interface__"):
            return _from_cuda_interface(array, name)
        return from_numpy(np.asarray(array), name, output, rows_apart)
    if getattr(array, "requires_grad", False):
        raise refuse("ARGUMENT", f"{name}: requires gradients, which qk does not compute")
    if not output and hasattr(array, "contiguous"):
        array = array.contiguous()
    capsule = capsule_of(array, stream)
    if _api.PyCapsule_IsValid(capsule, VERSIONED):
        return capsule
    return _from_old_dlpack(capsule, name)


def capsule_of(array: Any, stream: int | None) -> Any:
    """The array's DLPack capsule, of 1.x where its package can."""
    options: dict[str, Any] = {}
    if array.__dlpack_device__()[0] == 2:  # CUDA: 1 is DLPack's word for the default stream
        options["stream"] = stream or 1
    try:
        return array.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # a producer from before DLPack 1.0
        return array.__dlpack__(**options)


def dlpack_tensor(capsule: Any) -> tuple[_DLTensor, bool]:
    """What a capsule describes, and whether it must not be written."""
    if not _api.PyCapsule_IsValid(capsule, VERSIONED):
        return _DLTensor.from_address(_api.PyCapsule_GetPointer(capsule, OLD)), False
    managed = capsule_pointer(capsule)  # {u32 major, minor; manager; deleter; u64 flags; tensor}
    return (_DLTensor.from_address(managed + 32),
            bool(ctypes.c_uint64.from_address(managed + 24).value & 1))


def capsule_pointer(capsule: Any) -> int:
    return _api.PyCapsule_GetPointer(capsule, VERSIONED)  # type: ignore[no-any-return]


def mark_used(capsule: Any) -> None:
    """The library owns what was inside from now on."""
    _api.PyCapsule_SetName(capsule, USED)


# Capsules handed out. A destructor would be Python code that runs while the exception of a consumer
# that refused is on its way, and would replace it; so the next export frees what was not taken.
_exported: collections.deque[Any] = collections.deque()


def _references_of_a_local() -> int:
    probe = object()
    return sys.getrefcount(probe)


_ALONE = _references_of_a_local()


def drop_unused() -> None:
    """Frees the views in capsules that were not consumed and are no longer referenced."""
    for _ in range(len(_exported)):
        try:
            capsule = _exported.popleft()
        except IndexError:  # another thread took the last one
            return
        for name, deleter_at in ((VERSIONED, 16), (OLD, ctypes.sizeof(_DLTensor) + 8)):
            if not _api.PyCapsule_IsValid(capsule, name):
                continue
            if sys.getrefcount(capsule) > _ALONE:
                _exported.append(capsule)
            else:
                call_deleter(_api.PyCapsule_GetPointer(capsule, name), deleter_at)


def call_deleter(pointer: int, deleter_at: int = 16) -> None:
    """DLManagedTensorVersioned: {u32 major, minor; void *manager; void (*deleter)(self); ...}"""
    deleter = ctypes.c_void_p.from_address(pointer + deleter_at).value
    if deleter:
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(pointer)


def data_of(pointer: int) -> int:
    """The address of its elements."""
    return ctypes.c_void_p.from_address(pointer + 32).value or 0


class _OldManaged(ctypes.Structure):
    """DLManagedTensor, as it was before DLPack 1.0."""

    _fields_ = [("tensor", _DLTensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_handed_out: dict[int, _OldManaged] = {}  # by address, until their consumers let go


def _delete_old(address: int) -> None:
    call_deleter(_handed_out.pop(address).manager)


_old_deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_delete_old)


def make_capsule(pointer: int, old: bool = False) -> Any:
    """A capsule of the library's view; old: as consumers from before DLPack 1.0 want it."""
    drop_unused()
    name = VERSIONED
    if old:
        managed = _OldManaged(_DLTensor.from_address(pointer + 32), pointer,
                              ctypes.cast(_old_deleter, ctypes.c_void_p))
        name, pointer = OLD, ctypes.addressof(managed)
        _handed_out[pointer] = managed
    capsule = _api.PyCapsule_New(pointer, name, None)
    _exported.append(capsule)
    return capsule


def empty_like(array: Any, shape: tuple[int, ...]) -> Any:
    """A new array of the same package, type and device; None where its arrays cannot be written."""
    if isinstance(array, np.ndarray):
        return np.empty(shape, array.dtype)
    if hasattr(array, "new_empty"):  # torch
        return array.new_empty(shape)
    if type(array).__module__.split(".")[0] == "cupy":
        return sys.modules["cupy"].empty(shape, array.dtype)
    return None


def hand_over(array: Any, tensor: Any) -> Any:
    """A tensor of ours as an array of the package that `array` is of (jax: immutable arrays)."""
    package = type(array).__module__.split(".")[0]
    if package in ("jax", "jaxlib"):
        return sys.modules["jax"].numpy.from_dlpack(tensor)
    if package == "tvm_ffi":
        return sys.modules["tvm_ffi"].from_dlpack(tensor)
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__().from_dlpack(tensor)
    return tensor


def convert(bits: np.ndarray[Any, Any], source: str, target: str) -> np.ndarray[Any, Any]:
    """Stored floats in another dense format, to nearest even; bf16 as uint16 bits."""
    if source == target:
        return bits
    wide = bits.astype(np.float32) if source != "bf16" else (
        bits.astype(np.uint32) << 16).view(np.float32)
    if target == "f32":
        return wide
    if target == "f16":
        with np.errstate(over="ignore"):
            return wide.astype(np.float16)
    raw = wide.view(np.uint32)
    rounded = ((raw.astype(np.uint64) + 0x7FFF + ((raw >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(wide), np.uint16(0x7FC0), rounded)
