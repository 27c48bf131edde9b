"""A GRU that is trained as the integers that it will be: qk.torch.QuantGRU."""
from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from .._errors import refuse
from .._gru import _TENSORS, GRU, GRURanges, _refuse_to_drop
from .._gru_weights import torch_arrays

_NAMES = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")


def _array(address: int, bits: int, count: int) -> np.ndarray[Any, Any]:
    """Codes that a frozen GRU owns, in double."""
    kind = ctypes.c_int8 if bits <= 8 else ctypes.c_int16
    pointer = ctypes.cast(address, ctypes.POINTER(kind))
    return np.ctypeslib.as_array(pointer, (count,)).astype(np.float64)


def _weight(model: Any, codes: int, shifts: int, tensor: str, columns: int) -> torch.Tensor:
    """What the codes of W or R mean, rows in the order u, r, n."""
    rows = 3 * model.hidden_size
    values = _array(codes, model.quant[_TENSORS[tensor]].bits, rows * columns)
    real = values.reshape(rows, columns) * np.exp2(-_array(shifts, 8, rows))[:, None]
    return torch.from_numpy(real.astype(np.float32))


def _to_rzn(rows: torch.Tensor) -> torch.Tensor:
    update, reset, new = rows.chunk(3)
    return torch.cat((reset, update, new))


def _rounded(values: torch.Tensor, model: Any, tensor: str, drop: int = 0) -> torch.Tensor:
    """values on the tensor's grid; drop: on that of its codes without that many low bits."""
    which = _TENSORS[tensor]
    zero, bits = model.zero_point[which], model.quant[which].bits - drop
    codes = torch.round(values.double() * 2.0 ** model.shift[which]) + zero
    codes = torch.round(codes * 2.0 ** -drop).clamp(-2 ** (bits - 1), 2 ** (bits - 1) - 1)
    real: torch.Tensor = (codes - zero / 2 ** drop) * 2.0 ** (drop - model.shift[which])
    return real.float()


class _Run(torch.autograd.Function):
    """The integer cell. Its gradient is the float cell's at the values that the integers had:
    rounding and clamping count as the identity."""

    @staticmethod
    def forward(ctx: Any, gru: GRU, x: torch.Tensor, h0: torch.Tensor | None,
                *parameters: torch.Tensor | None) -> torch.Tensor:
        with gru.stream(x.shape[1]) as state:
            if h0 is not None:
                state.write(h0.detach())
            first = torch.from_numpy(state.read())
            inputs = np.ascontiguousarray(x.detach().cpu().numpy())
            if not any(ctx.needs_input_grad):
                return torch.from_numpy(state(inputs)).to(x.device)
            y, gates = map(torch.from_numpy, state.run_gates(inputs))
        model = gru.describe()
        before = torch.cat((first[None], y[:-1]))
        ctx.has_h0 = h0 is not None
        ctx.save_for_backward(*(values.to(x.device) for values in (
            _rounded(x.detach(), model, "x"), before,
            _rounded(before, model, "h", model.h_view_shift), gates,
            _weight(model, model.w, model.w_shift, "w", gru.input_size),
            _weight(model, model.r, model.r_shift, "r", gru.hidden_size))))
        return y.to(x.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (dy,) = gradients
        x, before, view, gates, w, r_matrix = ctx.saved_tensors
        to_ih, to_hh = [], []
        dh = torch.zeros_like(before[0])
        for t in reversed(range(len(dy))):
            u, r, n, hh_n = gates[t].chunk(4, dim=1)
            dh = dh + dy[t]
            d_n = dh * (1 - u) * (1 - n * n)
            d_u = dh * (before[t] - n) * u * (1 - u)
            d_r = d_n * hh_n * r * (1 - r)
            to_ih.append(torch.cat((d_u, d_r, d_n), 1))
            to_hh.append(torch.cat((d_u, d_r, d_n * r), 1))
            dh = dh * u + to_hh[-1] @ r_matrix
        ih, hh = (torch.stack(steps[::-1]) for steps in (to_ih, to_hh))
        rows_ih, rows_hh = ih.flatten(0, 1), hh.flatten(0, 1)
        weights = (rows_ih.T @ x.flatten(0, 1), rows_hh.T @ view.flatten(0, 1), rows_ih.sum(0),
                   rows_hh.sum(0))
        return (None, ih @ w, dh if ctx.has_h0 else None,
                *(_to_rzn(values) if needed else None
                  for values, needed in zip(weights, ctx.needs_input_grad[3:])))


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
        self.input_size, self.hidden_size = input_size, hidden_size
        self.batch_first, self.preset, self.options = batch_first, preset, tuple(options)
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
        return made.to(module.weight_ih_l0.device)

    def _float(self) -> GRU:
        weights = (getattr(self, name) for name in _NAMES)
        gru = GRU(*(None if part is None else part.detach().float().cpu() for part in weights),
                  preset=self.preset, options=self.options)
        return gru if self.ranges is None else gru.set_ranges(self.ranges)

    def calibrate(self, x: torch.Tensor, h0: torch.Tensor | None = None) -> QuantGRU:
        """Widens the ranges by what the float GRU makes of x; call as often as there is data."""
        steps, state, _ = self._inputs(x, h0)
        numbers = np.ascontiguousarray(steps.detach().cpu().numpy())
        gru = self._float().calibrate(numbers, None if state is None else state.detach())
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

    def forward(self, x: torch.Tensor, h0: torch.Tensor | None = None
                ) -> tuple[torch.Tensor, torch.Tensor]:
        """y and h_n as torch.nn.GRU gives them; x [t,b,c], [b,t,c] with batch_first, or [t,c]."""
        steps, state, is_batch = self._inputs(x, h0)
        if self.training and self.observing:
            self.calibrate(x, h0)
        y = _Run.apply(self.export(), steps, state, *(getattr(self, name) for name in _NAMES))
        h_n = y[-1:]
        if not is_batch:
            y, h_n = y[:, 0], h_n[:, 0]
        elif self.batch_first:
            y = y.transpose(0, 1)
        return y.to(x.dtype), h_n.to(x.dtype)

    def _inputs(self, x: torch.Tensor, h0: torch.Tensor | None
                ) -> tuple[torch.Tensor, torch.Tensor | None, bool]:
        """x [t,b,c] and h0 [b,h] in f32; had x a batch?"""
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

    # ---- ranges in state_dict: plain numbers, which no .half() rounds

    def get_extra_state(self) -> Any:
        if self.ranges is None:
            return None
        sums = {name: [float(value) for value in values] for name, values in
                (("x_sum", self.ranges.x_sum), ("h_sum", self.ranges.h_sum)) if values is not None}
        return {"samples": self.ranges.samples, "min": dict(self.ranges.min),
                "max": dict(self.ranges.max), **sums}

    def set_extra_state(self, state: Any) -> None:
        self.ranges = None
        if state is not None:
            sums = (None if state.get(name) is None else np.asarray(state[name], np.float64)
                    for name in ("x_sum", "h_sum"))
            self.ranges = GRURanges(state["samples"], state["min"], state["max"], *sums)

    def extra_repr(self) -> str:
        return (f"{self.input_size}, {self.hidden_size}, preset={self.preset!r}"
                f"{', batch_first=True' if self.batch_first else ''}")
