"""torch.nn.Embedding with a quantized weight: rows are gathered as codes, then dequantized."""
from __future__ import annotations

from typing import Any

import torch

from .._desc import quantized_desc
from .._errors import refuse
from .._linear import Layer
from .._tensor import Tensor
from ._form import form_of, text_of
from ._operators import empty_planes, quantize_op
from ._rows import require_rows, rows_op
from ._weight import Weight, copied_planes

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


class Embedding(Weight):
    """weight[ids], the weight quantized: ids [...] of integers give [..., embedding_dim] in dtype.

    Only the rows asked for are read and dequantized; their values are dequantize()'s to the bit.
    The weight has no gradient. Planes are buffers, as those of Linear. format, group_size, scale,
    nested and symmetric are as for qk.quantize; rows are whole bytes, so the layout is "row".
    A new module's weight is zeros: from_embedding, from_tensor and load_state_dict give it values.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, format: str = "nf4", *,
                 group_size: int = 0, scale: str = "f32", nested: bool = False,
                 symmetric: bool = True, device: Any = None,
                 dtype: torch.dtype = torch.float32) -> None:
        torch.nn.Module.__init__(self)
        text = text_of(quantized_desc((num_embeddings, embedding_dim), format, layout="row",
                                      group_size=group_size, scale=scale, nested=nested,
                                      symmetric=symmetric))
        self._set(text, empty_planes(text, device or torch.get_default_device()))
        self._become(dtype)

    def _become(self, dtype: torch.dtype) -> None:
        if dtype not in _DTYPES:
            raise refuse("FORMAT", f"dtype: is {dtype}, accepted are float32, float16 and bfloat16")
        require_rows(form_of(self.form))
        self.num_embeddings, self.embedding_dim = form_of(self.form).shape
        self.dtype = dtype

    @classmethod
    def _from(cls, text: str, planes: list[torch.Tensor], dtype: torch.dtype) -> Embedding:
        new = cls.__new__(cls)
        torch.nn.Module.__init__(new)
        new._set(text, planes)
        new._become(dtype)
        return new

    @classmethod
    def from_embedding(cls, embedding: torch.nn.Embedding, format: str = "nf4",
                       **options: Any) -> Embedding:
        """A dense embedding's weight quantized, on its device; rows have its type."""
        if embedding.max_norm is not None:
            raise refuse("ARGUMENT", f"embedding: has a max_norm of {embedding.max_norm}, which "
                         "changes rows as they are read; accepted is None")
        weight = embedding.weight
        text = text_of(quantized_desc(tuple(weight.shape), format, layout="row", **options))
        return cls._from(text, list(quantize_op(weight.detach(), text)), weight.dtype)

    @classmethod
    def from_tensor(cls, weight: Tensor | Layer, dtype: torch.dtype = torch.float32) -> Embedding:
        """A copy of a quantized qk.Tensor [rows, columns] whose rows begin at bytes."""
        text, planes = copied_planes(weight.weight if isinstance(weight, Layer) else weight)
        return cls._from(text, planes, dtype)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return rows_op(ids, self.planes, self.form, self.dtype)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return (f"{self.num_embeddings}, {self.embedding_dim}, {self.dtype}, "
                f"{self.form.partition(' ')[2]}")
