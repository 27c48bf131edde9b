"""The GRU that resets h before the product: ONNX's default cell, Keras' reset_after=False.

    u = sigmoid(Wu x + bwu + Ru h + bru)        r = sigmoid(Wr x + bwr + Rr h + brr)
    n = tanh(Wn x + bwn + Rn (r * h) + brn)     h' = u * h + (1 - u) * n

docs/gru.md's cell resets after the product, so this one is put together of two: `gates` has the
rows of u and r and sees h, `candidate` has the rows of n and sees v = r * h, with a reset gate held
open. Between them v and h' are exact products of codes, rounded to the grid of the GRU that reads
them. All of it is integers, so the same model gives the same bits everywhere. It is two calls a
step from Python, and so many times slower than qk.GRU.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ._abi import CONSTANTS
from ._errors import make_error, refuse
from ._gru import GRU, GRUState

Array = np.ndarray[Any, Any]
_OPEN = 16.0  # sigmoid of it is 1 in 16 bits


def _sigmoid(values: Array) -> Array:
    result: Array = 1 / (1 + np.exp(-np.clip(values, -60, 60)))
    return result


class ResetFirstGRU:
    """One layer in one direction; weights in the order r, z, n: w_ih [3h,c], w_hh [3h,h]."""

    def __init__(self, w_ih: Array, w_hh: Array, b_ih: Array | None, b_hh: Array | None,
                 **options: Any) -> None:
        if options.get("calibration") == "mse":
            raise make_error(CONSTANTS["QK_ERROR_UNSUPPORTED"], "calibration: 'mse' is not for the "
                             "cell that resets before the product, 'min_max' and 'moving' are")
        size = w_hh.shape[1]
        b_ih, b_hh = (np.zeros(3 * size, np.float32) if b is None else b for b in (b_ih, b_hh))
        self.input_size, self.hidden_size = int(w_ih.shape[1]), int(size)
        self._float: tuple[Array, ...] | None = tuple(
            np.asarray(part, np.float64) for part in (w_ih, w_hh, b_ih + b_hh))
        gates, new = slice(0, 2 * size), slice(2 * size, 3 * size)
        self.gates = GRU(_only(w_ih, gates), _only(w_hh, gates), _only(b_ih, gates),
                         _only(b_hh, gates), **options)
        bias = _only(b_ih + b_hh, new)
        bias[:size] = _OPEN
        self.candidate = GRU(_only(w_ih, new), _only(w_hh, new), bias, None, **options)
        self._seen: dict[str, tuple[float, float]] = {}
        self._grid: tuple[float, int, int, int] | None = None

    @classmethod
    def from_parts(cls, gates: GRU, candidate: GRU) -> ResetFirstGRU:
        """Of two frozen ones, as parts() gives them."""
        cell = cls.__new__(cls)
        cell.input_size, cell.hidden_size = gates.input_size, gates.hidden_size
        cell.gates, cell.candidate, cell._float, cell._seen = gates, candidate, None, {}
        cell._grid = _grid_of(gates)
        return cell

    def parts(self) -> list[GRU]:
        return [self.gates, self.candidate]

    @property
    def is_frozen(self) -> bool:
        return self._float is None

    def _steps(self, x: Array, h0: Array | None) -> tuple[Array, Array, Array]:
        """In double: each step's h before it, r * h, and h after it."""
        if self._float is None:
            raise refuse("STATE", "gru: is frozen, its float weights are gone")
        w, r, bias = self._float
        size = self.hidden_size
        h = np.zeros((x.shape[1], size)) if h0 is None else np.asarray(h0, np.float64)
        before, reset, after = (np.empty((*x.shape[:2], size)) for _ in range(3))
        inputs = x.astype(np.float64) @ w.T + bias
        for t in range(len(x)):
            both = _sigmoid(inputs[t, :, :2 * size] + h @ r[:2 * size].T)
            before[t], reset[t] = h, both[:, :size] * h
            n = np.tanh(inputs[t, :, 2 * size:] + reset[t] @ r[2 * size:].T)
            u = both[:, size:]
            after[t] = h = u * h + (1 - u) * n
        return before, reset, after

    def run_float(self, x: Array, h0: Array | None = None) -> Array:
        return self._steps(x, h0)[2].astype(np.float32)

    def calibrate(self, x: Array, h0: Array | None = None) -> None:
        before, reset, after = self._steps(x, h0)
        flat = np.ascontiguousarray(x).reshape(1, -1, self.input_size)
        for name, gru, read in (("gates", self.gates, before),
                                ("candidate", self.candidate, reset)):
            gru.calibrate(flat, read.reshape(-1, self.hidden_size).astype(np.float32))
            held = [read, after] if name == "gates" else [read]
            low, high = self._seen.get(name, (0.0, 0.0))
            self._seen[name] = (min(low, *(float(part.min()) for part in held)),
                                max(high, *(float(part.max()) for part in held)))

    def freeze(self) -> None:
        for name, gru in (("gates", self.gates), ("candidate", self.candidate)):
            if name in self._seen:  # what is written to its state, not what comes out of it
                ranges, (low, high) = gru.ranges(), self._seen[name]
                gru.set_ranges(ranges._replace(min={**ranges.min, "h": low},
                                               max={**ranges.max, "h": high}))
            gru.freeze()
        self._grid, self._float = _grid_of(self.gates), None

    def run(self, x: Array, h0: Array | None = None) -> Array:
        """x [t,b,c] to y [t,b,h] by the integers."""
        size, y = self.hidden_size, np.empty((*x.shape[:2], self.hidden_size), np.float32)
        with self.gates.stream(x.shape[1]) as first, self.candidate.stream(x.shape[1]) as second:
            if h0 is not None:
                first.write(h0)
            h = first.read().astype(np.float64)
            for t in range(len(x)):
                gates = _gates(first, x[t])
                u, r = gates[:, :size], gates[:, size:2 * size]
                second.write((r * h).astype(np.float32))
                n = _gates(second, x[t])[:, 2 * size:3 * size]
                h = self._round(u * h + (1 - u) * n)
                y[t] = h
                first.write(y[t])
        return y

    def _round(self, h: Array) -> Array:
        """To the codes of h, half to even, as the cell does."""
        assert self._grid is not None
        step, zero, low, high = self._grid
        codes: Array = np.clip(np.rint(h / step) + zero, low, high)
        return (codes - zero) * step


def _only(values: Array, rows: slice) -> Array:
    kept = np.zeros_like(values, dtype=np.float32)
    kept[rows] = values[rows]
    return kept


def _grid_of(gru: GRU) -> tuple[float, int, int, int]:
    shift, zero = gru.scale("h")
    half = 1 << (int(gru.describe().quant[CONSTANTS["QK_GRU_H"]].bits) - 1)
    return 2.0 ** -shift, zero, -half, half - 1


def _gates(state: GRUState, x: Array) -> Array:
    """u, r, n and R_n h + b of one step, [b,4h], as the numbers that their codes are."""
    gates: Array = state.run_gates(np.ascontiguousarray(x[None]))[1][0].astype(np.float64)
    return gates
