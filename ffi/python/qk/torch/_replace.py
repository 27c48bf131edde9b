"""Models: their linear layers replaced by quantized ones, and back."""
from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch

from .._errors import Error
from ._experts import Experts, is_experts
from ._foreign import config_of, layer_of
from ._linear import Linear
from ._operators import empty_planes

# Modules that read the weights of their layers instead of calling them.
_READERS = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoderLayer)


class Report(NamedTuple):
    """What replace_linear() did, by the names of modules."""

    replaced: dict[str, str]  #: what each was and is
    kept: dict[str, str]  #: why each linear layer was left as it is

    def __str__(self) -> str:
        lines = [f"{len(self.replaced)} linear layers replaced, {len(self.kept)} kept"]
        lines += [f"kept {name or 'the model'}: {why}" for name, why in self.kept.items()]
        return "\n".join(lines)


def replace_linear(model: torch.nn.Module, format: str = "nf4", *,
                   modules_to_not_convert: Iterable[str] | None = None,
                   convert_quantized: bool = True, convert_experts: bool = True,
                   **options: Any) -> Report:
    """Replaces the linear layers of a model, in place, one by one.

    Dense ones (torch.nn.Linear, transformers' Conv1D) are quantized: format and options are those
    of Linear. Layers that bitsandbytes, AWQ, GPTQ or compressed-tensors have quantized keep their
    bits and their format, unless convert_quantized is False. Modules of experts, transformers' with
    gate_up_proj and down_proj [E,n,k], become qk.torch.Experts, unless convert_experts is False.
    modules_to_not_convert: names, ends of names or regular expressions, a module's meaning all
    inside; None: a transformers model's output head. A weight that another module uses too, as a
    tied head does, always stays. What stays, and why, is in the report. A transformers model saves
    what it is afterwards: from_pretrained reads it again.
    """
    report = replace(model, format, modules_to_not_convert=modules_to_not_convert,
                     convert_quantized=convert_quantized, convert_experts=convert_experts,
                     **options)
    method = sys.modules.get(f"{__package__}._transformers")  # where transformers is installed
    if report.replaced and method is not None:
        method.attach(model, format, options)
    return report


def replace(model: torch.nn.Module, format: str, *, modules_to_not_convert: Iterable[str] | None,
            convert_quantized: bool = True, convert_experts: bool, **options: Any) -> Report:
    """The modules alone."""
    skipped = list(_output_heads(model) if modules_to_not_convert is None
                   else modules_to_not_convert)
    report = Report({}, {})
    shared, inside = _shared_weights(model), _read_inside(model)
    done: dict[int, torch.nn.Module] = {}
    if what(model) and not isinstance(model, (Linear, Experts)):
        report.kept[""] = "is a layer itself, which cannot be replaced in place; " \
                          "qk.torch.Linear.from_linear makes another"
    for parent, child, name in list(_slots(model)):
        module = getattr(parent, child)
        if id(module) in done:  # one module in two places stays one
            setattr(parent, child, done[id(module)])
            report.replaced[name] = "the same module as before"
            continue
        if isinstance(module, (Linear, Experts)):
            continue
        kind = what(module)
        why = kind and (_why_not(name, module, skipped, shared) or inside.get(name))
        if not kind:
            continue
        if kind == "quantized" and not convert_quantized:
            why = why or "is quantized already"
        if kind == "experts" and not convert_experts:
            why = why or "is a module of experts"
        if why:
            report.kept[name] = why
            continue
        try:
            new = _made_of(module, kind, format, options)
        except (Error, ValueError, RuntimeError) as error:
            report.kept[name] = str(error)
            continue
        done[id(module)] = new
        report.replaced[name] = f"{type(module).__name__} to {_form_text(new)}"
        setattr(parent, child, new)
    return report


def dequantize_linear(model: torch.nn.Module, dtype: torch.dtype = torch.float32) -> int:
    """Replaces each qk.torch.Linear of a model by a dense torch.nn.Linear, and Experts by what they
    were; how many there were."""
    count = 0
    for parent, child, _ in list(_slots(model)):
        module = getattr(parent, child)
        if isinstance(module, Linear):
            new = torch.nn.Linear(module.in_features, module.out_features,
                                  bias=module.bias is not None, device="meta")
            new.weight = torch.nn.Parameter(module.dequantize(dtype), requires_grad=False)
            if module.bias is not None:
                new.bias = torch.nn.Parameter(module.bias.detach().to(dtype),
                                              module.bias.requires_grad)
            setattr(parent, child, new.train(module.training))
            count += 1
        elif isinstance(module, Experts):
            setattr(parent, child, module.dequantize(dtype))
            count += 1
    return count


