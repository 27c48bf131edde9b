"""qk as a quantization method of transformers: from_pretrained(..., quantization_config=QkConfig())

A model that save_pretrained wrote loads again without naming anything, once qk.torch is imported.
"""
from __future__ import annotations

from typing import Any

import torch
import transformers

if tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 8):
    raise ImportError("qk.torch.QkConfig: needs transformers 5.8 or newer, installed is "
                      + transformers.__version__)

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.quantizers.quantizers_utils import get_module_from_name
from transformers.utils.quantization_config import QuantizationConfigMixin

from .._desc import quantized_desc
from .._errors import Error
from ._experts import WEIGHTS as EXPERT_WEIGHTS
from ._experts import Experts
from ._form import form_of, text_of
from ._linear import Linear
from ._operators import quantize_op
from ._replace import dequantize_linear, is_named, of_form, replace, what

_OPTIONS = ("group_size", "scale", "nested", "symmetric", "layout")


@register_quantization_config("qk")
class QkConfig(QuantizationConfigMixin):  # type: ignore[misc]
    """How a model's linear layers and experts are stored; the names are those of qk.quantize.

    modules_to_not_convert: as for replace_linear; None: the output head and tied weights.
    convert_experts: False leaves experts dense.
    layers: forms of layers that differ from the rest, by their names; a saved model has them.
    """

    def __init__(self, format: str = "nf4", group_size: int = 0, scale: str = "f32",
                 nested: bool = False, symmetric: bool = True, layout: str | None = None,
                 modules_to_not_convert: list[str] | None = None, convert_experts: bool = True,
                 layers: dict[str, Any] | None = None, **_: Any) -> None:
        self.quant_method: Any = "qk"
        self.format, self.group_size, self.scale = format, group_size, scale
        self.nested, self.symmetric, self.layout = nested, symmetric, layout
        self.modules_to_not_convert = modules_to_not_convert
        self.convert_experts = convert_experts
        self.layers = layers or {}
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
        for name, words in config.layers.items():
            model.set_submodule(name, of_form(model.get_submodule(name), words))
        report = replace(model, config.format, modules_to_not_convert=skipped,
                         convert_experts=config.convert_experts, **config.options)
        for name in conv1d & set(report.replaced):
            model.get_submodule(name).was_conv1d = not self.pre_quantized
        if not self.pre_quantized:
            # transformers before 5.23 reads a tensor in the type of what it finds in its place.
            for module in model.modules():
                for name in _dense_names(module):
                    module._buffers[name] = module._buffers[name].to(model.dtype)
        return model

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        module, name = get_module_from_name(model, param_name)
        return not self.pre_quantized and name in _dense_names(module)

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        return model

    def get_state_dict_and_metadata(self, model: Any) -> tuple[None, dict[str, str]]:
        """save_pretrained's first question: the model's configuration and converters become those
        of what it is now."""
        config = _config_of(model, self.quantization_config)
        if config is not None:
            model.config.quantization_config = config
        elif hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        if any(isinstance(module, Experts) for module in model.modules()):
            model._weight_conversions = _without_experts(model)
        return None, {}

    def get_quantize_ops(self) -> Any:
        return _Quantize(self)

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        if isinstance(dtype, str):  # of a configuration that was saved
            dtype = getattr(torch, dtype)
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


def attach(model: Any, format: str, options: dict[str, Any]) -> None:
    """Layers of a transformers model have been replaced: it is of this method from now on, unless
    layers of another one are left."""
    if not isinstance(model, PreTrainedModel):
        return
    theirs = getattr(model, "hf_quantizer", None)
    if isinstance(theirs, QkHfQuantizer) \
            or any(what(module) == "quantized" for module in model.modules()):
        return
    model.hf_quantizer = QkHfQuantizer(QkConfig(format, **options), pre_quantized=False)
    if theirs is not None:
        model.quantization_method = "qk"


def _config_of(model: Any, given: QkConfig) -> QkConfig | None:
    """What from_pretrained needs to make the modules of a model; None of a dense one."""
    modules = dict(model.named_modules(remove_duplicate=False))
    ours = {name: module for name, module in modules.items()
            if isinstance(module, (Linear, Experts))}
    if not ours:
        return None
    dense = sorted(name for name, module in modules.items() if name not in ours and what(module))
    skipped = [*dense, *(model._keep_in_fp32_modules or ())]
    layers = {name: _words_of(module) for name, module in ours.items()
              if is_named(name, skipped) or not _is_usual(module, given)}
    return QkConfig(given.format, **given.options, modules_to_not_convert=dense, layers=layers)


def _words_of(module: Linear | Experts) -> Any:
    if isinstance(module, Experts):
        return {name: form.partition(" ")[2] for name, form in module.forms.items()}
    return module.form.partition(" ")[2]


def _is_usual(module: Linear | Experts, config: QkConfig) -> bool:
    """Does a weight have the form that the configuration's options give it?"""
    forms = module.forms.values() if isinstance(module, Experts) else [module.form]
    try:
        return all(form == text_of(quantized_desc(form_of(form).shape, config.format,
                                                  **config.options)) for form in forms)
    except Error:  # there is no such form of this shape
        return False


def _without_experts(model: Any) -> list[Any]:
    """save_pretrained splits dense experts into the tensors that they are read from; planes are
    saved as they are."""
    conversions = getattr(model, "_weight_conversions", None)
    if conversions is None:  # not read from a file; of these, save_pretrained leaves prefixes
        conversions = [one for one in get_model_conversion_mapping(model, add_legacy=False)
                       if type(one).__name__ != "PrefixChange"]
    return [one for one in conversions
            if not (isinstance(one, WeightConverter) and _makes_experts(one))]
