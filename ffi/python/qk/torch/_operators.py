"""qk's operators in torch.library: with shapes for tracers, gradients and autocast.

    qk::linear(x, planes, weight, bias)       x . transpose(w) + bias
    qk::linear_transposed(x, planes, weight)  x . w, which the gradient of x needs
    qk::dequantize(planes, weight, dtype)     w, dense
    qk::quantize(dense, weight)               its planes

`weight` is the text of a _form.Form, `planes` its planes in that order. Nothing here needs a build:
the kernels are Python that calls libqk.
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .._abi import lib
from .._errors import UnsupportedError, refuse
from .._tensor import asarray, dynamic_table
from ._form import form_of
from ._multiply import multiply, multiply_transposed
from ._prepared import context_of, prepared, wrapped

library = torch.library.Library("qk", "DEF")
library.define("linear(Tensor x, Tensor[] planes, str weight, Tensor? bias=None) -> Tensor")
library.define("linear_transposed(Tensor x, Tensor[] planes, str weight) -> Tensor")
library.define("dequantize(Tensor[] planes, str weight, ScalarType dtype) -> Tensor")
library.define("quantize(Tensor dense, str weight) -> Tensor[]")

# Rows of x up to which the library's x . w is faster than dequantizing w for torch's product.
# torch has fast bf16 on processors with AVX512-BF16, and no fast f16 on any.
_CPU_ROWS = {torch.float32: 128, torch.bfloat16: 8, torch.float16: sys.maxsize}
_CUDA_ROWS = 48
# On a Hopper GPU a kernel of its own takes these formats with 16-bit x, whatever the rows.
_HOPPER, _HOPPER_FORMATS = (9, 0), ("u4", "nf4", "fp4", "e2m1")

Planes = Sequence[torch.Tensor]
linear_op = torch.ops.qk.linear.default
transposed_op = torch.ops.qk.linear_transposed.default
dequantize_op = torch.ops.qk.dequantize.default
quantize_op = torch.ops.qk.quantize.default


# ---- what they compute


def _linear(x: torch.Tensor, planes: Planes, weight: str,
            bias: torch.Tensor | None = None) -> torch.Tensor:
    return multiply(x, prepared(planes, weight), bias)


def _most_rows(x: torch.Tensor, weight: str) -> int:
    if not x.is_cuda:
        return _CPU_ROWS.get(x.dtype, 0)
    if (x.dtype != torch.float32 and form_of(weight).format in _HOPPER_FORMATS
            and torch.cuda.get_device_capability(x.device) == _HOPPER):
        return sys.maxsize
    return _CUDA_ROWS


def transposed_values(x: torch.Tensor, planes: Planes, weight: str) -> torch.Tensor:
    if x.numel() <= _most_rows(x, weight) * x.shape[-1]:
        return multiply_transposed(x, prepared(planes, weight))
    return x @ dequantize_values(planes, weight, x.dtype)


def dequantize_values(planes: Planes, weight: str, dtype: torch.dtype) -> torch.Tensor:
    dense = planes[0].new_empty(form_of(weight).shape, dtype=dtype)
    if dense.numel():
        context = context_of(dense)
        context.call(lib.qk_dequantize, prepared(planes, weight, packed=False).weight,
                     asarray(dense, context=context))
    return dense


def _quantize(dense: torch.Tensor, weight: str) -> list[torch.Tensor]:
    values = dense.detach().contiguous()
    if values.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise refuse("FORMAT", f"dense: is {values.dtype}, accepted are float32, float16 and "
                     "bfloat16")
    try:
        return _quantize_there(values, weight)
    except UnsupportedError:
        if values.is_cpu:
            raise
        return [plane.to(values.device) for plane in _quantize_there(values.cpu(), weight)]


def _quantize_there(values: torch.Tensor, weight: str) -> list[torch.Tensor]:
    planes = empty_planes(weight, values.device)
    if values.numel():
        context = context_of(values)
        out = wrapped(planes, weight)
        context.call(lib.qk_quantize, asarray(values, context=context), out)
    return planes


def empty_planes(weight: str, device: Any) -> list[torch.Tensor]:
    """Planes of zeros, but for the tables that quantizing reads."""
    planes = []
    for name, dtype, shape in form_of(weight).planes:
        plane = torch.zeros(shape, dtype=dtype, device=device)
        if name in ("table", "scale_code") and shape == (256,) and not plane.is_meta:
            plane.copy_(torch.from_numpy(np.array(dynamic_table())))
        planes.append(plane)
    return planes


for _device in ("CPU", "CUDA"):
    library.impl("linear", _linear, _device)
    library.impl("linear_transposed", transposed_values, _device)
    library.impl("dequantize", dequantize_values, _device)
    library.impl("quantize", _quantize, _device)


# ---- shapes, for tracers and the meta device


def _product_like(x: torch.Tensor, given: int, made: int) -> torch.Tensor:
    torch._check(x.shape[-1] == given, lambda: f"x: its last dimension is {x.shape[-1]}, must be "
                 f"{given}")
    return x.new_empty((*x.shape[:-1], made))


@torch.library.register_fake("qk::linear", lib=library)
def _(x: torch.Tensor, planes: Planes, weight: str,
      bias: torch.Tensor | None = None) -> torch.Tensor:
    n, k = form_of(weight).shape
    return _product_like(x, k, n)


@torch.library.register_fake("qk::linear_transposed", lib=library)
def _(x: torch.Tensor, planes: Planes, weight: str) -> torch.Tensor:
    n, k = form_of(weight).shape
    return _product_like(x, n, k)


@torch.library.register_fake("qk::dequantize", lib=library)
def _(planes: Planes, weight: str, dtype: torch.dtype) -> torch.Tensor:
    return planes[0].new_empty(form_of(weight).shape, dtype=dtype)


@torch.library.register_fake("qk::quantize", lib=library)
def _(dense: torch.Tensor, weight: str) -> list[torch.Tensor]:
    return [dense.new_empty(plane.shape, dtype=plane.dtype) for plane in form_of(weight).planes]


# ---- gradients: of x and bias; weights have none


def _remember(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, planes, ctx.weight, *rest = inputs
    bias = rest[0] if rest else None
    ctx.count = len(planes)
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(*planes)


def _no_gradients(ctx: Any) -> list[None]:
    return [None] * ctx.count


def _linear_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    of_x = of_bias = None
    if ctx.needs_input_grad[0]:
        of_x = transposed_op(grad, list(ctx.saved_tensors), ctx.weight)
    if ctx.bias_dtype is None:  # then PyTorch's dispatcher has dropped it from the inputs
        return of_x, _no_gradients(ctx), None
    if ctx.needs_input_grad[3]:
        of_bias = grad.reshape(-1, grad.shape[-1]).sum(0).to(ctx.bias_dtype)
    return of_x, _no_gradients(ctx), None, of_bias


def _transposed_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    of_x = None
    if ctx.needs_input_grad[0]:
        of_x = linear_op(grad, list(ctx.saved_tensors), ctx.weight, None)
    return of_x, _no_gradients(ctx), None


torch.library.register_autograd("qk::linear", _linear_backward, setup_context=_remember,
                                lib=library)
torch.library.register_autograd("qk::linear_transposed", _transposed_backward,
                                setup_context=_remember, lib=library)


# ---- autocast: x in autocast's type, the planes as they are


def _register_autocast(device: str) -> None:
    key = getattr(torch._C.DispatchKey, f"Autocast{device.upper()}"
                  if device == "cpu" else "AutocastCUDA")
    without = torch._C.DispatchKeySet(key)

    def linear(x: torch.Tensor, planes: Planes, weight: str,
               bias: torch.Tensor | None = None) -> torch.Tensor:
        if x.is_floating_point() and x.dtype != torch.float64:
            x = x.to(torch.get_autocast_dtype(device))
        with torch._C._ExcludeDispatchKeyGuard(without):
            return linear_op(x, planes, weight, bias)

    library.impl("linear", linear, f"Autocast{'CPU' if device == 'cpu' else 'CUDA'}")


for _kind in ("cpu", "cuda"):
    _register_autocast(_kind)
