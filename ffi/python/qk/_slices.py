"""Slices of weights along n or k: their bytes in the same layout, and none beside them read.

A plane of 4-bit codes or zeros is an array of units, bytes of 2 or words of 8, along one of the two
dimensions; the places are docs/formats.md's ("Layouts", "Scales and zeros").
"""
from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ._abi import CONSTANTS, FORMAT_NAMES, FORMATS, GROUPINGS, LAYOUT_NAMES, PLANES
from ._desc import DESC
from ._errors import refuse
from ._planes import plane_bytes

Array = np.ndarray[Any, Any]
Read = Callable[[str], Array]  #: bytes of a plane by its name
_FLAGS = {name: CONSTANTS[f"QK_TENSOR_{name.upper()}"]
          for name in ("read_only", "symmetric", "global_rows", "float_min", "ordered")}
_MIN_GROUP = 16  # qk.h, qk_tensor_desc
_RECORDS = {"gguf_q4_k": 256, "gguf_q5_k": 256, "gguf_q6_k": 256, "gguf_iq4_xs": 256}  # else 32
_NIBBLES = ("u4_affine", "nf4", "fp4_bnb", "fp4_e2m1", "lut4", "iq4_nl", "fp4_ggml")
_AWQ = [0, 2, 4, 6, 1, 3, 5, 7]


