"""Expert modules of transformers with quantized weights: two products with experts a layer."""
from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from .._desc import quantized_desc
from .._experts import experts as products
from .._tensor import Tensor
from ._form import form_of, text_of
from ._operators import dequantize_op, quantize_op
from ._prepared import Prepared, context_of, is_capturing
from ._weight import Planes

WEIGHTS = ("gate_up_proj", "down_proj")
_library = torch.library.Library("qk", "FRAGMENT")
_library.define(
    "experts(Tensor x, Tensor[] planes, str weight, int count, Tensor expert, Tensor? bias, "
    "Tensor? scale, str? activation, bool interleaved, float limit, float alpha) -> Tensor")
experts_op = torch.ops.qk.experts.default


class Gate(NamedTuple):
    """How rows of gate and up are joined, by the names of qk.experts."""

    activation: str
    interleaved: bool
    limit: float
    alpha: float


class Experts(Planes):
    """The experts of a layer: y[t] = sum of scale[t,j] * down(act(gate(x[t])) * up(x[t])).

    Called as transformers' expert modules are. Planes are buffers by the names of the parameters
    that they took the place of: gate_up_proj, gate_up_proj_scale, ... An index of num_experts or
    below 0 is skipped. Where x, a scale or a bias needs a gradient, dense weights are made for the
    call.
    """

    def __init__(self, source: Any, format: str = "nf4", **options: Any) -> None:
        super().__init__()
        self._build(source, lambda _, shape: text_of(quantized_desc(shape, format, **options)))

    @classmethod
    def of_forms(cls, source: Any, words: dict[str, str]) -> Experts:
        """With weights of these forms, by their names: a form's text without its shape."""
        new = cls.__new__(cls)
        torch.nn.Module.__init__(new)
        new._build(source, lambda name, shape: f"{shape[0]}x{shape[1]} {words[name]}")
        return new

    def _build(self, source: Any, text_for: Callable[[str, tuple[int, ...]], str]) -> None:
        self.gate = gate_of(source)
        self.num_experts = int(source.gate_up_proj.shape[0])
        self.forms: dict[str, str] = {}
        self._names: dict[str, list[str]] = {}
        self.is_transposed = bool(getattr(source, "is_transposed", False))
        for name in WEIGHTS:
            dense = getattr(source, name).detach()
            text = text_for(name, tuple(self._rows(dense).shape))
            self.forms[name] = text
            self._names[name] = [_buffer_name(name, plane.name) for plane in form_of(text).planes]
            for buffer, plane in self.quantize(name, dense).items():
                self.register_buffer(buffer, plane)
            bias = getattr(source, f"{name}_bias", None)
            self.register_parameter(f"{name}_bias", bias)
        self.train(source.training)
        # What dequantize() fills again: the module without its weights.
        skeleton = copy.copy(source)
        skeleton._parameters = dict(source._parameters)
        for name in WEIGHTS:
            old = source._parameters[name]
            skeleton._parameters[name] = torch.nn.Parameter(old.detach().to("meta"), False)
        self.__dict__["_source"] = skeleton

    def _rows(self, dense: torch.Tensor) -> torch.Tensor:
        """[E,n,k], or [E,k,n] as gpt-oss stores them, as [E n, k]."""
        return (dense.transpose(1, 2) if self.is_transposed else dense).flatten(0, 1)

    def quantize(self, name: str, dense: torch.Tensor) -> dict[str, torch.Tensor]:
        """The buffers of "gate_up_proj" or "down_proj", as the dense parameter was."""
        planes = quantize_op(self._rows(dense).contiguous(), self.forms[name])
        return dict(zip(self._names[name], planes))

    def planes(self, name: str) -> list[torch.Tensor]:
        """The buffers of "gate_up_proj" or "down_proj"."""
        return [getattr(self, buffer) for buffer in self._names[name]]

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor,
                top_k_weights: torch.Tensor) -> torch.Tensor:
        biases = [getattr(self, f"{name}_bias") for name in WEIGHTS]
        inputs = [hidden_states, top_k_weights, *(bias for bias in biases if bias is not None)]
        if torch.is_grad_enabled() and any(given.requires_grad for given in inputs):
            return self.dequantize(hidden_states.dtype)(hidden_states, top_k_index, top_k_weights)
        x = hidden_states.contiguous()
        index = top_k_index.long().clamp(-1, self.num_experts)  # before they are cut to 32 bits
        expert = torch.where(index == self.num_experts, -1, index).to(torch.int32)
        gate = self.gate
        joined = self._product("gate_up_proj", x, expert, None, gate.activation, gate)
        return self._product("down_proj", joined, expert, top_k_weights.float(), None, gate)

    def _product(self, name: str, x: torch.Tensor, expert: torch.Tensor,
                 scale: torch.Tensor | None, activation: str | None, gate: Gate) -> torch.Tensor:
        bias = getattr(self, f"{name}_bias")
        return experts_op(  # type: ignore[no-any-return]
            x, self.planes(name), self.forms[name], self.num_experts, expert,
            None if bias is None else bias.detach(), scale, activation, gate.interleaved,
            gate.limit, gate.alpha)

    def dequantize(self, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
        """The module that this one took the place of, with weights of these codes."""
        new = copy.copy(self.__dict__["_source"])
        new._parameters = dict(new._parameters)
        for name in WEIGHTS:
            dense = dequantize_op(self.planes(name), self.forms[name], dtype)
            dense = dense.unflatten(0, (self.num_experts, -1))
            if self.is_transposed:
                dense = dense.transpose(1, 2).contiguous()
            new._parameters[name] = torch.nn.Parameter(dense, False)
            bias = getattr(self, f"{name}_bias")
            if bias is not None:
                new._parameters[f"{name}_bias"] = bias
        return new.train(self.training)

    def _plane_names(self) -> list[str]:
        return [name for names in self._names.values() for name in names]

    def _meaning(self) -> dict[str, str]:
        return dict(self.forms)

    def extra_repr(self) -> str:
        return f"{self.num_experts} experts, {self.gate.activation}, " + ", ".join(
            f"{name}: {text}" for name, text in self.forms.items())


def _buffer_name(weight: str, plane: str) -> str:
    return weight if plane == "data" else f"{weight}_{plane}"


# ---- which modules


def is_experts(module: Any) -> bool:
    """Does it hold experts as transformers' modules do, in tensors of rank 3?"""
    parameters = getattr(module, "_parameters", {})
    return all(getattr(parameters.get(name), "ndim", 0) == 3 for name in WEIGHTS)


def gate_of(module: Any) -> Gate:
    """The activation of an expert module: the one whose numbers are the module's own."""
    if not getattr(module, "has_gate", True) or getattr(module, "has_post_expert_norm", False):
        raise ValueError("has experts without a gate, or with a norm, which qk does not compute")
    if not hasattr(module, "_apply_gate"):
        raise ValueError(f"is a {type(module).__name__}, which does not say how it joins gate and "
                         "up")
    limit, alpha = (float(getattr(module, name, standard) or standard)
                    for name, standard in (("limit", 7.0), ("alpha", 1.702)))
    rows = torch.linspace(-9, 9, 64, dtype=torch.float64).reshape(4, 16)
    rows = torch.cat([rows, rows.roll(5, 0).flip(1)], 1)
    rows = torch.cat([rows, 100 * rows]).float().to("cpu")  # far ones show where a gate is clamped
    with torch.no_grad():
        own = module._apply_gate(rows).double()
    for interleaved in (False, True):
        gate, up = (rows[:, ::2], rows[:, 1::2]) if interleaved else rows.chunk(2, 1)
        for name, joined in _joined(gate.double(), up.double(), limit, alpha).items():
            if own.shape == joined.shape and torch.allclose(own, joined, rtol=1e-5, atol=1e-5):
                return Gate(name, interleaved, limit, alpha)
    raise ValueError("has an activation that qk does not compute")


def _joined(gate: torch.Tensor, up: torch.Tensor, limit: float,
            alpha: float) -> dict[str, torch.Tensor]:
    gelu = torch.nn.functional.gelu
    low, near = gate.clamp(max=limit), up.clamp(-limit, limit)
    return {"silu": gate * gate.sigmoid() * up, "gelu": gelu(gate) * up,
            "gelu_tanh": gelu(gate, approximate="tanh") * up,
            "swiglu_clamped": low * (alpha * low).sigmoid() * (near + 1)}


# ---- the operator


class _Stacked(Prepared):
    """The weight [E,n,k] of planes of [E n, k]."""

    __slots__ = ()

    def __init__(self, planes: list[torch.Tensor], text: str, count: int) -> None:
        super().__init__(planes, text, False)
        form = form_of(text)
        arrays = {plane.name: given.detach() for plane, given in zip(form.planes, planes)}
        self.weight = Tensor.from_planes((count, self.n // count, self.k), form.format, arrays,
                                         context=context_of(planes[0]), **form.options)
        if not is_capturing(planes[0]):
            self.weight = self.weight.repack()
        self.weight._keep = None


_entries: dict[tuple[int, int], _Stacked] = {}  # by the first plane's id, while it lives


def _stacked(planes: list[torch.Tensor], text: str, count: int) -> Tensor:
    key = id(planes[0]), count
    entry = _entries.get(key)
    if entry is None or not entry.fits(planes):
        entry = _Stacked(planes, text, count)
        if not is_capturing(planes[0]):
            _entries[key] = entry
            weakref.finalize(planes[0], _entries.pop, key, None)
    return entry.weight


def _experts(x: torch.Tensor, planes: list[torch.Tensor], weight: str, count: int,
             expert: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None,
             activation: str | None, interleaved: bool, limit: float,
             alpha: float) -> torch.Tensor:
    if not expert.numel():
        return _shape(x, planes, weight, count, expert, bias, scale, activation, interleaved,
                      limit, alpha)
    return products(  # type: ignore[no-any-return]
        x.detach(), _stacked(planes, weight, count), expert, bias,
        weight=None if scale is None else scale.detach(), activation=activation,
        interleaved=interleaved and activation is not None, limit=limit, alpha=alpha)


def _shape(x: torch.Tensor, planes: list[torch.Tensor], weight: str, count: int,
           expert: torch.Tensor, bias: torch.Tensor | None, scale: torch.Tensor | None,
           activation: str | None, interleaved: bool, limit: float, alpha: float) -> torch.Tensor:
    columns = form_of(weight).shape[0] // count // (1 if activation is None else 2)
    rows = expert.shape[:1] if scale is not None else expert.shape
    return x.new_empty((*rows, columns))


for _device in ("CPU", "CUDA"):
    _library.impl("experts", _experts, _device)
torch.library.register_fake("qk::experts", _shape, lib=_library)
