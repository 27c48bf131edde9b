"""Several layers and directions of integer GRUs, as torch.nn.GRU, Keras and ONNX have them."""
from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any, Union

import numpy as np

from . import _arrays, _torch
from ._abi import CONSTANTS
from ._checks import path_bytes
from ._context import Context, current_context
from ._errors import make_error, refuse
from ._files import write_bytes
from ._gru import GRU
from ._gru_packed import is_packed, pack, unpack
from ._gru_reset_first import Array, ResetFirstGRU
from ._gru_weights import host_array, keras_arrays, require_gru, torch_arrays

Cell = Union[GRU, ResetFirstGRU]
_MAGIC = b"qk-gru-stack-1\n"


def _like(result: Array, x: Any) -> Any:
    """numpy, or torch on x's device where x is torch's."""
    if not _torch.is_tensor(x):
        return result
    import torch
    return torch.from_numpy(result).to(x.device)


class StackedGRU:
    """GRUs of integers in layers, each in one or both directions.

        net = qk.StackedGRU.from_torch(module).calibrate(x).freeze()
        y, h_n = net(x)                      # what module(x) gives, in integers

    x is [t,b,c], or [b,t,c] with batch_first, or [t,c]; y has directions * h in c's place, h_n is
    [layers * directions, b, h]. h0: as h_n. lengths [b]: steps of each sequence; y is 0 after them,
    and h_n is the state at the last of them, or where a sequence starts if it runs backward.
    numpy in and out; a tensor of torch gives tensors, a PackedSequence one of its kind. Between
    layers y is f32, on the codes of the layer that made it. There is no dropout: it is not part of
    inference.
    """

    def __init__(self, cells: Sequence[Sequence[Cell]], *, batch_first: bool = False,
                 reverse: bool = False) -> None:
        """cells: of each layer one, or two where the second runs backward; reverse: the one does.
        """
        self.cells = [list(layer) for layer in cells]
        self.batch_first, self.reverse = batch_first, reverse
        if not self.cells or not all(len(layer) == len(self.cells[0]) for layer in self.cells):
            raise refuse("SHAPE", "cells: must be at least one layer, all with as many directions")
        for number, layer in enumerate(self.cells):
            for cell in layer:
                wanted = self.input_size if number == 0 else self.hidden_size * len(layer)
                if (cell.input_size, cell.hidden_size) != (wanted, self.hidden_size):
                    raise refuse("SHAPE", f"cells: layer {number} is {cell.input_size} -> "
                                 f"{cell.hidden_size}, must be {wanted} -> {self.hidden_size}")

    # ---- from other packages; options are those of qk.GRU: preset, calibration, options, context

    @classmethod
    def from_torch(cls, module: Any, **options: Any) -> StackedGRU:
        """A torch.nn.GRU, or its state_dict's owner: layers, directions, batch_first, bias."""
        require_gru(module)
        sides = (False, True) if module.bidirectional else (False,)
        return cls([[GRU(*torch_arrays(module, layer, side), **options) for side in sides]
                    for layer in range(module.num_layers)], batch_first=module.batch_first)

    @classmethod
    def from_keras(cls, layers: Sequence[Sequence[Any]], *, reset_after: bool = True,
                   batch_first: bool = True, **options: Any) -> StackedGRU:
        """Each layer as its get_weights(): kernel, recurrent kernel and, where it has one, bias; of
        a Bidirectional layer those of both directions, one after the other.

        reset_after=False is the cell that resets before the product (see from_onnx).
        """
        return cls([[_cell(keras_arrays(weights, reset_after), reset_after, options)
                     for weights in _keras_sides(layer)] for layer in layers],
                   batch_first=batch_first)

    @classmethod
    def from_onnx(cls, source: Any, *, node: str | None = None,
                  weights: dict[str, Any] | None = None, **options: Any) -> StackedGRU:
        """A GRU node of an ONNX model: a path, a ModelProto or a NodeProto. Needs the package onnx.

        node: its name, where there are several. weights: arrays by name, for what the model has no
        initializer of. h0 and lengths go to the calls; constants of the model for them are not
        kept, and a warning says so. linear_before_reset=0, ONNX's default, is the cell that resets
        h before the product: the same integers everywhere, in two GRUs, and many times slower.
        """
        from ._gru_onnx import read_node
        found = read_node(source, node, weights or {})
        return cls([[_cell(arrays, found.reset_after, options) for arrays in found.sides]],
                   batch_first=found.batch_first, reverse=found.reverse)

    # ---- what it is

    @property
    def input_size(self) -> int:
        return self.cells[0][0].input_size

    @property
    def hidden_size(self) -> int:
        return self.cells[0][0].hidden_size

    @property
    def is_frozen(self) -> bool:
        return all(cell.is_frozen for layer in self.cells for cell in layer)

    def __repr__(self) -> str:
        ways = "both directions" if len(self.cells[0]) == 2 else "one direction"
        return (f"<qk.StackedGRU {self.input_size} -> {self.hidden_size}, {len(self.cells)} "
                f"layers, {ways}, {'frozen' if self.is_frozen else 'float'}>")

    # ---- what it does

    def calibrate(self, x: Any, h0: Any = None, lengths: Any = None) -> StackedGRU:
        """Widens every layer's ranges by what it sees of x; call as often as there is data."""
        if is_packed(x):
            x, h0, lengths = self._unpack(x, h0, lengths)
        numbers, states, steps, _ = self._inputs(x, h0, lengths)
        for layer, inputs, state in self._float_layers(numbers, states, steps):
            for side, cell in enumerate(layer):
                turned = _turn(inputs, steps) if side or self.reverse else inputs
                if lengths is None:
                    _calibrate(cell, turned, None if state is None else state[side])
                    continue
                for i in np.flatnonzero(steps):
                    _calibrate(cell, np.ascontiguousarray(turned[:steps[i], i:i + 1]),
                               None if state is None else state[side, i:i + 1])
        return self

    def _float_layers(self, x: Array, states: Array | None, steps: Array) -> Any:
        """Each layer with the x and h0 that the float GRUs before it give it."""
        for number, layer in enumerate(self.cells):
            state = None if states is None else states[number]
            yield layer, x, state
            if number + 1 < len(self.cells):
                x = _run_layer([cell.run_float for cell in layer], x, state, steps, self.reverse)[0]

    def freeze(self) -> StackedGRU:
        """Picks the exponents and quantizes; read-only from here on."""
        for layer in self.cells:
            for cell in layer:
                cell.freeze()
        return self

    def __call__(self, x: Any, h0: Any = None, lengths: Any = None) -> tuple[Any, Any]:
        """y and h_n, by the integers."""
        return self._run(x, h0, lengths, "run")

    def run_float(self, x: Any, h0: Any = None, lengths: Any = None) -> tuple[Any, Any]:
        """y and h_n of the float GRUs, before freeze()."""
        return self._run(x, h0, lengths, "run_float")

    def _unpack(self, packed: Any, h0: Any, lengths: Any) -> tuple[Any, Any, Any]:
        if lengths is not None:
            raise refuse("ARGUMENT", "lengths: is given, accepted is None: a PackedSequence has "
                         "its own")
        x, lengths, h0 = unpack(packed, h0)
        return x.transpose(0, 1) if self.batch_first else x, h0, lengths

    def _run(self, x: Any, h0: Any, lengths: Any, how: str) -> tuple[Any, Any]:
        if is_packed(x):
            padded, h0, lengths = self._unpack(x, h0, lengths)
            y, h_n = self._run(padded, h0, lengths, how)
            return pack(y.transpose(0, 1) if self.batch_first else y, h_n, lengths, x)
        _arrays.require_values(x, "x")
        numbers, states, steps, is_batch = self._inputs(x, h0, lengths)
        last = []
        for number, layer in enumerate(self.cells):
            numbers, h = _run_layer([getattr(cell, how) for cell in layer], numbers,
                                    None if states is None else states[number], steps,
                                    self.reverse)
            last.append(h)
        y, h_n = numbers, np.concatenate(last)
        if not is_batch:
            y, h_n = y[:, 0], h_n[:, 0]
        elif self.batch_first:
            y = np.ascontiguousarray(y.transpose(1, 0, 2))
        return _like(y, x), _like(h_n, x)

    def _inputs(self, x: Any, h0: Any, lengths: Any) -> tuple[Array, Array | None, Array, bool]:
        """x [t,b,c]; h0 [layers, directions, b, h]; the steps of each sequence; had x a batch?"""
        numbers = host_array(x, "x")
        is_batch = numbers.ndim == 3
        if numbers.ndim == 2:
            numbers = numbers[:, None]
        elif is_batch and self.batch_first:
            numbers = numbers.transpose(1, 0, 2)
        if numbers.ndim != 3 or numbers.shape[2] != self.input_size or 0 in numbers.shape:
            raise refuse("SHAPE", f"x: is {list(np.shape(x))}, must be 2 or 3 dimensions without a "
                         f"0, {self.input_size} at the end")
        batch = numbers.shape[1]
        ways = len(self.cells[0])
        if h0 is not None:
            h0 = host_array(h0, "h0")
            wanted = [len(self.cells) * ways, *([batch] if is_batch else []), self.hidden_size]
            if list(h0.shape) != wanted:
                raise refuse("SHAPE", f"h0: is {list(h0.shape)}, must be {wanted}")
            h0 = h0.reshape(len(self.cells), ways, batch, self.hidden_size)
        steps = _steps(lengths, batch, len(numbers))
        return np.ascontiguousarray(numbers), h0, steps, is_batch

    # ---- to keep it

    def tobytes(self) -> bytes:
        """The frozen GRUs, one after the other, behind a line of JSON that says what they are."""
        parts = [[cell.parts() for cell in layer] for layer in self.cells]
        images = [gru.tobytes() for layer in parts for grus in layer for gru in grus]
        head = {"batch_first": self.batch_first, "reverse": self.reverse,
                "bytes": [len(image) for image in images],
                "grus": [[len(grus) for grus in layer] for layer in parts]}
        return _MAGIC + json.dumps(head).encode() + b"\n" + b"".join(images)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """tobytes() to a file, whole or not at all; overwrite: replaces one that is there."""
        write_bytes(path, self.tobytes(), overwrite)

    @classmethod
    def load(cls, source: str | os.PathLike[str] | bytes, *,
             context: Context | None = None) -> StackedGRU:
        """Frozen ones from a file that save() wrote, or from its bytes."""
        if not isinstance(source, bytes):
            with open(path_bytes(source), "rb") as file:
                source = file.read()
        try:
            if not source.startswith(_MAGIC):
                raise ValueError
            line, rest = source[len(_MAGIC):].split(b"\n", 1)
            head = json.loads(line)
            ends = np.cumsum([0, *head["bytes"]])
            ways = {"batch_first": bool(head["batch_first"]), "reverse": bool(head["reverse"])}
            counts = [count for layer in head["grus"] for count in layer]
            if ends[-1] != len(rest) or not all(count in (1, 2) for count in counts) or \
                    sum(counts) != len(head["bytes"]):
                raise ValueError
        except (ValueError, KeyError, TypeError, OverflowError):
            raise make_error(CONSTANTS["QK_ERROR_CORRUPT"],
                             "source: is no file of a qk.StackedGRU") from None
        grus = iter([GRU.load(rest[start:end], context=context)
                     for start, end in zip(ends, ends[1:])])
        return cls([[next(grus) if count == 1 else ResetFirstGRU.from_parts(next(grus), next(grus))
                     for count in layer] for layer in head["grus"]], **ways)

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.is_frozen:
            raise TypeError("qk.StackedGRU: can be copied and pickled once it is frozen")
        context = self.cells[0][0].parts()[0].context
        return _restore, (self.tobytes(), context.device, context.index)


