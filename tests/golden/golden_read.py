"""Reads safetensors with the official reader into numpy, without torch; rounds as formats do."""
import json

import numpy as np
from safetensors import deserialize

DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16, "U8": np.uint8,
          "I8": np.int8, "F8_E4M3": np.uint8, "F8_E8M0": np.uint8, "I16": np.int16,
          "I32": np.int32, "I64": np.int64}


def e4m3():
    """The 256 numbers of FP8 E4M3: bias 7, no infinities, NaN where all other bits are ones."""
    code = np.arange(128)
    exponent, fraction = code >> 3, code & 7
    normal = (8 + fraction) * np.exp2(exponent - 10.0)
    half = np.where(exponent == 0, fraction * 2.0 ** -9, normal)
    half[127] = np.nan
    return np.concatenate([half, np.copysign(half, -1)]).astype(np.float32)


class Tensor:
    """The stored bits (bf16 as uint16) and what they are."""

    def __init__(self, dtype, bits):
        self.dtype, self.bits = dtype, bits

    def f32(self):
        if self.dtype == "F8_E4M3":
            return e4m3()[self.bits]
        if self.dtype == "F8_E8M0":
            return np.where(self.bits == 255, np.float32(np.nan),
                            np.exp2(self.bits.astype(np.float64) - 127)).astype(np.float32)
        if self.dtype == "BF16":
            return (self.bits.astype(np.uint32) << 16).view(np.float32)
        return self.bits.astype(np.float32)


def read(path):
    tensors = {}
    for name, info in deserialize(path.read_bytes()):
        bits = np.frombuffer(bytes(info["data"]), DTYPES[info["dtype"]]).reshape(info["shape"])
        tensors[name] = Tensor(info["dtype"], bits)
    return tensors


def read_checkpoint(folder):
    """All tensors of a folder, sharded or not, and its quantization_config."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    tensors = {}
    for name in names:
        tensors.update(read(folder / name))
    config = json.loads((folder / "config.json").read_text())
    beside = folder / "hf_quant_config.json"  # ModelOpt's
    if beside.exists():
        section = json.loads(beside.read_text())["quantization"]
        return tensors, {"quant_method": "modelopt", **section}
    return tensors, config["quantization_config"]


def round_to(dtype, values):
    """f32 to the bits of dtype, round to nearest even."""
    values = np.asarray(values, np.float32)
    if dtype == "F32":
        return values
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def nibbles(words, order=range(8)):
    """I32 [..., c] to codes [..., 8 c]; order[i] is the nibble that holds element i."""
    words = words.view(np.uint32)
    parts = [(words >> np.uint32(4 * i)) & np.uint32(15) for i in order]
    return np.stack(parts, axis=-1).reshape(*words.shape[:-1], -1).astype(np.int32)
