"""A GRU that is trained as the integers that it will be: qk.torch.QuantGRU."""
from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .._checks import integer
from .._desc import lookup
from .._errors import refuse
from .._gru import _OPTIONS, _PRESETS, _RANGED, GRU, GRURanges, _refuse_to_drop
from .._gru_packed import is_packed, pack, unpack
from .._gru_weights import host_array, torch_arrays
from ._gru_gradient import run

_NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
_LARGEST = 65535  # of a GRU's sizes



class QuantGRU(torch.nn.Module):
    """A layer of torch.nn.GRU whose forward is the integer GRU that export() gives, to the bit.

    Parameters have torch.nn.GRU's names and gates, so its state_dict loads. preset and options are
    qk.GRU's. The weights stay float and are quantized at every call; ranges of everything else come
    from calibrate(), or from each call in training while `observing` is True.

        layer = qk.torch.QuantGRU.from_torch(gru)
        layer.calibrate(x)              # once with data
        y, h_n = layer(x)               # train as any module
        layer.export().save("gru.qkg")
    """

    def __init__(self, input_size: int, hidden_size: int, *, bias: bool = True,
                 batch_first: bool = False, preset: str = "w8h16",
                 options: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.input_size = input_size = integer(input_size, "input_size", 1, _LARGEST)
        self.hidden_size = hidden_size = integer(hidden_size, "hidden_size", 1, _LARGEST)
        if isinstance(options, str):
            raise refuse("ARGUMENT", f"options: is {options!r}, must be a tuple of names")
        self.batch_first, self.preset, self.options = batch_first, preset, tuple(options)
        for name, known, given in [("preset", _PRESETS, preset)] + [
                ("options", _OPTIONS, option) for option in self.options]:
            lookup(known, given, name)
        self.observing = False
        self.ranges: GRURanges | None = None  #: what calibrate() has seen, or what you set
        bound = hidden_size ** -0.5
        shapes = [(3 * hidden_size, input_size), (3 * hidden_size, hidden_size)]
        shapes += [(3 * hidden_size,)] * 2 if bias else []  # type: ignore[list-item]
        for name, shape in zip(_NAMES, shapes):
            values = torch.empty(shape).uniform_(-bound, bound)
            self.register_parameter(name, torch.nn.Parameter(values))
        for name in _NAMES[len(shapes):]:
            self.register_parameter(name, None)

    @classmethod
    def from_torch(cls, module: Any, *, layer: int | None = None, reverse: bool | None = None,
                   preset: str = "w8h16", options: tuple[str, ...] = ()) -> QuantGRU:
        """A copy of a torch.nn.GRU, or of one layer and direction of it; a reverse one takes x from
        its end, which is for the caller to turn."""
        _refuse_to_drop(module, layer, reverse, False)
        arrays = torch_arrays(module, layer or 0, bool(reverse))
        made = cls(arrays[0].shape[1], arrays[1].shape[1], bias=arrays[2] is not None,
                   batch_first=module.batch_first, preset=preset, options=options)
        with torch.no_grad():
            for name, array in zip(_NAMES, arrays):
                if array is not None:
                    getattr(made, name).copy_(torch.from_numpy(array))
        return made.to(module.weight_ih_l0.device).train(module.training)

    def _float(self) -> GRU:
        gru = GRU(*(getattr(self, name) for name in _NAMES), preset=self.preset,
                  options=self.options)
        return gru if self.ranges is None else gru.set_ranges(self.ranges)

    def calibrate(self, x: Any, h0: torch.Tensor | None = None) -> QuantGRU:
        """Widens the ranges by what the float GRU makes of x; call as often as there is data."""
        lengths = None
        if is_packed(x):
            steps, lengths, h0 = unpack(x, h0)
            x = steps.transpose(0, 1) if self.batch_first else steps
        steps, state, _ = self._inputs(x, h0)
        numbers, gru = host_array(steps, "x"), self._float()
        start = None if state is None else host_array(state, "h0")
        for length in [len(numbers)] if lengths is None else lengths.unique().tolist():
            own = slice(None) if lengths is None else (lengths == length).numpy()
            gru.calibrate(np.ascontiguousarray(numbers[:length, own]),
                          None if start is None else start[own])
        seen = gru.ranges()
        if state is not None:  # calibration sees the states that follow the first
            low, high = min(seen.min["h"], float(state.min())), max(seen.max["h"],
                                                                    float(state.max()))
            seen = seen._replace(min={**seen.min, "h": low}, max={**seen.max, "h": high})
        self.ranges = seen
        return self

    def export(self) -> GRU:
        """The frozen qk.GRU of the weights and ranges as they are now."""
        if self.ranges is None:
            raise refuse("ARGUMENT", "layer: has no ranges yet; calibrate(x) first, or set "
                         "observing = True before training")
        return self._float().freeze()

    def forward(self, x: Any, h0: torch.Tensor | None = None) -> tuple[Any, torch.Tensor]:
        """y and h_n as torch.nn.GRU gives them; x [t,b,c], [b,t,c] with batch_first, [t,c], or a
        PackedSequence."""
        if self.training and self.observing:
            self.calibrate(x, h0)
        if is_packed(x):
            padded, lengths, first = unpack(x, h0)
            steps, state, _ = self._inputs(padded.transpose(0, 1) if self.batch_first else padded,
                                           first)
            y = self._integers(steps, state).to(x.data.dtype)
            last = y[lengths - 1, torch.arange(len(lengths))]  # past it are only padded steps
            return pack(y, last[None], lengths, x)
        steps, state, is_batch = self._inputs(x, h0)
        y = self._integers(steps, state)
        h_n = y[-1:]
        if not is_batch:
            y, h_n = y[:, 0], h_n[:, 0]
        elif self.batch_first:
            y = y.transpose(0, 1)
        return y.to(x.dtype), h_n.to(x.dtype)

    def _integers(self, x: torch.Tensor, h0: torch.Tensor | None) -> torch.Tensor:
        return run(self.export(), x, h0, *(getattr(self, name) for name in _NAMES))

    def _inputs(self, x: torch.Tensor, h0: torch.Tensor | None
                ) -> tuple[torch.Tensor, torch.Tensor | None, bool]:
        """x [t,b,c] and h0 [b,h] in f32; had x a batch?"""
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise refuse("FORMAT", f"x: is {kind}, accepted are floating-point tensors and "
                         "PackedSequence")
        is_batch = x.dim() == 3
        steps = x.transpose(0, 1) if is_batch and self.batch_first else x
        steps = steps if is_batch else steps.unsqueeze(1)
        if steps.dim() != 3 or steps.shape[2] != self.input_size or 0 in steps.shape:
            raise refuse("SHAPE", f"x: is {list(x.shape)}, must be 2 or 3 dimensions without a 0, "
                         f"{self.input_size} at the end")
        if h0 is not None:
            wanted = [1, steps.shape[1], self.hidden_size] if is_batch else [1, self.hidden_size]
            if list(h0.shape) != wanted:
                raise refuse("SHAPE", f"h0: is {list(h0.shape)}, must be {wanted}")
            h0 = h0.reshape(steps.shape[1], self.hidden_size).float()
        return steps.float(), h0, is_batch

    # ---- ranges in state_dict: one tensor of f64, which is no buffer, so that no .half() rounds it

    def get_extra_state(self) -> torch.Tensor:
        seen = self.ranges
        if seen is None:
            return torch.zeros(0, dtype=torch.float64)
        values = [seen.samples, *(side[name] for side in (seen.min, seen.max) for name in _RANGED)]
        if seen.x_sum is not None and seen.h_sum is not None:
            values += [*seen.x_sum, *seen.h_sum]
        return torch.tensor(values, dtype=torch.float64)

    def set_extra_state(self, state: Any) -> None:
        count = 1 + 2 * len(_RANGED)
        accepted = [0, count, count + self.input_size + self.hidden_size]
        if not isinstance(state, torch.Tensor) or state.numel() not in accepted:
            found = list(state.shape) if isinstance(state, torch.Tensor) else type(state).__name__
            raise refuse("SHAPE", f"state_dict: _extra_state is {found}, must have "
                         f"{accepted[0]}, {accepted[1]} or {accepted[2]} numbers")
        self.ranges = None
        if state.numel() != 0:
            (samples, *ends), sums = np.split(state.detach().double().cpu().numpy(), [count])
            low, high = (dict(zip(_RANGED, map(float, side)))
                         for side in (ends[:len(_RANGED)], ends[len(_RANGED):]))
            x_sum, h_sum = np.split(sums, [self.input_size]) if sums.size else (None, None)
            self.ranges = GRURanges(int(samples), low, high, x_sum, h_sum)

    def extra_repr(self) -> str:
        return (f"{self.input_size}, {self.hidden_size}, preset={self.preset!r}"
                f"{', batch_first=True' if self.batch_first else ''}")
