"""torch.nn.Linear with a quantized weight."""
from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .._desc import quantized_desc
from .._errors import refuse
from .._linear import Layer
from .._tensor import Tensor
from ._form import Form, bits_as, form_of, text_of
from ._multiply import multiply
from ._operators import (empty_planes, linear_op, quantize_op, transposed_op,
                         transposed_values)
from ._prepared import Prepared
from ._weight import Weight, copied_planes

_is_compiling = torch.compiler.is_compiling
_grad_enabled = torch.is_grad_enabled
_autocast_enabled = torch._C._is_any_autocast_enabled
_profiler_enabled = torch.autograd._profiler_enabled  # type: ignore[attr-defined]
_mode_count = torch._C._len_torch_dispatch_stack
_function_transform = torch._C._functorch.peek_interpreter_stack
_trace = torch._C._get_tracing_state


class Linear(Weight, torch.nn.Linear):
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
        super()._set(text, planes)
        self.out_features, self.in_features = form_of(text).shape

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
        text, planes = copied_planes(weight)
        return cls._from(text, planes, None if bias is None else bias.to(planes[0].device))

    # ---- what it computes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parameters = self._parameters
        bias = parameters["bias"] if "bias" in parameters else self.bias  # DataParallel's copies
        if _is_compiling() or _watched(x):
            return linear_op(x, self.planes, self.form, bias)
        if _autocast_enabled():
            x = _autocast(x)
        ready = self._ready
        if ready is None:
            weight = self._prepare()
        else:
            weight, seen = ready
            buffers = self._buffers
            for name, plane, version in seen:
                if buffers[name] is not plane or version is not None and version != plane._version:
                    weight = self._prepare()
                    break
        if _grad_enabled() and (x.requires_grad or bias is not None and bias.requires_grad):
            return _Product.apply(x, bias, weight, self)
        return multiply(x, weight, bias)

    def extra_repr(self) -> str:
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"bias={self.bias is not None}, {self.form.partition(' ')[2]}")

    def reset_parameters(self) -> None:
        """Zeros, as of a new module."""
        super().reset_parameters()
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)


class _Product(torch.autograd.Function):
    """A product with gradients that calls libqk at once, as forward() does without: through the
    operators, the host takes longer than a GPU takes to multiply."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, bias: torch.Tensor | None, weight: Prepared,
                layer: Linear) -> torch.Tensor:
        ctx.form, ctx.bias_dtype = layer.form, None if bias is None else bias.dtype
        ctx.save_for_backward(*layer.planes)
        return multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
        of_x = of_bias = None
        if ctx.needs_input_grad[0]:  # with its own gradient, where that is asked for
            watched = _grad_enabled() or _autocast_enabled() or _watched(grad)
            product = transposed_op if watched else transposed_values
            of_x = product(grad, list(ctx.saved_tensors), ctx.form)
        if ctx.needs_input_grad[1]:
            of_bias = grad.reshape(-1, grad.shape[-1]).sum(0).to(ctx.bias_dtype)
        return of_x, of_bias, None, None


def _watched(x: torch.Tensor) -> bool:
    """Must a product go through torch's dispatcher? Else calling libqk at once is much faster."""
    return bool(
        type(x) is not torch.Tensor
        or _mode_count() or _profiler_enabled() or _trace() is not None
        or _function_transform() is not None
        or not (x.is_cpu or x.is_cuda))


def _autocast(x: torch.Tensor) -> torch.Tensor:
    """x as the operator would get it where autocast is on."""
    device = x.device.type
    if not torch.is_autocast_enabled(device) or not x.is_floating_point() \
            or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(device))


def _as_torch(bias: Any) -> torch.Tensor:
    """A layer's bias, copied; bf16 by way of its bits."""
    if not isinstance(bias, Tensor):
        return torch.as_tensor(bias)
    values = torch.from_numpy(bias.plane("data").copy())
    return values.view(torch.bfloat16) if bias.format == "bf16" else values