def _restore(data: bytes, device: str, index: int) -> StackedGRU:
    return StackedGRU.load(data, context=current_context(device, index))


def _steps(lengths: Any, batch: int, longest: int) -> Array:
    """The steps of each sequence."""
    if lengths is None:
        return np.full(batch, longest)
    given = lengths.detach().cpu() if _torch.is_tensor(lengths) else lengths
    try:
        numbers = np.asarray(given, np.float64).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        numbers = np.zeros(0)
    if len(numbers) != batch or not all(0 <= n <= longest and n == int(n) for n in numbers):
        shown = given.tolist() if hasattr(given, "tolist") else given
        raise refuse("ARGUMENT", f"lengths: is {shown}, must be {batch} whole numbers from 0 to "
                     f"{longest}")
    return numbers.astype(np.int64)


def _cell(arrays: Any, reset_after: bool, options: dict[str, Any]) -> Cell:
    return GRU(*arrays, **options) if reset_after else ResetFirstGRU(*arrays, **options)


def _calibrate(cell: Cell, x: Array, h0: Array | None) -> None:
    """By x, and so that the states hold h0 too, of which calibration sees only what follows."""
    cell.calibrate(x, h0)
    if isinstance(cell, GRU) and h0 is not None:
        seen = cell.ranges()
        low, high = min(seen.min["h"], float(h0.min())), max(seen.max["h"], float(h0.max()))
        if (low, high) != (seen.min["h"], seen.max["h"]):
            cell.set_ranges(seen._replace(min={**seen.min, "h": low}, max={**seen.max, "h": high}))