def is_named(name: str, patterns: Iterable[str]) -> bool:
    """Is a module one of those named, or inside of one?"""
    return any(name == pattern or name.startswith(f"{pattern}.") or name.endswith(f".{pattern}")
               or f".{pattern}." in f".{name}." or re.fullmatch(pattern, name)
               for pattern in patterns)


def of_form(module: Any, words: str | dict[str, str]) -> Linear | Experts:
    """What takes a dense module's place, with a weight of this form that is still to be read.

    words: a form's text without its shape; of experts, by the names of their weights.
    """
    if isinstance(words, dict):
        return Experts.of_forms(module, words)
    n, k = reversed(module.weight.shape) if what(module) == "conv1d" else module.weight.shape
    text = f"{n}x{k} {words}"
    new = Linear._from(text, empty_planes(text, module.weight.device), module.bias)
    return new.train(module.training)


def _slots(model: torch.nn.Module) -> Iterator[tuple[torch.nn.Module, str, str]]:
    """Each place of a module: its parent, its name there, its full name."""
    for prefix, parent in model.named_modules():
        for child in parent._modules:
            if parent._modules[child] is not None:
                yield parent, child, f"{prefix}.{child}" if prefix else child


def what(module: torch.nn.Module) -> str:
    """"dense", "conv1d", "quantized", "experts", "other linear", or "" of what is no linear
    layer."""
    if config_of(module) is not None:
        return "quantized"
    if type(module) is torch.nn.Linear:
        return "dense"
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):
        return "conv1d"
    if is_experts(module):
        return "experts"
    return "other linear" if isinstance(module, torch.nn.Linear) else ""


def _why_not(name: str, module: Any, skipped: list[str], shared: dict[int, list[str]]) -> str:
    if is_named(name, skipped):
        return "is in modules_to_not_convert, or the model's output head"
    users = [user for user in shared.get(id(getattr(module, "weight", None)), []) if user != name]
    if users:
        return f"shares its weight with {', '.join(users)}"
    if isinstance(module, torch.nn.Linear) and type(module) is not torch.nn.Linear \
            and config_of(module) is None:
        return f"is a {type(module).__name__}, which may compute something else"
    return ""


def _form_text(module: Linear | Experts) -> str:
    return module.form if isinstance(module, Linear) else module.extra_repr()


def _made_of(module: Any, kind: str, format: str, options: dict[str, Any]) -> Linear | Experts:
    if kind == "experts":
        return Experts(module, format, **options)
    if kind == "quantized":
        config = config_of(module)
        assert config is not None
        device = next(value.device for value in module.state_dict().values()
                      if isinstance(value, torch.Tensor))
        layer = layer_of(module, config)
        new = Linear.from_tensor(layer).to(device)
        old = getattr(module, "bias", None)
        if isinstance(old, torch.nn.Parameter):  # an optimizer may know it
            new.register_parameter("bias", old)
        return new.train(module.training)
    if kind == "conv1d":  # [k,n]
        k, n = module.weight.shape
        dense = torch.nn.Linear(k, n, bias=False, device="meta")
        dense.weight = torch.nn.Parameter(module.weight.detach().T.contiguous(), False)
        dense.bias = module.bias
        return Linear.from_linear(dense, format, **options).train(module.training)
    return Linear.from_linear(module, format, **options)


def _shared_weights(model: torch.nn.Module) -> dict[int, list[str]]:
    """Modules by the id of their parameter `weight`, where several have the same one."""
    users: dict[int, list[str]] = {}
    for name, module in model.named_modules():
        weight = module._parameters.get("weight")
        if weight is not None:
            users.setdefault(id(weight), []).append(name)
    for target, source in (getattr(model, "all_tied_weights_keys", None) or {}).items():
        try:  # tied, though on the meta device each still has a weight of its own
            weights = [model.get_parameter(target), model.get_parameter(source)]
        except AttributeError:
            continue
        names = [target.removesuffix(".weight"), source.removesuffix(".weight")]
        for weight in weights:
            users[id(weight)] = sorted({*users.get(id(weight), []), *names})
    return {key: names for key, names in users.items() if len(names) > 1}


def _read_inside(model: torch.nn.Module) -> dict[str, str]:
    """Layers whose weights a module around them reads."""
    return {f"{prefix}.{name}" if prefix else name:
            f"is inside of a {type(reader).__name__}, which reads its weight"
            for prefix, reader in model.named_modules() if isinstance(reader, _READERS)
            for name, _ in reader.named_modules()}


def _output_heads(model: Any) -> list[str]:
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return [name for name, module in model.named_modules() if module is head]
