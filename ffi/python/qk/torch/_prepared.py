"""Weights over torch's memory, made ready once: wrapped, and repacked for their device."""
from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from .._context import Context, current_context
from .._errors import refuse
from .._tensor import Tensor
from ._form import form_of


def is_capturing(tensor: torch.Tensor) -> bool:
    """Is a CUDA graph being recorded? Then nothing may be allocated or waited for."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def context_of(tensor: torch.Tensor) -> Context:
    """This thread's context of a tensor's device, on torch's current stream."""
    if tensor.is_cpu:
        return current_context()
    if not tensor.is_cuda:
        raise refuse("ARGUMENT", f"x: is on the device {tensor.device}, accepted are cpu and cuda")
    index = tensor.device.index or 0
    context = current_context("cuda", index)
    context.follow_stream(torch.cuda.current_stream(index).cuda_stream or None)
    return context


def _versions(planes: Sequence[torch.Tensor]) -> list[int]:
    """Counts of changes in place; tensors made under inference_mode have none."""
    try:
        return [plane._version for plane in planes]
    except RuntimeError:
        return [0 if plane.is_inference() else plane._version for plane in planes]


class Prepared:
    """The weight of some planes. It holds none of them: they own it, by `prepared`."""

    __slots__ = ("_references", "_known", "weight", "n", "k")

    def __init__(self, planes: Sequence[torch.Tensor], text: str, packed: bool) -> None:
        form = form_of(text)
        for plane, given in zip(form.planes, planes):
            if given.dtype != plane.dtype or tuple(given.shape) != plane.shape:
                raise refuse("FORMAT", f"{plane.name}: is {given.dtype} {list(given.shape)}, of "
                             f"{text} it is {plane.dtype} {list(plane.shape)}")
        if len(planes) != len(form.planes):
            raise refuse("ARGUMENT", f"planes: are {len(planes)}, of {text} they are "
                         + ", ".join(plane.name for plane in form.planes))
        self._references = [weakref.ref(plane) for plane in planes]
        self._known = _versions(planes)
        self.n, self.k = form.shape
        self.weight = wrapped(planes, text)
        if packed and not is_capturing(planes[0]):
            self.weight = self.weight.repack()
        self.weight._keep = None  # the planes: they would keep themselves alive

    def fits(self, planes: Sequence[torch.Tensor]) -> bool:
        """Was this made of these planes, as they are now?"""
        for plane, reference in zip(planes, self._references):
            if reference() is not plane:
                return False
        return _versions(planes) == self._known


def wrapped(planes: Sequence[torch.Tensor], text: str) -> Tensor:
    """A qk.Tensor over the planes, as they are stored."""
    form = form_of(text)
    arrays = {plane.name: given.detach() for plane, given in zip(form.planes, planes)}
    return Tensor.from_planes(form.shape, form.format, arrays, context=context_of(planes[0]),
                              **form.options)


_entries: dict[tuple[int, bool], Prepared] = {}  # by the first plane's id, while it lives


def prepared(planes: Sequence[torch.Tensor], text: str, packed: bool = True) -> Prepared:
    """What is ready of these planes, or is made so now."""
    key = id(planes[0]), packed
    entry = _entries.get(key)
    if entry is None or not entry.fits(planes):
        entry = Prepared(planes, text, packed)
        if not packed or not is_capturing(planes[0]):
            _entries[key] = entry
            weakref.finalize(planes[0], _entries.pop, key, None)
    return entry
