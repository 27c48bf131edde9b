"""4-bit weights of vLLM on CPUs: what the entry point `vllm.general_plugins` of this package loads.

With qk installed, vLLM calls register(), which adds QkLinearKernel to the kernels that it may pick
for layers of GPTQ, AWQ and compressed-tensors models. Products are qk.linear's, to the bit.

    QK_VLLM=last    after vLLM's own: qk takes the layers that these refuse; the default
    QK_VLLM=first   before them: every layer that qk can multiply is qk's
    QK_VLLM=off     vLLM stays as it is
"""
from __future__ import annotations

import os
from typing import Any

import torch
from vllm.model_executor.kernels import linear as kernels
from vllm.model_executor.kernels.linear import MPLinearKernel, MPLinearLayerConfig
from vllm.platforms import PlatformEnum, current_platform
from vllm.scalar_type import scalar_types

from ._desc import make_desc
from ._errors import Error
from .torch import Linear
from .torch._operators import linear_op

_SCALES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_PER_WORD = 8


class QkLinearKernel(MPLinearKernel):  # type: ignore[misc]
    """4-bit integers in words, with zeros (uint4) or without (uint4b8)."""

    @classmethod
    def get_min_capability(cls) -> int:
        return -1  # no GPU's

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        """Whether, or why not."""
        if not current_platform.is_cpu():
            return False, "qk.vllm: is for CPUs"
        zeros = c.weight_type == scalar_types.uint4
        if not zeros and c.weight_type != scalar_types.uint4b8 or zeros != c.zero_points:
            return False, (f"qk.vllm: weights are {c.weight_type}, accepted are uint4 with zeros "
                           "and uint4b8 without")
        if getattr(c, "has_g_idx", False):  # of vLLM before 0.32
            return False, "qk.vllm: columns have an order (g_idx), accepted are plain ones"
        if c.act_type not in _SCALES:
            return False, f"qk.vllm: x is {c.act_type}, accepted are float32, float16, bfloat16"
        k, n = c.partition_weight_shape
        if n % _PER_WORD or k % _PER_WORD:
            return False, f"qk.vllm: the weight is [{k},{n}], accepted are multiples of {_PER_WORD}"
        try:
            make_desc((n, k), "u4_affine", **_options(c, "gptq"))
        except Error as error:
            return False, f"qk.vllm: {error}"
        return True, None

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        """Takes the layer's tensors as they are; only zeros may have to be transposed."""
        codes, scales, zeros = self._get_weight_params(layer)
        by_output = codes.input_dim == 1  # compressed-tensors' [n,k/8], else GPTQ's [k/8,n]
        k, n = self.config.partition_weight_shape
        planes = {"data": codes.data, "scale": _turned(scales, by_output)}
        if self.config.zero_points:
            planes["zero"] = _turned(zeros, by_output)
        linear = Linear.from_planes(k, n, "u4_affine", planes,
                                    **_options(self.config, "word" if by_output else "gptq"))
        self.form, self.planes = linear.form, linear.planes

    def apply_weights(self, layer: torch.nn.Module, x: torch.Tensor,
                      bias: torch.Tensor | None = None) -> torch.Tensor:
        return linear_op(x, self.planes, self.form, bias)  # type: ignore[no-any-return]


def _options(c: MPLinearLayerConfig, layout: str) -> dict[str, Any]:
    return {"scale": _SCALES[c.act_type], "layout": layout, "group_size": c.group_size,
            "symmetric": not c.zero_points}


def _turned(parameter: Any, by_output: bool) -> torch.Tensor:
    """A tensor of groups with outputs first, or last."""
    is_by_output = parameter.output_dim == 0
    return parameter.data if is_by_output == by_output else parameter.data.t().contiguous()


def register() -> None:
    """vLLM calls it in each of its processes, in some more than once."""
    where = os.environ.get("QK_VLLM", "last")
    if where not in ("first", "last", "off"):
        raise ValueError(f"QK_VLLM: is {where!r}, accepted are first, last and off")
    found = kernels._POSSIBLE_KERNELS.setdefault(PlatformEnum.CPU, [])
    if where == "off" or QkLinearKernel in found:
        return
    kernels.register_linear_kernel(QkLinearKernel, PlatformEnum.CPU)
    if where == "first":  # vLLM's call appends
        found.insert(0, found.pop())
