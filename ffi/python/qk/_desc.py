"""Descriptions of tensors: from names and numbers to a qk_tensor_desc."""
from __future__ import annotations

import ctypes
from typing import Any

from ._abi import CONSTANTS, FORMATS, GROUPINGS, LAYOUTS, STRUCTS
from ._checks import INT32_MAX, INT64_MAX, integer
from ._errors import refuse

DESC = STRUCTS["qk_tensor_desc"]
MAX_GROUP = 4096  # qk.h, qk_tensor_desc; of lut8 groups any


def lookup(table: dict[str, int], value: str | int, name: str) -> int:
    """A code by its name in qk.h, lower case: "nf4", "row_high"; or the code itself."""
    if not isinstance(value, str):
        return integer(value, name, 0, INT32_MAX)
    if value not in table:
        raise refuse("ARGUMENT", f"{name}: is {value!r}, accepted are {', '.join(table)}")
    return table[value]


_GLOBALS = {None: 0, "one": CONSTANTS["QK_TENSOR_GLOBAL"],
            "rows": CONSTANTS["QK_TENSOR_GLOBAL_ROWS"]}


def _flags(symmetric: bool, global_scale: str | None, global_divides: bool, float_min: bool,
           ordered: bool) -> int:
    if global_scale not in _GLOBALS:
        raise refuse("ARGUMENT",
                     f"global_scale: is {global_scale!r}, accepted are None, 'one' and 'rows'")
    given = {"SYMMETRIC": symmetric, "GLOBAL_DIVIDES": global_divides, "FLOAT_MIN": float_min,
             "ORDERED": ordered}
    return _GLOBALS[global_scale] | sum(CONSTANTS[f"QK_TENSOR_{name}"]
                                        for name, is_set in given.items() if is_set)


def make_desc(shape: tuple[int, ...], format: str = "f32", *, scale: str | None = None,
              layout: str = "row", group_size: int = 0, grouping: str = "default",
              scale_group_size: int = 0, symmetric: bool = False,
              global_scale: str | None = None, global_divides: bool = False,
              float_min: bool = False, ordered: bool = False) -> Any:
    """A qk_tensor_desc by the names of Tensor.empty, which explains them."""
    if len(shape) > CONSTANTS["QK_MAX_RANK"]:
        raise refuse("SHAPE", f"shape: rank is {len(shape)}, accepted are 1 to 4")
    desc = DESC(struct_size=ctypes.sizeof(DESC), format=lookup(FORMATS, format, "format"),
                scale_format=lookup(FORMATS, scale, "scale") if scale else 0,
                layout=lookup(LAYOUTS, layout, "layout"),
                group_size=integer(group_size, "group_size", -1, INT32_MAX),
                grouping=lookup(GROUPINGS, grouping, "grouping"),
                scale_group_size=integer(scale_group_size, "scale_group_size", 0, MAX_GROUP),
                rank=len(shape),
                flags=_flags(symmetric, global_scale, global_divides, float_min, ordered))
    for i, size in enumerate(shape):
        desc.shape[i] = integer(size, f"shape[{i}]", 0, INT64_MAX)
    return desc


_ALIASES = {"int4": "u4_affine", "fp4": "fp4_bnb", "int8": "s8", "fp8": "e4m3"}
# Formats whose scales are bytes: codes, scales, codes a scale, the GLOBAL number.
_MICROSCALED: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "mxfp4": ("fp4_e2m1", "e8m0", 32, {}), "mxfp8": ("e4m3", "e8m0", 32, {}),
    "nvfp4": ("fp4_e2m1", "e4m3", 16, {"global_scale": "one", "global_divides": True})}
_NAMES = ("nf4", "fp4", "fp4_e2m1", "int4", "int8", "lut8", "fp8", *_MICROSCALED)
_USUAL_LAYOUT = {"nf4": "row_high", "fp4_bnb": "row_high", "u4_affine": "word"}


def quantized_desc(shape: tuple[int, ...], format: str = "nf4", *, group_size: int = 0,
                   scale: str = "f32", nested: bool = False, symmetric: bool = True,
                   layout: str | None = None) -> Any:
    """What quantize() makes of a weight of this shape; the names are its own."""
    format = _ALIASES.get(format, format)
    if isinstance(format, str) and format not in FORMATS and format not in _NAMES:
        raise refuse("ARGUMENT", f"format: is {format!r}, accepted are {', '.join(_NAMES)}")
    codes, scale, usual_group, more = _MICROSCALED.get(format, (format, scale, 64, {}))
    return make_desc(shape, codes, scale="lut8" if nested else scale,
                     layout=layout or _USUAL_LAYOUT.get(format, "row"),
                     group_size=usual_group if group_size == 0 else group_size,
                     symmetric=symmetric and format == "u4_affine", **more)
