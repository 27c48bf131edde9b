"""GRUs of integers: calibrate a trained one, freeze it, stream through it."""
from __future__ import annotations

import ctypes
import os
from typing import Any, NamedTuple

import numpy as np

from . import _arrays, _torch
from ._abi import CONSTANTS, STRUCTS, lib
from ._checks import INT32_MAX, INT64_MAX, Handle, integer, path_bytes
from ._context import Context, current_context
from ._desc import lookup
from ._errors import refuse
from ._files import write_bytes
from ._gru_weights import require_gru, torch_arrays
from ._tensor import Tensor, asarray, context_for

_byref = ctypes.byref
_CONFIG, _RANGES = STRUCTS["qk_gru_config"], STRUCTS["qk_gru_ranges"]
_ORDERS = {"rzn": CONSTANTS["QK_GRU_ORDER_RZN"], "zrn": CONSTANTS["QK_GRU_ORDER_ZRN"]}
_PRESETS = {name[7:].lower(): value for name, value in CONSTANTS.items()
            if name.startswith("QK_GRU_W") and name[8:9].isdigit()}
_CALIBRATIONS = {name[17:].lower(): value for name, value in CONSTANTS.items()
                 if name.startswith("QK_GRU_CALIBRATE_")}
_OPTIONS = {name: CONSTANTS[f"QK_GRU_{name.upper()}"]
            for name in ("uniform_tables", "bias_correction", "headroom", "h_view_8")}
_TENSORS = {name.lower(): CONSTANTS[f"QK_GRU_{name}"] for name in (
    "X", "H", "W", "R", "BW", "BR", "IH", "HH", "UPDATE_IN", "UPDATE_OUT", "RESET_IN", "RESET_OUT",
    "NEW_IN", "NEW_OUT")}
_RANGED = [name for name in _TENSORS if name not in ("w", "r", "bw", "br")]


class GRURanges(NamedTuple):
    """What calibration has seen; numbers and arrays alone, so processes can send it."""

    samples: int  #: steps times sequences
    min: dict[str, float]  #: of "x", "h", "ih", "hh", "update_in", ...
    max: dict[str, float]
    x_sum: np.ndarray[Any, Any] | None  #: [c] f64 over the samples; bias correction needs both
    h_sum: np.ndarray[Any, Any] | None  #: [h]


def _host(values: Any, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any] | None:
    """A weight as host f32 of that shape, from any package; None stays None."""
    if values is None:
        return None
    if _torch.is_tensor(values):
        values = _torch.host_floats(values, name)
    array = np.ascontiguousarray(values, dtype=np.float32)
    if array.shape != shape:
        raise refuse("SHAPE", f"{name}: is {list(array.shape)}, must be {list(shape)}")
    return array


def _address(array: np.ndarray[Any, Any] | None) -> int | None:
    return None if array is None else array.ctypes.data


def _refuse_to_drop(module: Any, layer: int | None, reverse: bool | None,
                    batch_first: bool | None) -> None:
    """Whatever a torch.nn.GRU is beyond one layer that takes [t,b,c]: the caller chooses, or no."""
    require_gru(module)
    layers = getattr(module, "num_layers", 1)
    if layers > 1 and layer is None:
        raise refuse("ARGUMENT", f"module: has {layers} layers, a qk.GRU is one; "
                     "qk.StackedGRU.from_torch takes all, layer=0 to "
                     f"{layers - 1} one of them")
    if getattr(module, "bidirectional", False) and reverse is None:
        raise refuse("ARGUMENT", "module: is bidirectional, a qk.GRU runs one way; "
                     "qk.StackedGRU.from_torch takes both, reverse=False or reverse=True, which "
                     "takes x from its end, one of them")
    if getattr(module, "batch_first", False) and batch_first is not False:
        raise refuse("ARGUMENT", "module: takes x [b,t,c] (batch_first), a qk.GRU takes [t,b,c]; "
                     "qk.StackedGRU.from_torch takes it as it is; with batch_first=False a qk.GRU "
                     "is made, and x.transpose(0, 1) is what it takes")
    if batch_first:
        raise refuse("ARGUMENT", "batch_first: is True, accepted is False, as a qk.GRU takes x "
                     "[t,b,c]")
    if layers > 1 and getattr(module, "training", False) and getattr(module, "dropout", 0):
        raise refuse("ARGUMENT", f"module: drops out {module.dropout} between its layers while it "
                     "is in training, a qk.GRU never does; call module.eval() first")