def _keras_sides(layer: Sequence[Any]) -> list[Sequence[Any]]:
    if len(layer) in (2, 3):
        return [layer]
    if len(layer) in (4, 6):
        return [layer[:len(layer) // 2], layer[len(layer) // 2:]]
    raise refuse("ARGUMENT", f"layers: one has {len(layer)} arrays, accepted are 2 or 3, and 4 or "
                 "6 of both directions")


def _turn(x: Array, steps: Array) -> Array:
    """Each sequence with its own steps in reverse; what is behind them stays where it is."""
    turned = x.copy()
    for i, count in enumerate(steps):
        turned[:count, i] = x[:count, i][::-1]
    return turned


def _run_layer(sides: Sequence[Any], x: Array, states: Array | None, steps: Array,
               reverse: bool) -> tuple[Array, Array]:
    """y [t,b,directions * h] and the last states [directions,b,h] of one layer."""
    outputs, last = [], []
    for side, run in enumerate(sides):
        h0 = None if states is None else np.ascontiguousarray(states[side])
        turned = bool(side) or reverse
        y = run(_turn(x, steps) if turned else x, h0)
        h = np.zeros(y.shape[1:], np.float32) if h0 is None else h0.copy()
        for i, count in enumerate(steps):
            if count:
                h[i] = y[count - 1, i]
            y[count:, i] = 0
        last.append(h)
        outputs.append(_turn(y, steps) if turned else y)
    return np.concatenate(outputs, axis=2), np.stack(last)
