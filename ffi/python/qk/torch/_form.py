"""What a weight is besides its bytes, as text: operators take it, and graphs hold it.

    4096x11008 nf4 scale=lut8 layout=row_high group_size=64
"""
from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from .._abi import CONSTANTS, FORMAT_NAMES, GROUPINGS, LAYOUT_NAMES, PLANES
from .._desc import make_desc
from .._errors import refuse
from .._planes import plane_bytes

_GROUPING_NAMES = {value: name for name, value in GROUPINGS.items()}
_FLAGS = {"symmetric": "SYMMETRIC", "global_divides": "GLOBAL_DIVIDES", "float_min": "FLOAT_MIN",
          "ordered": "ORDERED"}
_FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
_USUAL_SECOND_GROUP = 256  # scale_group_size 0
_WORDS = ("awq_gemm", "awq_gemv", "gptq", "gptq_v1", "word")  # codes in 32-bit words


class Plane(NamedTuple):
    """One array of a weight, as a torch tensor."""

    name: str  #: qk.h's, lower case
    dtype: torch.dtype
    shape: tuple[int, ...]


class Form(NamedTuple):
    """A text, read."""

    text: str
    shape: tuple[int, int]  #: n, k
    format: str
    options: dict[str, Any]  #: of Tensor.empty
    planes: tuple[Plane, ...]

    @property
    def desc(self) -> Any:
        """A new qk_tensor_desc: whoever wraps may write to it."""
        return make_desc(self.shape, self.format, **self.options)


def _has_usual_grouping(desc: Any) -> bool:
    """Is it what QK_GROUPING_DEFAULT stands for? Where groups fill rows, both groupings are."""
    flat = LAYOUT_NAMES[desc.layout] == "row_high" or FORMAT_NAMES[desc.format] == "lut8"
    usual = GROUPINGS["flat" if flat and desc.group_size > 0 else "along_k"]
    return desc.grouping in (0, usual) or desc.shape[1] % max(1, desc.group_size) == 0


def text_of(desc: Any) -> str:
    """The text of a qk_tensor_desc of a weight [n,k]; defaults are left out, so that equal weights
    have equal texts."""
    words = [f"{desc.shape[0]}x{desc.shape[1]}", FORMAT_NAMES[desc.format]]
    if desc.scale_format:
        words.append(f"scale={FORMAT_NAMES[desc.scale_format]}")
    words.append(f"layout={LAYOUT_NAMES[desc.layout]}")
    if desc.group_size:
        words.append(f"group_size={desc.group_size}")
    if desc.scale_group_size not in (0, _USUAL_SECOND_GROUP):
        words.append(f"scale_group_size={desc.scale_group_size}")
    if not _has_usual_grouping(desc):
        words.append(f"grouping={_GROUPING_NAMES[desc.grouping]}")
    words += [name for name, flag in _FLAGS.items() if desc.flags & CONSTANTS[f"QK_TENSOR_{flag}"]]
    for name, flag in (("one", "GLOBAL"), ("rows", "GLOBAL_ROWS")):
        if desc.flags & CONSTANTS[f"QK_TENSOR_{flag}"]:
            words.append(f"global_scale={name}")
    return " ".join(words)


@functools.lru_cache(maxsize=4096)
def form_of(text: str) -> Form:
    """Reads a text; raises where it describes no weight."""
    try:
        shape, format, *rest = text.split()
        n, k = map(int, shape.split("x"))
    except ValueError:
        raise refuse("ARGUMENT", f"weight: is {text!r}, which is no description of a "
                     "weight") from None
    options: dict[str, Any] = {}
    for word in rest:
        name, given, value = word.partition("=")
        options[name] = True if not given else int(value) if name.endswith("_size") else value
    desc = make_desc((n, k), format, **options)
    return Form(text, (n, k), format, options, tuple(_planes(desc)))


def _planes(desc: Any) -> list[Plane]:
    found = []
    for name, number in PLANES.items():
        size = plane_bytes(desc, number)
        if size:
            dtype = _dtype_of(name, desc)
            count = size // dtype.itemsize
            n = desc.shape[0]
            two = name == "data" and count % n == 0 and LAYOUT_NAMES[desc.layout] != "row_high"
            found.append(Plane(name, dtype, (n, count // n) if two else (count,)))
    return found


def _dtype_of(plane: str, desc: Any) -> torch.dtype:
    format, scale = FORMAT_NAMES[desc.format], FORMAT_NAMES.get(desc.scale_format, "")
    if plane == "data":
        return (_FLOATS.get(format) or (torch.int8 if format == "s8" else
                torch.int32 if LAYOUT_NAMES[desc.layout] in _WORDS else torch.uint8))
    minima = desc.flags & CONSTANTS["QK_TENSOR_FLOAT_MIN"]
    if plane == "scale" or plane == "zero" and minima:
        return _FLOATS.get(scale) or (torch.int8 if scale == "i8" else torch.uint8)
    return {"zero": torch.uint8, "order": torch.int32}.get(plane, torch.float32)


def bits_as(tensor: torch.Tensor, plane: Plane) -> torch.Tensor:
    """The same bytes as the plane's type and shape; refuses where there are too many or few."""
    size = plane.dtype.itemsize
    for extent in plane.shape:
        size *= extent
    given = tensor.detach().contiguous()
    if given.numel() * given.element_size() != size:
        raise refuse("BUFFER_SIZE", f"{plane.name}: has {given.numel() * given.element_size()} "
                     f"bytes, the plane {size}")
    return given.reshape(-1).view(torch.uint8).view(plane.dtype).reshape(plane.shape)