class _Units(NamedTuple):
    """How nibbles of a [rows, columns] array are stored."""

    along: int  #: the dimension that units run along
    turned: bool  #: stored as [columns, rows]
    size: int  #: bytes of a unit
    order: list[int]  #: nibble i is element order[i] of its unit

    def view(self, plane: Array, rows: int, columns: int) -> Array:
        """[rows, columns, bytes], the dimension of the units counted in them."""
        lines = columns if self.turned else rows
        shape = (lines, -1, self.size) if self.along != int(self.turned) else \
            (-1, rows if self.turned else columns, self.size)
        return _turn(plane.reshape(shape), self.turned)

    def store(self, view: Array) -> Array:
        return np.ascontiguousarray(_turn(view, self.turned))

    def cut(self, view: Array, begin: int, end: int) -> Array:
        """Elements begin to end along the units."""
        count = len(self.order)
        part = _part(view, self.along, begin // count, -(-end // count))
        if begin % count == 0 and (end % count == 0 or -(-end // count) == view.shape[self.along]):
            return part
        codes = self.codes(part)
        return self.pack(_part(codes, self.along, begin % count, begin % count + end - begin))

    def codes(self, view: Array) -> Array:
        """[rows, columns] of nibbles, padding included."""
        nibbles = np.empty((*view.shape[:2], len(self.order)), np.uint8)
        nibbles[..., self.order[0::2]] = view & 15
        nibbles[..., self.order[1::2]] = view >> 4
        if self.along == 0:
            nibbles = nibbles.transpose(0, 2, 1)
        rows, columns = (extent * (len(self.order) if self.along == i else 1)
                         for i, extent in enumerate(view.shape[:2]))
        return nibbles.reshape(rows, columns)

    def pack(self, codes: Array) -> Array:
        count = len(self.order)
        short = -codes.shape[self.along] % count
        padded = np.pad(codes, [(0, short if i == self.along else 0) for i in (0, 1)])
        rows, columns = padded.shape
        nibbles = padded.reshape(rows // count, count, columns).transpose(0, 2, 1) \
            if self.along == 0 else padded.reshape(rows, columns // count, count)
        low, high = nibbles[..., self.order[0::2]], nibbles[..., self.order[1::2]]
        packed: Array = low | high << 4
        return packed


_BYTES, _HIGH_BYTES = _Units(1, False, 1, [0, 1]), _Units(1, False, 1, [1, 0])
_WORDS = list(range(8))
_CODES = {"row": _BYTES, "row_high": _HIGH_BYTES, "awq_gemm": _Units(0, True, 4, _AWQ),
          "awq_gemv": _Units(1, False, 4, _WORDS), "gptq": _Units(1, True, 4, _WORDS),
          "gptq_v1": _Units(1, True, 4, _WORDS), "word": _Units(1, False, 4, _WORDS)}
_ZEROS = {**_CODES, "gptq": _Units(0, True, 4, _WORDS), "gptq_v1": _Units(0, True, 4, _WORDS),
          "word": _Units(0, False, 4, _WORDS)}


def _turn(view: Array, turned: bool) -> Array:
    return view.swapaxes(0, 1) if turned else view


def _part(array: Array, dim: int, begin: int, end: int) -> Array:
    return array[begin:end] if dim == 0 else array[:, begin:end]


class _Cut(NamedTuple):
    """Rows and columns that stay, and the groups of what they become."""

    n: int
    k: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    straddles: bool  #: groups of the whole weight run on over the ends of rows
    old_size: int  #: of a group
    size: int
    stays_flat: bool  #: groups straddle the slice's rows, too

    @property
    def groups(self) -> Array:
        """Numbers of the old groups, [rows, new groups of a row]; of flat ones as one row."""
        if self.stays_flat:
            first, last = (row * self.k for row in self.rows)
            return np.arange(first // self.old_size, -(-last // self.old_size))[None]
        starts = np.arange(*self.columns, self.size, dtype=np.int64)
        rows = np.arange(*self.rows, dtype=np.int64)[:, None]
        if self.straddles:
            return (rows * self.k + starts) // self.old_size
        return rows * -(-self.k // self.old_size) + starts // self.old_size


def _cut_of(desc: Any, dim: int, begin: int, end: int) -> _Cut:
    n, k = desc.shape[:2]
    rows, columns = ((begin, end), (0, k)) if dim == 0 else ((0, n), (begin, end))
    old = desc.group_size if desc.group_size > 0 else k
    straddles = desc.grouping == GROUPINGS["flat"] and k % old != 0
    if straddles and columns == (0, k) and begin * k % old == 0:
        return _Cut(n, k, rows, columns, True, old, old, True)
    size = math.gcd(old, columns[0], k if straddles else 0) if desc.group_size > 0 else old
    if size < _MIN_GROUP and size != old:
        raise refuse("SHAPE", f"begin: is {begin}, within a group of {old} codes"
                     + (", which straddle rows" if straddles else "")
                     + f"; slices begin at multiples of {_MIN_GROUP} codes")
    return _Cut(n, k, rows, columns, straddles, old, size, False)


def slice_planes(desc: Any, read: Read, dim: int, begin: int,
                 end: int) -> tuple[Any, dict[str, Array]]:
    """The description and the planes of rows (dim 0) or columns (dim 1) of a weight [n,k]."""
    _check(desc, dim, begin, end)
    cut = _cut_of(desc, dim, begin, end)
    new = DESC.from_buffer_copy(desc)
    new.flags &= ~_FLAGS["read_only"]
    new.shape[dim] = end - begin
    planes = {"data": _data(desc, read, cut)}
    if not desc.group_size:
        return new, planes
    if LAYOUT_NAMES[desc.layout].startswith("gguf_"):
        return new, planes
    if desc.group_size > 0:
        new.group_size = cut.size
        if not cut.stays_flat and new.shape[1] % cut.size:
            new.grouping = GROUPINGS["along_k"]
    planes.update(_of_groups(desc, new, read, cut))
    for name in ("scale_code", "scale_bias", "table", "global", "order"):
        if name not in planes and plane_bytes(new, PLANES[name]):
            plane = read(name)
            by_row = name == "global" and desc.flags & _FLAGS["global_rows"]
            planes[name] = plane.view(np.float32)[slice(*cut.rows)] if by_row else plane
    return new, planes


def _check(desc: Any, dim: int, begin: int, end: int) -> None:
    layout = LAYOUT_NAMES[desc.layout]
    if desc.rank != 2 or layout == "packed" or desc.row_stride:
        raise refuse("FORMAT", f"weight: is {layout} of rank {desc.rank}, accepted are weights "
                     "[n,k] in a layout that can be stored")
    if dim not in (0, 1):
        raise refuse("ARGUMENT", f"dim: is {dim!r}, accepted are 0 (n) and 1 (k)")
    if not 0 <= begin < end <= desc.shape[dim]:
        raise refuse("ARGUMENT", f"begin, end: are {begin} and {end}, accepted is what follows on "
                     f"the other within 0..{desc.shape[dim]}")
    if dim == 1 and desc.flags & _FLAGS["ordered"]:
        raise refuse("FORMAT", "weight: has an order of columns (act-order), whose groups are not "
                     "side by side; accepted is dim 0")
    if dim == 1 and layout.startswith("gguf_"):
        codes = _RECORDS.get(layout, 32)
        if begin % codes or end % codes:
            raise refuse("SHAPE", f"begin, end: are {begin} and {end}, records of {layout} have "
                         f"{codes} codes")


def _data(desc: Any, read: Read, cut: _Cut) -> Array:
    data, layout = read("data"), LAYOUT_NAMES[desc.layout]
    codes = _RECORDS.get(layout, 32) if layout.startswith("gguf_") else 1
    if codes > 1 or FORMAT_NAMES[desc.format] not in _NIBBLES:
        cells = data.reshape(cut.n, cut.k // codes, -1)
        first, last = (column // codes for column in cut.columns)
        return np.ascontiguousarray(cells[slice(*cut.rows), first:last])
    units = _CODES[layout]
    if layout == "row_high" and (cut.k % 2 or (cut.columns[1] - cut.columns[0]) % 2):
        return _run(data, cut)
    view = units.view(data, cut.n, cut.k)
    for dim, ends in enumerate((cut.rows, cut.columns)):
        whole_dim = ends == (0, (cut.n, cut.k)[dim])
        if not whole_dim:
            view = units.cut(view, *ends) if dim == units.along else _part(view, dim, *ends)
    return units.store(view)


def _run(data: Array, cut: _Cut) -> Array:
    """Codes of ROW_HIGH whose rows do not begin at bytes."""
    first, last = cut.rows[0] * cut.k, cut.rows[1] * cut.k
    run = _HIGH_BYTES.cut(data.reshape(1, -1, 1), first, last)
    if cut.columns == (0, cut.k):
        return run
    codes = _HIGH_BYTES.codes(run)[0, :last - first].reshape(-1, cut.k)
    return _HIGH_BYTES.pack(np.ascontiguousarray(codes[:, slice(*cut.columns)]).reshape(1, -1))


# ---- scales and zeros


def _of_groups(desc: Any, new: Any, read: Read, cut: _Cut) -> dict[str, Array]:
    """SCALE, ZERO and what nested ones stand on; the new description gets their form."""
    groups = cut.groups
    found = {"scale": _numbers(desc, read("scale"), cut, groups)}
    if desc.flags & _FLAGS["float_min"]:
        found["zero"] = _numbers(desc, read("zero"), cut, groups)
    seconds = {}
    if plane_bytes(desc, PLANES["scale2"]):
        seconds = _nest(desc, new, read, groups, found)
    stored = {name: _stored(new, name, values) for name, values in found.items()}
    if plane_bytes(desc, PLANES["zero"]) and "zero" not in found:
        stored["zero"] = _zeros(desc, new, read("zero"), cut, groups)
    return {**stored, **seconds}


def _numbers(desc: Any, plane: Array, cut: _Cut, groups: Array) -> Array:
    """Those of the groups that stay, [rows, groups]."""
    format = FORMAT_NAMES[desc.scale_format]
    item = {"f32": np.float32, "f16": np.uint16, "bf16": np.uint16}.get(format, np.uint8)
    values = plane.view(item)
    if cut.straddles:
        return values[groups]
    turned = LAYOUT_NAMES[desc.layout] in ("awq_gemm", "gptq", "gptq_v1")
    columns = np.arange(*cut.columns, cut.size) // cut.old_size
    table = values.reshape(-1, cut.n).T if turned else values.reshape(cut.n, -1)
    return table[slice(*cut.rows), columns[0]:columns[-1] + 1][:, columns - columns[0]]


def _stored(new: Any, name: str, values: Array) -> Array:
    layout = LAYOUT_NAMES[new.layout]
    if layout in ("awq_gemm", "gptq", "gptq_v1"):
        return np.ascontiguousarray(values.T)
    width = plane_bytes(new, PLANES[name]) // values.itemsize // len(values)
    return np.pad(values, [(0, 0), (0, width - values.shape[1])])  # AWQ_GEMV pads rows


def _zeros(desc: Any, new: Any, plane: Array, cut: _Cut, groups: Array) -> Array:
    layout, count = LAYOUT_NAMES[desc.layout], int(groups.max()) + 1
    of_row = -(-cut.k // cut.old_size)
    if cut.straddles or layout == "row_high":
        run = _HIGH_BYTES if layout == "row_high" else _BYTES
        codes = run.codes(plane[:-(-count // 2)].reshape(1, -1, 1))[0][groups]
        if layout == "row_high":
            codes = codes.reshape(1, -1)
    else:
        units = _ZEROS[layout]
        codes = units.codes(units.view(plane, cut.n, of_row))[groups // of_row, groups % of_row]
    units = _ZEROS[layout]
    if layout == "awq_gemv":
        width = 2 * plane_bytes(new, PLANES["zero"]) // len(codes)
        codes = np.pad(codes, [(0, 0), (0, width - codes.shape[1])])
    return units.store(units.pack(codes))


def _nest(desc: Any, new: Any, read: Read, groups: Array, found: dict[str, Array]) -> \
        dict[str, Array]:
    """Second scales of groups as small as they must be, or else the scales as the f32 that they
    are: found has those then."""
    second = {"scale": read("scale2").view(np.float32)}
    if "zero" in found:
        second["zero"] = read("min2").view(np.float32)
    size = desc.scale_group_size or 256
    numbers = groups // size
    smallest = 8 if FORMAT_NAMES[desc.scale_format] == "i8" else _MIN_GROUP
    while size >= smallest:
        starts = numbers.reshape(-1)[::size]
        if np.array_equal(np.repeat(starts, size)[:numbers.size], numbers.reshape(-1)):
            new.scale_group_size = size
            return {"scale2" if name == "scale" else "min2": values[starts]
                    for name, values in second.items()}
        if size % 2:
            break
        size //= 2
    new.scale_format, new.scale_group_size = FORMATS["f32"], 0
    for name, values in found.items():
        if smallest == 8:
            found[name] = values.view(np.int8).astype(np.float32) * second[name][numbers]
        else:
            code, bias = (read(plane).view(np.float32) for plane in ("scale_code", "scale_bias"))
            found[name] = code[values] * second[name][numbers] + bias
    return {}
