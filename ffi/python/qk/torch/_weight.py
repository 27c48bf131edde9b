"""A quantized weight as the buffers of a module: what Linear and Embedding have in common."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Optional

import torch

from .._errors import refuse
from .._tensor import Tensor
from ._form import bits_as, form_of, text_of
from ._operators import dequantize_op, empty_planes
from ._prepared import Prepared, prepared

# A weight, and what it was made of: names of buffers, these, and how often they had changed.
_Ready = tuple[Prepared, list[tuple[str, torch.Tensor, Optional[int]]]]


def _buffer_name(plane: str) -> str:
    return "weight" if plane == "data" else f"weight_{plane}"


def copied_planes(weight: Tensor) -> tuple[str, list[torch.Tensor]]:
    """A tensor's text and its planes, on its device."""
    if weight.is_dense or weight.layout == "packed" or len(weight.shape) != 2:
        raise refuse("ARGUMENT", f"weight: is {weight!r}, accepted are quantized weights [n,k] "
                     "in a layout that can be stored")
    text = text_of(weight.desc)
    device = torch.device(weight.context.device, weight.context.index) \
        if weight.context.device != "cpu" else torch.device("cpu")
    return text, [bits_as(torch.from_numpy(weight.plane(plane.name)), plane).to(device)
                  for plane in form_of(text).planes]


class Planes(torch.nn.Module):
    """A module whose buffers are planes: bytes that no change of type reaches, and no state of
    another format."""

    _ready: Any = None

    def _plane_names(self) -> list[str]:
        raise NotImplementedError

    def _meaning(self) -> Any:
        """What the planes are: a form's text, or several by the names of their weights."""
        raise NotImplementedError

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Moves planes as bytes, so that no change of type reaches them."""
        planes = {name: self._buffers.pop(name) for name in self._plane_names()}
        try:
            super()._apply(fn, recurse)
        finally:
            self._buffers.update(planes)
        for name, plane in planes.items():
            assert plane is not None
            moved = fn(plane.view(torch.uint8))
            self._buffers[name] = moved.view(plane.dtype).view(plane.shape)
        self._ready = None
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None and prefix[:-1] in metadata:
            metadata[prefix[:-1]]["qk"] = self._meaning()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any,
                              strict: bool, missing_keys: Any, unexpected_keys: Any,
                              error_msgs: Any) -> None:
        own = self._meaning()
        stored = local_metadata.get("qk", own)
        if stored != own:  # planes of the same sizes would load, and mean something else
            error_msgs.append(f"{prefix[:-1]}: the state has a weight {stored}, the module one "
                              f"{own}")
            return
        for name in self._plane_names():
            key, plane = prefix + name, self._buffers[name]
            given = state_dict.get(key)
            if isinstance(given, torch.Tensor) and plane is not None \
                    and given.dtype != plane.dtype:
                error_msgs.append(f"{key}: is {given.dtype} in the state, must be {plane.dtype}")
                return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys,
                                      unexpected_keys, error_msgs)
        self._ready = None


class Weight(Planes):
    """`weight` are the codes, `weight_scale` the scales, and so on by qk.h's names."""

    def _set(self, text: str, planes: list[torch.Tensor]) -> None:
        form = form_of(text)
        self.form = text
        for plane, tensor in zip(form.planes, planes):
            self.register_buffer(_buffer_name(plane.name), tensor)
        self._names = [_buffer_name(plane.name) for plane in form.planes]
        self._ready: _Ready | None = None

    def _prepare(self) -> Prepared:
        planes = self.planes
        weight = prepared(planes, self.form)
        versions = [None if plane.is_inference() else plane._version for plane in planes]
        self._ready = weight, list(zip(self._names, planes, versions))
        return weight

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weight [n,k], dense."""
        return dequantize_op(self.planes, self.form, dtype)  # type: ignore[no-any-return]

    @property
    def planes(self) -> list[torch.Tensor]:
        """The buffers of the weight, as the operators of torch.ops.qk take them."""
        return [getattr(self, name) for name in self._names]

    @property
    def format(self) -> str:
        """What a code means, by qk.h's name."""
        return form_of(self.form).format

    def reset_parameters(self) -> None:
        """Zeros, as of a new module."""
        with torch.no_grad():
            for plane, empty in zip(self.planes, empty_planes(self.form, self.planes[0].device)):
                plane.copy_(empty)

    def _plane_names(self) -> list[str]:
        return self._names

    def _meaning(self) -> str:
        return self.form

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": None}