class GRU(Handle):
    """One GRU layer, input size c, hidden size h; read-only once frozen.

    w_ih [3h,c], w_hh [3h,h], b_ih [3h], b_hh [3h]: any array package, copied as f32. order: gates
    as "rzn" (PyTorch) or "zrn" (Keras, Haste, ONNX). preset: "w8a8", "w8h16" (8-bit weights, 16-bit
    state; the best small one), "w8a16", "w16a16". calibration: "min_max", "moving", "mse".
    options: any of "uniform_tables", "bias_correction", "headroom", "h_view_8".

        gru = qk.GRU.from_torch(module).calibrate(x).freeze()
        y = gru(x)                  # from a zero state; x [t,b,c] or [t,c]
    """

    _destroy = lib.qk_gru_destroy
    _what = "gru"
    _instead = "freeze() it first, a frozen one can be"

    def __init__(self, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None, *,
                 order: str = "rzn", preset: str = "w8h16", calibration: str = "min_max",
                 options: tuple[str, ...] = (), context: Context | None = None) -> None:
        self._handle = None
        hidden, inputs = int(w_hh.shape[1]), int(w_ih.shape[1])
        arrays = (_host(w_ih, "w_ih", (3 * hidden, inputs)),
                  _host(w_hh, "w_hh", (3 * hidden, hidden)),
                  _host(b_ih, "b_ih", (3 * hidden,)), _host(b_hh, "b_hh", (3 * hidden,)))
        config = _CONFIG(
            struct_size=ctypes.sizeof(_CONFIG), input_size=inputs, hidden_size=hidden,
            flags=sum({lookup(_OPTIONS, option, "options") for option in options}),
            gate_order=lookup(_ORDERS, order, "order"), preset=lookup(_PRESETS, preset, "preset"),
            calibration=lookup(_CALIBRATIONS, calibration, "calibration"))
        out = ctypes.c_void_p()
        self.context = context or current_context()
        self.context.call(lib.qk_gru_create, _byref(config), *map(_address, arrays), _byref(out))
        self._adopt(out.value, inputs, hidden, False)

    def _adopt(self, handle: int | None, inputs: int, hidden: int, frozen: bool) -> None:
        self._handle, self.input_size, self.hidden_size = handle, inputs, hidden
        self.is_frozen = frozen

    @classmethod
    def from_torch(cls, module: Any, *, layer: int | None = None, reverse: bool | None = None,
                   batch_first: bool | None = None, **options: Any) -> GRU:
        """The weights of one layer and direction of a torch.nn.GRU; options as for GRU().

        A module of several layers or directions makes a GRU each: layer and reverse choose. x is
        [t,b,c] whatever the module takes: where that is [b,t,c], say batch_first=False.
        """
        _refuse_to_drop(module, layer, reverse, batch_first)
        return cls(*torch_arrays(module, layer or 0, bool(reverse)), **options)

    @classmethod
    def from_model(cls, model: Any, *, context: Context | None = None) -> GRU:
        """A frozen GRU from integers made elsewhere: a qk_gru_model as describe() gives it, its
        arrays copied and every claim of it checked."""
        return cls._make_frozen(context, lib.qk_gru_create_from_model, _byref(model))

    @classmethod
    def load(cls, source: str | os.PathLike[str] | bytes, *,
             context: Context | None = None) -> GRU:
        """A frozen GRU from a file that save() wrote, or from its bytes."""
        if isinstance(source, bytes):
            data = source
        else:
            with open(path_bytes(source), "rb") as file:
                data = file.read()
        return cls._make_frozen(context, lib.qk_gru_load, data, len(data))

    @classmethod
    def _make_frozen(cls, context: Context | None, function: Any, *arguments: Any) -> GRU:
        gru = cls.__new__(cls)
        gru._handle, gru.context = None, context or current_context()
        out = ctypes.c_void_p()
        gru.context.call(function, *arguments, _byref(out))
        gru._handle = out.value
        model = gru.describe()
        gru._adopt(out.value, model.input_size, model.hidden_size, True)
        return gru

    def set_quant(self, tensor: str, *, bits: int, unsigned: bool = False,
                  symmetric: bool = False, granularity: int = 0) -> GRU:
        """Overrides the preset for one tensor of the cell ("x", "h", "w", "update_in", ...)."""
        quant = STRUCTS["qk_gru_quant"](
            integer(bits, "bits", 0, INT32_MAX), bool(unsigned), bool(symmetric),
            integer(granularity, "granularity", 0, INT32_MAX))
        self.context.call_for(lib.qk_gru_set_quant, self.handle,
                              lookup(_TENSORS, tensor, "tensor"), _byref(quant))
        return self

    def calibrate(self, x: Any, h0: Any = None) -> GRU:
        """Widens the recorded ranges by x [t,b,c] (or [t,c]) f32; call as often as there is data.

        h0: the state to start from, [b,h] f32, None for zeros.
        """
        x = self._sequence(x)
        state = _host(h0, "h0", (x.shape[1], self.hidden_size))
        self.context.call(lib.qk_gru_calibrate, self, x, _address(state))
        return self

    def run_float(self, x: Any, h0: Any = None) -> np.ndarray[Any, Any]:
        """The float GRU before freeze(): x [t,b,c] or [t,c] gives [t,b,h] or [t,h]."""
        tx = self._sequence(x)
        shape = (*x.shape[:-1], self.hidden_size)
        state = _host(h0, "h0", (tx.shape[1], self.hidden_size))
        y = Tensor.from_desc(_arrays.dense_desc("f32", (*tx.shape[:2], self.hidden_size)),
                             self.context)
        self.context.call(lib.qk_gru_run_float, self, tx, _address(state), y)
        return y.numpy().reshape(shape)

    def _sequence(self, x: Any) -> Tensor:
        """x as the Tensor [t,b,c] that calibration takes, on the context's device."""
        _arrays.require_values(x, "x")
        if len(x.shape) == 2:
            x = x.reshape(x.shape[0], 1, x.shape[1])
        return asarray(x, context=self.context)

    def ranges(self) -> GRURanges:
        """What calibrate() has seen so far."""
        sums = np.zeros(self.input_size), np.zeros(self.hidden_size)
        raw = _RANGES(struct_size=ctypes.sizeof(_RANGES), x_sum=sums[0].ctypes.data,
                      h_sum=sums[1].ctypes.data)
        self.context.call(lib.qk_gru_get_ranges, self, _byref(raw))
        low, high = ({name: side[_TENSORS[name]] for name in _RANGED}
                     for side in (raw.min, raw.max))
        return GRURanges(raw.samples, low, high, *sums)

    def set_ranges(self, ranges: GRURanges) -> GRU:
        """Takes these for what calibrate() has seen."""
        return self._take_ranges(lib.qk_gru_set_ranges, ranges)

    def merge_ranges(self, ranges: GRURanges) -> GRU:
        """Widens what has been seen by what another GRU of the same weights has."""
        return self._take_ranges(lib.qk_gru_merge_ranges, ranges)

    def _take_ranges(self, function: Any, ranges: GRURanges) -> GRU:
        raw = _RANGES(struct_size=ctypes.sizeof(_RANGES),
                      samples=integer(ranges.samples, "samples", 0, INT64_MAX))
        for side, given in ((raw.min, ranges.min), (raw.max, ranges.max)):
            for name, value in given.items():
                side[lookup(_TENSORS, name, "ranges")] = value
        sums = []  # alive until the call is over
        for name, given_sum, size in (("x_sum", ranges.x_sum, self.input_size),
                                      ("h_sum", ranges.h_sum, self.hidden_size)):
            if given_sum is not None:
                sums.append(np.ascontiguousarray(given_sum, np.float64))
                if sums[-1].shape != (size,):
                    raise refuse("SHAPE", f"{name}: is {list(sums[-1].shape)}, must be {[size]}")
                setattr(raw, name, sums[-1].ctypes.data)
        self.context.call(function, self, _byref(raw))
        return self

    def freeze(self) -> GRU:
        """Picks the exponents, quantizes, drops the f32 weights; read-only from here on."""
        self.context.call(lib.qk_gru_freeze, self)
        self.is_frozen = True
        return self

    def describe(self) -> Any:
        """The frozen integers as a qk_gru_model, whose arrays are the GRU's; it keeps the GRU."""
        model = STRUCTS["qk_gru_model"](struct_size=ctypes.sizeof(STRUCTS["qk_gru_model"]))
        self.context.call_for(lib.qk_gru_describe, self.handle, _byref(model))
        model.gru = self  # whose memory the arrays are
        return model

    def scale(self, tensor: str, channel: int = 0) -> tuple[int, int]:
        """(shift, zero_point): real = (code - zero_point) * 2**-shift."""
        shift, zero_point = ctypes.c_int32(), ctypes.c_int32()
        self.context.call_for(lib.qk_gru_scale, self.handle,
                              lookup(_TENSORS, tensor, "tensor"),
                              integer(channel, "channel", 0, INT32_MAX),
                              _byref(shift), _byref(zero_point))
        return shift.value, zero_point.value

    def stream(self, batch: int = 1, *, context: Context | None = None) -> GRUState:
        """A hidden state at zero for `batch` sequences; call it with x as it arrives.

        context: whose thread, stream and scratch the calls use; by default the current one.
        """
        return GRUState(self, batch, context)

    def workspace_bytes(self, batch: int = 1, t_max: int = 1) -> int:
        """Scratch that running up to t_max steps takes, for Context(workspace_bytes=...)."""
        out = ctypes.c_size_t()
        self.context.call(lib.qk_gru_workspace, self, integer(batch, "batch", 1, INT32_MAX),
                          integer(t_max, "t_max", 1, INT64_MAX), _byref(out))
        return out.value

    def __call__(self, x: Any) -> Any:
        """x [t,b,c] or [t,c] through a fresh state: y [t,b,h] or [t,h] in x's type."""
        _arrays.require_values(x, "x")
        with self.stream(x.shape[1] if len(x.shape) == 3 else 1) as state:
            return state(x)

    def tobytes(self) -> bytes:
        """The frozen GRU: little-endian, versioned, checksummed (docs/gru.md)."""
        size = ctypes.c_size_t()
        self.context.call_for(lib.qk_gru_save, self.handle, None, 0, _byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.context.call_for(lib.qk_gru_save, self.handle, buffer, size.value, _byref(size))
        return buffer.raw

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """tobytes() to a file, whole or not at all; overwrite: replaces one that is there."""
        write_bytes(path, self.tobytes(), overwrite)

    def run(self, x: np.ndarray[Any, Any], h0: Any = None) -> np.ndarray[Any, Any]:
        """x [t,b,c] f32 of numpy from the state h0 [b,h], None for zeros: y [t,b,h]."""
        with self.stream(x.shape[1]) as state:
            if h0 is not None:
                state.write(h0)
            y: np.ndarray[Any, Any] = state(x)
            return y

    def parts(self) -> list[GRU]:
        """What a cell of StackedGRU is made of."""
        return [self]

    def __reduce_ex__(self, protocol: Any) -> Any:
        if not self.is_frozen:
            return super().__reduce_ex__(protocol)
        return _restore, (self.tobytes(), self.context.device, self.context.index)

    def close(self) -> None:
        """Gives the handle back; states made from it can be read and written, but not run."""
        super().close()

    def __repr__(self) -> str:
        how = "frozen" if self.is_frozen else "float"
        return f"<qk.GRU {self.input_size} -> {self.hidden_size}, {how}>"


def _restore(data: bytes, device: str, index: int) -> GRU:
    return GRU.load(data, context=current_context(device, index))


class GRUState(Handle):
    """The hidden state of `batch` sequences; made by GRU.stream().

    state(x) advances it: x [t,b,c], or where batch is 1 [t,c], or [c] for one step; y has h in c's
    place. x and y are f32, or integer codes (int8, or int16 above 8 bits).
    """

    _destroy = lib.qk_gru_state_destroy
    _what = "state"
    _instead = "gru.stream() makes another, and write(state.read()) gives it this one's h"

    def __init__(self, gru: GRU, batch: int, context: Context | None = None) -> None:
        self._handle = None
        batch = integer(batch, "batch", 1, INT32_MAX)
        self.gru, self.batch, self._default = gru, batch, context is None
        self.context = context or current_context(gru.context.device, gru.context.index)
        out = ctypes.c_void_p()
        self.context.call(lib.qk_gru_state_create, gru, batch, _byref(out))
        self._handle = out.value

    def __call__(self, x: Any, *, out: Any = None) -> Any:
        """Advances by the steps of x and returns y; out: where y goes instead of a new array."""
        if isinstance(x, (list, tuple)):
            x = np.asarray(x, np.float32)
        _arrays.require_values(x, "x")
        if isinstance(x, Tensor) and len(x.shape) < 2:
            raise refuse("SHAPE", f"x: is {list(x.shape)}, a qk.Tensor must be [t,c] or [t,b,c]")
        steps = x if len(x.shape) > 1 else x.reshape(1, -1)
        shape = (*x.shape[:-1], self.gru.hidden_size)
        if out is not None and tuple(out.shape) != shape:  # reshape() could make a copy of it
            raise refuse("SHAPE", f"out: is {list(out.shape)}, must be {list(shape)}")
        y = out if out is not None else _arrays.empty_like(x, shape)
        context = current_context(self.context.device, self.context.index) \
            if self._default else self.context
        if context.device == "cuda":
            context.follow_stream(context_for(x).stream)
        tx = asarray(steps, context=context)
        whole = (*steps.shape[:-1], shape[-1])
        ty = (Tensor.from_desc(_arrays.dense_desc(tx.format, whole), context) if y is None else
              asarray(y.reshape(whole), context=context, name="y", output=True))
        context.call_growing(lambda: self.gru.workspace_bytes(self.batch, steps.shape[0]),
                             lib.qk_gru_run, self.gru, self, tx, ty)
        if y is not None:
            return y
        made = _arrays.hand_over(x, ty)
        return made if tuple(made.shape) == shape else made.reshape(shape)

    def run_gates(self, x: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
        """Advances by x [t,b,c] f32 of numpy: y [t,b,h] and gates [t,b,4h], which are u, r, n and
        R_n h + b. On a GPU many times slower than a call."""
        tx = asarray(x, context=self.context)
        y, gates = (np.empty((*x.shape[:2], count * self.gru.hidden_size), np.float32)
                    for count in (1, 4))
        outputs = (asarray(array, context=self.context, output=True) for array in (y, gates))
        self.context.call_growing(lambda: self.gru.workspace_bytes(self.batch, x.shape[0]),
                                  lib.qk_gru_run_gates, self.gru, self, tx, *outputs)
        return y, gates

    def reset(self) -> None:
        """Back to zero."""
        self.context.call(lib.qk_gru_state_reset, self)

    def read(self) -> np.ndarray[Any, Any]:
        """h [b,h] f32."""
        h = np.empty((self.batch, self.gru.hidden_size), np.float32)
        self.context.call(lib.qk_gru_state_read, self, h.ctypes.data)
        return h

    def write(self, h: Any) -> None:
        """h [b,h] f32, rounded to the state's grid; NaN as zero."""
        array = _host(h, "h", (self.batch, self.gru.hidden_size))
        self.context.call(lib.qk_gru_state_write, self, _address(array))

    def count_clipped(self, on: bool = True) -> None:
        """Later runs count, from zero, the codes that are cut to their range; many times slower."""
        self.context.call(lib.qk_gru_state_count_clipped, self, bool(on))

    def clipped(self) -> dict[str, int]:
        """Codes that were cut, by tensor; "samples": steps times sequences that were counted."""
        raw = STRUCTS["qk_gru_clipped"](struct_size=ctypes.sizeof(STRUCTS["qk_gru_clipped"]))
        self.context.call(lib.qk_gru_state_clipped, self, _byref(raw))
        return {"samples": raw.samples, **{name: raw.codes[_TENSORS[name]] for name in _RANGED}}
