"""qk::rows(ids, planes, weight, dtype): rows of a weight by their numbers, dequantized."""
from __future__ import annotations

import torch

from .._desc import make_desc
from .._errors import refuse
from ._form import Form, form_of, text_of
from ._operators import Planes, dequantize_values, library

_BY_ROW = ("data", "scale", "zero")
_USUAL_SECOND_GROUP = 256  # scale_group_size 0

library.define("rows(Tensor ids, Tensor[] planes, str weight, ScalarType dtype) -> Tensor")
rows_op = torch.ops.qk.rows.default


def require_rows(form: Form) -> None:
    """Refuses weights whose rows share bytes, words or groups with others."""
    layout, (_, k) = form.options.get("layout", "row"), form.shape
    group, names = form.options.get("group_size", 0), [plane.name for plane in form.planes]
    if not (layout in ("row", "awq_gemv") or layout.startswith("gguf_")
            or layout == "row_high" and k % 2 == 0 and "zero" not in names):
        raise refuse("FORMAT", f"weight: is {form.text}, accepted are rows that begin at bytes: "
                     "layout row, or row_high of an even k")
    flat = form.options.get("grouping") == "flat"
    if group > 0 and k % group and (flat or layout == "row_high" or form.format == "lut8"):
        raise refuse("FORMAT", f"weight: is {form.text}, whose groups run on over the ends of rows")
    if form.options.get("scale") == "i8" and layout in ("row", "row_high", "awq_gemv"):
        raise refuse("FORMAT", f"weight: is {form.text}, accepted are scales of other kinds than "
                     "i8")


def _rows(ids: torch.Tensor, planes: Planes, weight: str, dtype: torch.dtype) -> torch.Tensor:
    form = form_of(weight)
    require_rows(form)
    (n, k), index = form.shape, ids.reshape(-1).long()
    if not index.numel():
        return planes[0].new_empty((*ids.shape, k), dtype=dtype)
    given = {plane.name: tensor for plane, tensor in zip(form.planes, planes)}
    options = dict(form.options)
    per_row = (*_BY_ROW, "global") if options.get("global_scale") == "rows" else _BY_ROW
    taken = {name: tensor.reshape(n, -1).index_select(0, index) if name in per_row else tensor
             for name, tensor in given.items()}
    if options.get("scale") == "lut8":
        taken["scale"] = _plain_scales(given, taken["scale"], index,
                                       options.pop("scale_group_size", _USUAL_SECOND_GROUP))
        options["scale"] = "f32"
    text = text_of(make_desc((index.numel(), k), form.format, **options))
    parts = [taken[plane.name].contiguous().reshape(plane.shape) for plane in form_of(text).planes]
    return dequantize_values(parts, text, dtype).reshape(*ids.shape, k)


def _plain_scales(given: dict[str, torch.Tensor], codes: torch.Tensor, index: torch.Tensor,
                  size: int) -> torch.Tensor:
    """Nested scales as the f32 that they are: their second groups do not go by rows."""
    count = codes.shape[1]
    groups = index[:, None] * count + torch.arange(count, device=index.device)
    first = given["scale_code"][codes.long()] * given["scale2"][groups // size]
    return first + given["scale_bias"]


for _device in ("CPU", "CUDA"):
    library.impl("rows", _rows, _device)


@torch.library.register_fake("qk::rows", lib=library)
def _(ids: torch.Tensor, planes: Planes, weight: str, dtype: torch.dtype) -> torch.Tensor:
    return planes[0].new_empty((*ids.shape, form_of(weight).shape[1]), dtype=dtype)
