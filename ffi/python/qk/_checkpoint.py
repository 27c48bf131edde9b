"""Checkpoint files: layers in."""
from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from ._abi import CONSTANTS, DIALECTS, DTYPES, FORMAT_NAMES, STRUCTS, lib
from ._checks import INT32_MAX, Handle, integer, path_bytes, text
from ._context import Context, current_context
from ._errors import CallError, make_error, refuse
from ._files import Message
from ._linear import Layer
from ._tensor import Tensor

_byref = ctypes.byref
_DTYPE_NAMES = {value: name for name, value in DTYPES.items()}
_DIALECT_NAMES = {value: name for name, value in DIALECTS.items()}
_NUMPY = {"bool": np.bool_, "u8": np.uint8, "i8": np.int8, "i16": np.int16, "u16": np.uint16,
          "f16": np.float16, "bf16": np.uint16, "i32": np.int32, "u32": np.uint32,
          "f32": np.float32, "c64": np.complex64, "f64": np.float64, "i64": np.int64,
          "u64": np.uint64}


class LayerInfo(NamedTuple):
    """A linear layer of a file, loadable or not."""

    name: str
    dialect: str  #: "bitsandbytes", "awq_gemm", "gptq_v2", "compressed_tensors", "dense", ...
    status: int  #: 0: Checkpoint[name] takes it
    reason: str  #: why not, one sentence
    has_bias: bool
    dense_format: str | None  #: what the weights were before, or what the scales are in
    nbytes: int  #: of the layer's tensors in the file
    shape: tuple[int, ...]  #: (n, k), of experts (E, n, k); () where it cannot be loaded


