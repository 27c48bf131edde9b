"""torch.nn.Linear with a quantized weight."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .._desc import quantized_desc
from .._errors import refuse
from .._linear import Layer
from .._tensor import Tensor
from ._form import Form, bits_as, form_of, text_of
from ._operators import dequantize_op, empty_planes, linear_op, quantize_op
from ._prepared import Prepared, multiply, prepared

_is_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_autocast_enabled = torch.is_autocast_enabled
_profiler_enabled = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
_mode_count = torch._C._len_torch_dispatch_stack
_function_transform = torch._C._functorch.peek_interpreter_stack
_trace = torch._C._get_tracing_state


def _buffer_name(plane: str) -> str:
    return "weight" if plane == "data" else f"weight_{plane}"


class Linear(torch.nn.Linear):
    """y = x . transpose(weight) + bias, the weight quantized: x [..., k] of f32, f16 or bf16.

    The weight's planes are buffers: `weight` are its codes, `weight_scale` its scales, and so on
    by qk.h's names. They keep their bits: .half() and .to(dtype) change the bias alone. The weight
    has no gradient; x and bias have. Results are those of qk.linear to the bit.
    It is a torch.nn.Linear for those who look for one to call, as peft does.

    format, group_size, scale, nested, symmetric, layout: as for qk.quantize. A new module's weight
    is zeros: from_linear, from_planes, from_tensor and load_state_dict give it values.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True,
                 format: str = "nf4", *, group_size: int = 0, scale: str = "f32",
                 nested: bool = False, symmetric: bool = True, layout: str | None = None,
                 device: Any = None, dtype: torch.dtype | None = None) -> None:
        torch.nn.Module.__init__(self)  # not nn.Linear's, which makes a dense weight
        text = text_of(quantized_desc((out_features, in_features), format, group_size=group_size,
                                      scale=scale, nested=nested, symmetric=symmetric,
                                      layout=layout))
        self._set(text, empty_planes(text, device or torch.get_default_device()))
        self.register_parameter("bias", torch.nn.Parameter(
            torch.zeros(out_features, device=device, dtype=dtype)) if bias else None)

    def _set(self, text: str, planes: list[torch.Tensor]) -> None:
        form = form_of(text)
        self.out_features, self.in_features = form.shape
        self.form = text
        for plane, tensor in zip(form.planes, planes):
            self.register_buffer(_buffer_name(plane.name), tensor)
        self._names = [_buffer_name(plane.name) for plane in form.planes]
        self._ready: Prepared | None = None

    @classmethod
    def _from(cls, text: str, planes: list[torch.Tensor], bias: Any) -> Linear:
        new = cls.__new__(cls)
        torch.nn.Module.__init__(new)
        new._set(text, planes)
        if bias is not None and not isinstance(bias, torch.nn.Parameter):
            bias = torch.nn.Parameter(bias, requires_grad=bias.requires_grad)
        new.register_parameter("bias", bias)
        return new

    # ---- other ways to make one

    @classmethod
    def from_linear(cls, linear: torch.nn.Linear, format: str = "nf4", **options: Any) -> Linear:
        """A dense layer's weight quantized, on its device; its bias is shared. Options: as above.

        A layer on the meta device gives one on the meta device.
        """
        weight = linear.weight
        text = text_of(quantized_desc(tuple(weight.shape), format, **options))
        new = cls._from(text, list(quantize_op(weight.detach(), text)), linear.bias)
        return new.train(linear.training)

    @classmethod
    def from_planes(cls, in_features: int, out_features: int, format: str,
                    planes: Mapping[str, torch.Tensor], bias: torch.Tensor | None = None,
                    **options: Any) -> Linear:
        """A weight that is quantized already: {"data": codes, "scale": scales, ...} by qk.h's
        names, of any type with the right bytes. options: as for qk.Tensor.from_planes."""
        shape = out_features, in_features
        desc = Form("", shape, format, options, ()).desc
        text = text_of(desc)
        form = form_of(text)
        names = [plane.name for plane in form.planes]
        if sorted(names) != sorted(planes):
            raise refuse("ARGUMENT", f"planes: are {', '.join(planes)}, of {text} they are "
                         + ", ".join(names))
        return cls._from(text, [bits_as(planes[plane.name], plane) for plane in form.planes], bias)

    @classmethod
    def from_tensor(cls, weight: Tensor | Layer, bias: torch.Tensor | None = None) -> Linear:
        """A copy of a quantized qk.Tensor, or of a qk.Layer with its bias, as qk.load gives."""
        if isinstance(weight, Layer):
            if bias is None and weight.bias is not None:
                bias = _as_torch(weight.bias)
            weight = weight.weight
        if weight.is_dense or weight.layout == "packed" or len(weight.shape) != 2:
            raise refuse("ARGUMENT", f"weight: is {weight!r}, accepted are quantized weights [n,k] "
                         "in a layout that can be stored")
        text = text_of(weight.desc)
        device = torch.device(weight.context.device, weight.context.index) \
            if weight.context.device != "cpu" else torch.device("cpu")
        planes = [bits_as(torch.from_numpy(weight.plane(plane.name)), plane).to(device)
                  for plane in form_of(text).planes]
        return cls._from(text, planes, None if bias is None else bias.to(device))

    # ---- what it computes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        buffers = self._buffers
        planes = [buffers[name] for name in self._names]
        bias = self._parameters["bias"]
        if _is_compiling() or _watched(x, bias):
            return linear_op(x, planes, self.form, bias)
        ready = self._ready
        if ready is None or not ready.fits(planes):  # type: ignore[arg-type]
            ready = self._ready = prepared(planes, self.form)  # type: ignore[arg-type]
        return multiply(x, ready, bias)

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

    def extra_repr(self) -> str:
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self._parameters['bias'] is not None}, {self.form.partition(' ')[2]}")

    # ---- its life as a module

    def reset_parameters(self) -> None:
        """Zeros, as of a new module."""
        with torch.no_grad():
            for plane, empty in zip(self.planes, empty_planes(self.form, self.weight.device)):
                plane.copy_(empty)
            if self.bias is not None:
                self.bias.zero_()

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Linear:
        """Moves planes as bytes, so that no change of type reaches them."""
        planes = {name: self._buffers.pop(name) for name in self._names}
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

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ready": None}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None and prefix[:-1] in metadata:
            metadata[prefix[:-1]]["qk"] = self.form

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any,
                              strict: bool, missing_keys: Any, unexpected_keys: Any,
                              error_msgs: Any) -> None:
        stored = local_metadata.get("qk", self.form)
        if stored != self.form:  # planes of the same sizes would load, and mean something else
            error_msgs.append(f"{prefix[:-1]}: the state has a weight {stored}, the module one "
                              f"{self.form}")
            return
        for name in self._names:
            key, plane = prefix + name, self._buffers[name]
            given = state_dict.get(key)
            if isinstance(given, torch.Tensor) and plane is not None \
                    and given.dtype != plane.dtype:
                error_msgs.append(f"{key}: is {given.dtype} in the state, must be {plane.dtype}")
                return
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing_keys,
                                      unexpected_keys, error_msgs)
        self._ready = None


def _watched(x: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Must a product go through torch's dispatcher? Else calling libqk at once is much faster."""
    return bool(
        type(x) is not torch.Tensor
        or _grad_enabled() and (x.requires_grad or bias is not None and bias.requires_grad)
        or _mode_count() or _profiler_enabled() or _trace() is not None
        or _function_transform() is not None
        or not (x.is_cpu or x.is_cuda) or _autocast_enabled("cpu" if x.is_cpu else "cuda"))


def _as_torch(bias: Any) -> torch.Tensor:
    """A layer's bias, copied; bf16 by way of its bits."""
    if not isinstance(bias, Tensor):
        return torch.as_tensor(bias)
    values = torch.from_numpy(bias.plane("data").copy())
    return values.view(torch.bfloat16) if bias.format == "bf16" else values
