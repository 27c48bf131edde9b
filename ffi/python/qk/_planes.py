"""Memory that arrays of any package and type hold, as the planes of a weight."""
from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np

from . import _arrays, _torch
from ._abi import CONSTANTS, LAYOUT_NAMES, PLANES, STRUCTS, lib
from ._context import Context, current_context
from ._desc import lookup
from ._errors import make_error, refuse

PLANE_COUNT = CONSTANTS["QK_PLANE_COUNT"]
PLANE_ARRAY = ctypes.c_void_p * PLANE_COUNT


class Run(NamedTuple):
    """The bytes of an array, in row-major order; `keep` holds them alive."""

    pointer: int
    nbytes: int
    device: str
    device_index: int
    read_only: bool
    keep: Any


def run_of(array: Any, name: str) -> Run:
    """An array's bytes, without a copy, whatever its element type is."""
    if _torch.is_tensor(array):
        _torch.require_values(array, name)
        _require_compact(array.is_contiguous() and not array.is_neg(), name)
        return Run(_torch.address_of(array, name), array.numel() * array.element_size(),
                   *_torch.device_of(array, name), False, array)
    _arrays.require_values(array, name)
    if hasattr(array, "__cuda_array_interface__"):
        return _of_interface(array, name)
    if hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        return _of_dlpack(array, name)
    host = array if isinstance(array, np.ndarray) else np.frombuffer(array, np.uint8)
    _require_compact(host.flags.c_contiguous, name)
    return Run(host.__array_interface__["data"][0], host.nbytes, "cpu", 0,
               not host.flags.writeable, array if host is array else host)


def _require_compact(is_compact: bool, name: str) -> None:
    if not is_compact:
        raise refuse("SHAPE", f"{name}: is not compact and row-major")


def _of_interface(array: Any, name: str) -> Run:
    facts = array.__cuda_array_interface__
    item = np.dtype(facts["typestr"]).itemsize
    size = item
    for extent, stride in zip(reversed(facts["shape"]), reversed(facts.get("strides") or ())):
        _require_compact(extent == 1 or stride == size, name)
        size *= extent
    index = getattr(getattr(array, "device", None), "id", 0)
    return Run(facts["data"][0], item * int(np.prod(facts["shape"], dtype=np.int64)), "cuda",
               index if isinstance(index, int) else 0, bool(facts["data"][1]), array)


def _of_dlpack(array: Any, name: str) -> Run:
    """The capsule stays the owner, and is kept."""
    device, index = _arrays.device_of(array, name)
    stream = current_context(device, index).stream if device == "cuda" else None
    capsule = _arrays.capsule_of(array, stream)
    tensor, read_only = _arrays.dlpack_tensor(capsule)
    size = 1
    for i in reversed(range(tensor.ndim)):
        _require_compact(not tensor.strides or tensor.shape[i] == 1 or tensor.strides[i] == size,
                         name)
        size *= tensor.shape[i]
    return Run((tensor.data or 0) + tensor.byte_offset, size * tensor.bits * tensor.lanes // 8,
               device, index, read_only, capsule)


def wrap_planes(desc: Any, planes: dict[str, Any],
                context: Context | None) -> tuple[int, Context, list[Any]]:
    """A handle over the planes, its context, and what to keep alive with it."""
    runs = {lookup(PLANES, name, "planes"): run_of(array, f"planes[{name!r}]")
            for name, array in planes.items()}
    if not runs:
        raise refuse("NULL", "planes: is empty, a tensor has at least the plane 'data'")
    first = next(iter(runs.values()))
    if context is None:
        context = current_context(first.device, first.device_index)
        if first.device == "cuda":
            context.follow_stream(_arrays.stream_of(next(iter(planes.values())),
                                                    first.device_index))
    spans = (STRUCTS["qk_span"] * PLANE_COUNT)()
    for (number, run), name in zip(runs.items(), planes):
        if (run.device, run.device_index) != (context.device, context.index):
            raise refuse("DEVICE_MIX", f"planes[{name!r}]: lives on {run.device}:"
                         f"{run.device_index}, the context on {context.device}:{context.index}")
        spans[number] = STRUCTS["qk_span"](run.pointer or None, run.nbytes)
        if run.read_only:
            desc.flags |= CONSTANTS["QK_TENSOR_READ_ONLY"]
    out = ctypes.c_void_p()
    context.call(lib.qk_tensor_wrap_sized, ctypes.byref(desc), ctypes.byref(spans), PLANE_COUNT,
                 ctypes.byref(out))
    return out.value or 0, context, [run.keep for run in runs.values()]


def plane_bytes(desc: Any, plane: int) -> int:
    out = ctypes.c_size_t()
    status = lib.qk_tensor_plane_bytes(ctypes.byref(desc), plane, ctypes.byref(out))
    if status and LAYOUT_NAMES.get(desc.layout) == "packed":
        raise make_error(status, "tensor: is packed, in a form of the device's own whose planes "
                         "nobody else can read; repack('row') makes one that has them")
    if status:
        raise make_error(status)
    return out.value


def address_of(tensor: Any, plane: str) -> int:
    """Where a plane is; the tensor keeps the memory."""
    out = ctypes.c_void_p()
    tensor.context.call_for(lib.qk_tensor_to_dlpack, tensor.handle, PLANES[plane],
                            ctypes.byref(out))
    address = _arrays.data_of(out.value or 0)
    _arrays.call_deleter(out.value or 0)
    return address


def host_plane(tensor: Any, plane: str) -> np.ndarray[Any, Any]:
    """A plane's bytes, of the tensor's own memory where that is the host's: valid while it is."""
    if tensor.context.device != "cpu":
        return tensor.plane(plane)  # type: ignore[no-any-return]
    size = plane_bytes(tensor.desc, PLANES[plane])
    memory: Any = (ctypes.c_uint8 * size).from_address(address_of(tensor, plane))
    view: np.ndarray[Any, Any] = np.frombuffer(memory, np.uint8)
    return view