class Checkpoint(Handle, Mapping[str, Layer]):
    """An open checkpoint: a mapping from names of layers to layers, read when asked for.

    Iterating gives every layer of the files, loadable or not; `layers` says which. Each
    checkpoint[name] loads it again: keep what you use often.
    """

    _destroy = lib.qk_checkpoint_destroy
    _instead = "qk.load(checkpoint.path) opens the files again"

    def __init__(self, path: str | os.PathLike[str], *, context: Context | None = None,
                 in_place: bool = False, read: bool = False) -> None:
        self._handle, self._what = None, f"checkpoint {os.fspath(path)!r}"
        options = STRUCTS["qk_checkpoint_options"](
            struct_size=ctypes.sizeof(STRUCTS["qk_checkpoint_options"]),
            abi_version=CONSTANTS["QK_ABI_VERSION"],
            flags=CONSTANTS["QK_CHECKPOINT_READ"] if read else 0)
        out = ctypes.c_void_p()
        Message().call(lib.qk_checkpoint_open, path_bytes(path), _byref(options), _byref(out))
        self._handle, self._context = out.value, context
        self._flags = CONSTANTS["QK_LOAD_IN_PLACE"] if in_place else 0
        self.path = os.fspath(path)

    @property
    def layers(self) -> list[LayerInfo]:
        """Every linear layer, in order of names."""
        found = []
        for i in range(lib.qk_checkpoint_layer_count(self.handle)):
            raw = STRUCTS["qk_layer"]()
            status = lib.qk_checkpoint_layer(self.handle, i, _byref(raw), ctypes.sizeof(raw))
            if status:
                raise make_error(status)
            found.append(_info(raw))
        return found

    def layer(self, name: str) -> LayerInfo:
        """What the file says of one layer; KeyError where it has none of that name."""
        raw = STRUCTS["qk_layer"]()
        if lib.qk_checkpoint_find_layer(self.handle, text(name, "layer"), _byref(raw),
                                        ctypes.sizeof(raw)):
            raise KeyError(name)
        return _info(raw)

    @property
    def expert_layers(self) -> list[LayerInfo]:
        """The projections of mixtures, in order of names; see experts()."""
        found = []
        for i in range(lib.qk_checkpoint_expert_layer_count(self.handle)):
            raw = STRUCTS["qk_layer"]()
            if status := lib.qk_checkpoint_expert_layer(self.handle, i, _byref(raw),
                                                        ctypes.sizeof(raw)):
                raise make_error(status)
            found.append(_info(raw))
        return found

    def experts(self, name: str, up: str | None = None) -> Layer:
        """All experts of one projection as one weight [E,n,k], and their biases [E,n].

        name: "model.layers.0.mlp.experts.*.down_proj" where each expert is a layer of the file, or
        the one layer that has all. up: a second projection, whose rows of each expert follow those
        of the first: experts("...*.gate_proj", "...*.up_proj") is [E,2n,k], for experts(...,
        activation="silu"). Raises where experts differ in format or shape, or one is missing.
        """
        raw = STRUCTS["qk_layer"]()
        if lib.qk_checkpoint_find_expert_layer(self.handle, text(name, "layer"), _byref(raw),
                                               ctypes.sizeof(raw)):
            raise KeyError(name)
        return self._load(lib.qk_checkpoint_load_experts, _info(raw),
                          None if up is None else text(up, "up"))

    def __getitem__(self, name: str) -> Layer:
        """Loads one layer to the context's device; raises with the reason where it cannot."""
        return self._load(lib.qk_checkpoint_load, self.layer(name))

    def slice(self, name: str, dim: int, begin: int, end: int) -> Layer:
        """Rows (dim 0) or columns (dim 1) of one layer, as Layer.slice makes them.

        Of codes and scales only the slice's bytes are read, where the file stores them as qk does.
        """
        host = self._context or current_context()
        if host.device != "cpu":
            host = current_context()
        with self._load(lib.qk_checkpoint_load, self.layer(name), context=host,
                        flags=CONSTANTS["QK_LOAD_IN_PLACE"]) as whole:
            return whole.slice(dim, begin, end, context=self._context or host)

    def _load(self, function: Any, info: LayerInfo, *more: Any, context: Context | None = None,
              flags: int | None = None) -> Layer:
        context = context or self._context or current_context()
        flags = self._flags if flags is None else flags
        weight, bias = ctypes.c_void_p(), ctypes.c_void_p()
        with context._lock:
            Message().call(function, self.handle, context._handle, text(info.name, "layer"), *more,
                           flags, _byref(weight), _byref(bias))
        keep = self if flags else None
        return Layer(Tensor(weight.value or 0, context, keep),
                     Tensor(bias.value, context, keep) if bias.value else None, name=info.name,
                     dense_format=info.dense_format)

    def __iter__(self) -> Iterator[str]:
        return (layer.name for layer in self.layers)

    def __len__(self) -> int:
        return lib.qk_checkpoint_layer_count(self.handle)  # type: ignore[no-any-return]

    def __contains__(self, name: object) -> bool:
        try:
            spelled = text(name, "layer")
        except CallError:  # no layer can have it
            return False
        raw = STRUCTS["qk_layer"]()
        return not lib.qk_checkpoint_find_layer(self.handle, spelled, _byref(raw),
                                                ctypes.sizeof(raw))

    def verify(self, name: str) -> str:
        """Raises where a scale, offset or bias is not finite; returns a note, mostly ""."""
        return Message().call(lib.qk_checkpoint_verify_layer, self.handle,
                               text(name, "layer"))

    def tensor(self, name: str) -> np.ndarray[Any, Any]:
        """One raw tensor of the files as a read-only view (bf16 as uint16 bits)."""
        raw = STRUCTS["qk_file_tensor"]()
        if lib.qk_checkpoint_find_tensor(self.handle, text(name, "tensor"), _byref(raw)):
            raise KeyError(name)
        kind = _DTYPE_NAMES.get(raw.dtype, "unknown")
        if kind not in _NUMPY:
            raise refuse("FORMAT", f"{name}: numpy has no {raw.dtype_name.decode()}")
        shape = (ctypes.c_int64 * raw.rank).from_address(raw.shape)[:] if raw.rank else []
        if not raw.bytes:
            return np.empty(shape, _NUMPY[kind])
        memory = (ctypes.c_uint8 * raw.bytes).from_address(raw.data)
        memory._checkpoint = self  # the view's base keeps the file open
        view = np.frombuffer(memory, np.uint8).view(_NUMPY[kind]).reshape(shape)
        view.flags.writeable = False
        return view

    @property
    def tensors(self) -> list[str]:
        """Names of all raw tensors."""
        names = []
        for i in range(lib.qk_checkpoint_tensor_count(self.handle)):
            raw = STRUCTS["qk_file_tensor"]()
            if status := lib.qk_checkpoint_tensor(self.handle, i, _byref(raw)):
                raise make_error(status)
            names.append(raw.name.decode())
        return names

    @property
    def metadata(self) -> dict[str, str]:
        pairs = {}
        for i in range(lib.qk_checkpoint_metadata_count(self.handle)):
            key, value = ctypes.c_char_p(), ctypes.c_char_p()
            if status := lib.qk_checkpoint_metadata(self.handle, i, _byref(key), _byref(value)):
                raise make_error(status)
            pairs[(key.value or b"").decode()] = (value.value or b"").decode()
        return pairs

    def close(self) -> None:
        """Closes the files. Not while views of tensor() or layers loaded in place are in use."""
        super().close()


def _info(raw: Any) -> LayerInfo:
    return LayerInfo(raw.name.decode(), _DIALECT_NAMES.get(raw.dialect, "unknown"), raw.status,
                     raw.reason.decode(), bool(raw.has_bias), FORMAT_NAMES.get(raw.dense_format),
                     raw.bytes, tuple(raw.desc.shape[:raw.desc.rank]))


def load(path: str | os.PathLike[str], *, device: str = "cpu", index: int = 0,
         context: Context | None = None, in_place: bool = False,
         read: bool = False) -> Checkpoint:
    """Opens a .safetensors file, an index.json or a folder with either.

    in_place (CPU): layers point into the mapped file instead of being copied. read: copy the file
    into memory at opening, immune against others truncating it.
    """
    index = integer(index, "index", 0, INT32_MAX)
    if context is None and (device, index) != ("cpu", 0):
        context = current_context(device, index)
    return Checkpoint(path, context=context, in_place=in_place, read=read)
