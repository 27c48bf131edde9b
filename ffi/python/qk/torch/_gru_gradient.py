"""The integer GRU as a function of autograd: what QuantGRU computes, and its gradient."""
from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import torch

from .._gru import _TENSORS, GRU
from .._gru_weights import host_array

Gradients = tuple[Any, ...]


def run(gru: GRU, x: torch.Tensor, h0: torch.Tensor | None,
        *parameters: torch.Tensor | None) -> torch.Tensor:
    """y [t,b,h] of a frozen gru; gradients go to x, h0 and W, R, bw, br, of which it was made."""
    if torch.is_grad_enabled() and any(part is not None and part.requires_grad
                                       for part in (x, h0, *parameters)):
        y: torch.Tensor = _Run.apply(gru, x, h0, *parameters)
        return y
    with gru.stream(x.shape[1]) as state:
        if h0 is not None:
            state.write(h0)
        return torch.from_numpy(state(host_array(x, "x"))).to(x.device)


class _Run(torch.autograd.Function):
    """The integer cell. Its gradient is the float cell's at the values that the integers had:
    rounding and clamping count as the identity."""

    @staticmethod
    def forward(ctx: Any, gru: GRU, x: torch.Tensor, h0: torch.Tensor | None,
                *parameters: torch.Tensor | None) -> torch.Tensor:
        with gru.stream(x.shape[1]) as state:
            if h0 is not None:
                state.write(h0)
            first = torch.from_numpy(state.read())
            y, gates = map(torch.from_numpy, state.run_gates(host_array(x, "x")))
        ctx.gru = gru
        before = torch.cat((first[None], y[:-1]))
        ctx.save_for_backward(x, before.to(x.device), gates.to(x.device))
        return y.to(x.device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: torch.Tensor) -> Gradients:
        x, before, gates = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            factors, to_n, dh, dh0 = _through_time(ctx.gru, before, gates, dy)
            return None, *_to_inputs(ctx, x, before, factors, to_n, dh, dh0)


def _through_time(gru: GRU, before: torch.Tensor, gates: torch.Tensor, dy: torch.Tensor
                  ) -> tuple[torch.Tensor, ...]:
    """Gradients of R h + br [t,b,3,h], the factor to that of W_n x + bw_n, those of h and of h0.

    What takes the gradient of a step's h to its gates waits for no other step: those factors are
    made at once, in the order r, u, n, and the loop has three operations a step.
    """
    model = gru.describe()
    matrix = _weight(model, model.r, model.r_shift, "r", gru.hidden_size).to(dy.device)
    u, r, n, hh_n = gates.unflatten(2, (4, -1)).unbind(2)
    to_n = (1 - u) * (1 - n * n)
    to_hh_n = to_n * r
    factors = torch.stack((to_hh_n * hh_n * (1 - r), (before - n) * u * (1 - u), to_hh_n), 2)
    dh = dy.clone(memory_format=torch.contiguous_format)
    dh0 = torch.zeros_like(before[0])
    steps = zip((dh0, *dh[:-1]), dh, dh.unsqueeze(2), u, factors, factors.flatten(2))
    for earlier, own, own_of_gates, keep, to_gates, rows in reversed(list(steps)):
        to_gates.mul_(own_of_gates)
        earlier.addcmul_(own, keep).addmm_(rows, matrix)
    return factors, to_n, dh, dh0


def _to_inputs(ctx: Any, x: torch.Tensor, before: torch.Tensor, factors: torch.Tensor,
               to_n: torch.Tensor, dh: torch.Tensor, dh0: torch.Tensor) -> Gradients:
    """Gradients of x, h0, W, R, bw and br, those that are needed."""
    to_x, to_h0, to_w, to_r, to_bw, to_br = ctx.needs_input_grad[1:]
    model = ctx.gru.describe()
    rows = factors.view(-1, factors[0, 0].numel())  # R h + br of every step
    d_r = rows.T @ _rounded(before, model, "h", model.h_view_shift).flatten(0, 1) if to_r else None
    d_br = rows.sum(0) if to_br else None
    torch.mul(dh, to_n, out=factors[:, :, 2])  # from here on W x + bw
    d_w = rows.T @ _rounded(x, model, "x").flatten(0, 1) if to_w else None
    d_bw = rows.sum(0) if to_bw else None
    dx = None
    if to_x:
        matrix = _weight(model, model.w, model.w_shift, "w", ctx.gru.input_size).to(x.device)
        dx = (rows @ matrix).view(x.shape)
    return dx, dh0 if to_h0 else None, d_w, d_r, d_bw, d_br


def _array(address: int, bits: int, count: int) -> np.ndarray[Any, Any]:
    """Codes that a frozen GRU owns."""
    kind = ctypes.c_int8 if bits <= 8 else ctypes.c_int16
    pointer = ctypes.cast(address, ctypes.POINTER(kind))
    return np.ctypeslib.as_array(pointer, (count,))


def _weight(model: Any, codes: int, shifts: int, tensor: str, columns: int) -> torch.Tensor:
    """What the codes of W or R mean, rows in PyTorch's order r, u, n."""
    rows = 3 * model.hidden_size
    values = _array(codes, model.quant[_TENSORS[tensor]].bits, rows * columns)
    scales = np.exp2(-_array(shifts, 8, rows).astype(np.float32))
    update, reset, new = torch.from_numpy(values.reshape(rows, columns) * scales[:, None]).chunk(3)
    return torch.cat((reset, update, new))


def _rounded(values: torch.Tensor, model: Any, tensor: str, drop: int = 0) -> torch.Tensor:
    """values on the tensor's grid; drop: on that of its codes without that many low bits."""
    which = _TENSORS[tensor]
    zero, bits = model.zero_point[which], model.quant[which].bits - drop
    codes = (values * 2.0 ** model.shift[which]).nan_to_num_(0).round_().add_(zero)
    codes.mul_(2.0 ** -drop).round_().clamp_(-2 ** (bits - 1), 2 ** (bits - 1) - 1)
    return codes.sub_(zero / 2 ** drop).mul_(2.0 ** (drop - model.shift[which]))
