"""Layers out, as bitsandbytes and compressed-tensors store them."""
from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from . import _arrays, _torch
from ._abi import DIALECTS, DTYPES, FORMATS, lib
from ._checks import text
from ._desc import lookup
from ._errors import refuse
from ._files import Message, Writer, finish, refuse_existing
from ._linear import Layer
from ._tensor import Tensor, asarray

_byref = ctypes.byref
_NO_TENSORS = b"\2\0\0\0\0\0\0\0{}"  # the smallest safetensors file


class _Stored(NamedTuple):
    """A layer as the file has it."""

    name: str
    dialect: str
    desc: Any
    dense_format: int


def save(path: str | os.PathLike[str], layers: Mapping[str, Any], *,
         dense_format: str | None = None, metadata: Mapping[str, str] | None = None,
         config: bool = False, overwrite: bool = False) -> None:
    """Writes layers to a safetensors file, as bitsandbytes and compressed-tensors store them.

    layers: {"model.layers.0.mlp.up_proj": Layer or quantized Tensor, ...}; other arrays are
    stored under the name given. dense_format: what the file says the weights were, unless a Layer
    knows; by default "f16", for int4 the type of the scales. config: also config.json beside it, as
    Python's loaders need it: one that is there keeps all its keys but quantization_config.
    overwrite: whether a file at path, or a quantization_config beside it, may be replaced; else
    FileExistsError. File and config.json change at the end and together, or not at all.
    """
    refuse_existing(path, overwrite)
    beside = os.path.join(os.path.dirname(os.fsdecode(path)), "config.json")
    old = _old_config(beside, overwrite) if config else b""
    with Writer(path) as model:
        stored = _write(model, layers, dense_format, metadata or {})
        if not config:
            finish(model)
            return
        with Writer(beside) as description:
            _write_config(description, old, stored)
            finish(model, description)


def _write(writer: Writer, layers: Mapping[str, Any], dense_format: str | None,
           metadata: Mapping[str, str]) -> list[_Stored]:
    """Everything into the new file."""
    whole: dict[str, Tensor] = {}
    plain: dict[str, np.ndarray[Any, Any]] = {}
    stored: list[_Stored] = []
    for key, value in metadata.items():
        writer.call(lib.qk_writer_metadata, text(key, "metadata"),
                    text(value, f"metadata[{key!r}]"))
    for name, item in layers.items():
        weight, bias = (item.weight, item.bias) if isinstance(item, Layer) else (item, None)
        if bias is not None:
            _declare(writer, f"{name}.bias", bias, plain)
        if not isinstance(weight, Tensor):
            _declare(writer, name, weight, plain)
            continue
        known = getattr(item, "dense_format", None) or dense_format or _usual_before(weight)
        before = lookup(FORMATS, known, "dense_format")
        layer = _Stored(name, _dialect_of(weight), weight.desc, before)
        writer.call(lib.qk_writer_declare_layer, DIALECTS[layer.dialect], text(name, "layer"),
                    _byref(layer.desc), before)
        whole[name] = weight
        stored.append(layer)
    for name, weight in whole.items():
        with weight.context._lock:
            writer.call(lib.qk_writer_write_layer, weight.context._handle, text(name, "layer"),
                        weight)
    for name, array in plain.items():
        writer.call(lib.qk_writer_write, text(name, "layer"), array.ctypes.data, array.nbytes)
    return stored


def _usual_before(weight: Tensor) -> str:
    """What weights were where nothing says so; compressed-tensors': the type of their scales."""
    if weight.is_dense:
        return weight.format
    return weight.scale_format or "f16" if weight.format == "u4_affine" else "f16"


def _dialect_of(tensor: Tensor) -> str:
    return {"nf4": "bitsandbytes", "fp4_bnb": "bitsandbytes", "u4_affine": "compressed_tensors"
            }.get(tensor.format, "dense")


def _declare(writer: Writer, name: str, array: Any,
             plain: dict[str, np.ndarray[Any, Any]]) -> None:
    """An array that is stored as it is; of a torch parameter the values."""
    dense = asarray(_torch.detached(array), name=name)
    values = dense.plane("data")
    shape = (ctypes.c_int64 * max(1, values.ndim))(*values.shape)
    writer.call(lib.qk_writer_declare, text(name, "layer"), DTYPES[dense.format], values.ndim,
                shape)
    plain[name] = values


def _old_config(path: str, overwrite: bool) -> bytes:
    """The text of a config.json that is there; what it says of quantization is not lost unasked."""
    if not os.path.exists(path):
        return b"{}"
    with open(path, "rb") as file:
        old = file.read()
    try:
        keys = json.loads(old)
    except ValueError:
        return old  # the library refuses it, with the place
    if isinstance(keys, dict) and ("quantization_config" in keys or "compression_config" in keys):
        refuse_existing(path, overwrite, "config", "has a quantization_config already")
    return old


def _write_config(writer: Writer, old: bytes, stored: list[_Stored]) -> None:
    """The old text with the quantization_config of the layers."""
    dense = [layer for layer in stored if layer.dialect == "dense"]
    quantized = [layer for layer in stored if layer.dialect != "dense"]
    for other in quantized[1:]:
        if other.dialect != quantized[0].dialect:
            raise refuse("ARGUMENT", f"config: {quantized[0].name!r} is stored as "
                         f"{quantized[0].dialect} and {other.name!r} as {other.dialect}, and a "
                         "config.json describes one of them")
    none = _Stored("", "dense", _arrays.dense_desc("f32", (1,)), FORMATS["f32"])
    layer = (quantized or [none])[0]
    kept = [each.name for each in dense]
    if all(each.name != "lm_head" for each in stored):
        kept.append("lm_head")  # of a model with tied embeddings; elsewhere the name is nobody's
    names = (ctypes.c_char_p * max(1, len(kept)))(*(text(name, "layer") for name in kept))
    out, message = ctypes.c_void_p(), Message()
    message.call(lib.qk_checkpoint_open_memory, _NO_TENSORS, len(_NO_TENSORS), old, len(old), None,
                 _byref(out))
    try:
        writer.call(lib.qk_writer_append_config, out, DIALECTS[layer.dialect], _byref(layer.desc),
                    layer.dense_format, names, len(kept))
    finally:
        lib.qk_checkpoint_destroy(out)
