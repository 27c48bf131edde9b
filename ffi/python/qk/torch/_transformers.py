"""qk as a quantization method of transformers: from_pretrained(..., quantization_config=QkConfig())

A model that save_pretrained wrote loads again without naming anything, once qk.torch is imported.
"""
from __future__ import annotations

from typing import Any

import torch
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import get_module_from_name
from transformers.utils.quantization_config import QuantizationConfigMixin

from .._desc import quantized_desc
from ._experts import WEIGHTS as EXPERT_WEIGHTS
from ._experts import Experts
from ._linear import Linear
from ._operators import quantize_op
from ._replace import dequantize_linear, replace_linear

_OPTIONS = ("group_size", "scale", "nested", "symmetric", "layout")


@register_quantization_config("qk")
class QkConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """How a model's linear layers and experts are stored; the names are those of qk.quantize.

    modules_to_not_convert: as for replace_linear; None: the output head and tied weights.
    convert_experts: False leaves experts dense.
    """

    def __init__(self, format: str = "nf4", group_size: int = 0, scale: str = "f32",
                 nested: bool = False, symmetric: bool = True, layout: str | None = None,
                 modules_to_not_convert: list[str] | None = None, convert_experts: bool = True,
                 **_: Any) -> None:
        self.quant_method: Any = "qk"
        self.format, self.group_size, self.scale = format, group_size, scale
        self.nested, self.symmetric, self.layout = nested, symmetric, layout
        self.modules_to_not_convert = modules_to_not_convert
        self.convert_experts = convert_experts
        quantized_desc((64, 4096), format, **self.options)  # refuses what is no format

    @property
    def options(self) -> dict[str, Any]:
        """What Linear takes besides the format."""
        return {name: getattr(self, name) for name in _OPTIONS}


class _Quantize(ConversionOps):  # type: ignore[misc]
    """A dense weight, just read, becomes planes: one layer, or its experts, is dense at a time."""

    def __init__(self, quantizer: Any) -> None:
        self.hf_quantizer = quantizer

    def convert(self, input_dict: dict[str, Any], *_: Any, model: Any = None,
                **_options: Any) -> dict[str, Any]:
        planes = {}
        for target, value in input_dict.items():
            value = value[0] if isinstance(value, list) else value
            module, name = get_module_from_name(model, target)
            if isinstance(module, Experts):
                made = module.quantize(name, value)
            else:
                value = value.T if _is_conv1d(module) else value
                made = dict(zip(module._names, quantize_op(value.contiguous(), module.form)))
            path = target.rpartition(".")[0]
            planes.update({f"{path}.{buffer}": plane for buffer, plane in made.items()})
            module._is_hf_initialized = True
        return planes


def _makes_experts(converter: Any) -> bool:
    return any(name in pattern for pattern in converter.target_patterns for name in EXPERT_WEIGHTS)


def _dense_names(module: Any) -> list[str]:
    """The tensors of a checkpoint that become a module's planes."""
    if isinstance(module, Experts):
        return list(module.forms)
    return ["weight"] if isinstance(module, Linear) else []


def _is_conv1d(module: Any) -> bool:
    return bool(getattr(module, "was_conv1d", False))


@register_quantizer("qk")
class QkHfQuantizer(HfQuantizer):  # type: ignore[misc]
    """What from_pretrained and save_pretrained ask of a quantization method."""

    requires_calibration = False
    quantization_config: QkConfig

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
        """Layers on the meta device, of the shapes that planes will have."""
        config = self.quantization_config
        skipped = self.get_modules_to_not_convert(model, config.modules_to_not_convert,
                                                  model._keep_in_fp32_modules)
        conv1d = {name for name, module in model.named_modules()
                  if type(module).__name__ == "Conv1D"}
        report = replace_linear(model, config.format, modules_to_not_convert=skipped,
                                convert_experts=config.convert_experts, **config.options)
        for name in conv1d & set(report.replaced):
            model.get_submodule(name).was_conv1d = not self.pre_quantized
        if not self.pre_quantized:
            # transformers before 5.23 reads a tensor in the type of what it finds in its place.
            for module in model.modules():
                for name in _dense_names(module):
                    module._buffers[name] = module._buffers[name].to(model.dtype)
        # What a file of this model needs to be read again.
        config.modules_to_not_convert = sorted({*skipped, *report.kept})
        return model

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        module, name = get_module_from_name(model, param_name)
        return not self.pre_quantized and name in _dense_names(module)

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        """save_pretrained splits dense experts into the tensors that they were read from; planes
        are saved as they are."""
        experts = [name for name, module in model.named_modules() if isinstance(module, Experts)]
        if experts:
            model._weight_conversions = [
                one for one in getattr(model, "_weight_conversions", None) or []
                if not (isinstance(one, WeightConverter) and _makes_experts(one))]
        return model

    def get_quantize_ops(self) -> Any:
        return _Quantize(self)

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        dequantize_linear(model, dtype or torch.float32)
        return model

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return True

    @property
    def is_compileable(self) -> bool:
        return True
