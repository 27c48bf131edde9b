"""Each package quantizes and saves a model; test_packages.py says what a module has."""
import importlib
import json
import pathlib
import sys

import tokenizers
from huggingface_hub import save_torch_state_dict
from small_models import SMALL, tensors_of, transformers

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "golden"


def golden(name):
    """A module of the golden writers, which run the same packages."""
    if str(GOLDEN) not in sys.path:
        sys.path.append(str(GOLDEN))
    return importlib.import_module(name)


def add_tokenizer(folder):
    """A word for each number, for packages that open no model without a tokenizer."""
    words = {f"w{index}": index for index in range(SMALL["vocab_size"])}
    model = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, unk_token="w0", pad_token="w1", eos_token="w2").save_pretrained(
            folder)


def is_projection(name, tensor):
    return name.endswith("_proj.weight") and tensor.dim() == 2


def save_layers(source, folder, quantize, config, dtype):
    """The model in shards. quantize(name, tensor): the parts of a weight by their last names, and
    what the package says it is; or None, and the tensor stays. Returns what they are."""
    tensors, truth = {}, {}
    for name, tensor in tensors_of(source).items():
        tensor = tensor.to(dtype) if tensor.is_floating_point() else tensor
        made = quantize(name, tensor)
        if made is None:
            tensors[name] = tensor
            continue
        parts, truth[name] = made
        for part, value in parts.items():
            tensors[f"{name.removesuffix('weight')}{part}"] = value.contiguous()
    save_folder(source, folder, tensors, config, dtype=str(dtype).removeprefix("torch."))
    return truth


def save_folder(source, folder, tensors, config, **more):
    """Shards, and the model's configuration with that of its quantization."""
    folder.mkdir()
    save_torch_state_dict(tensors, folder, max_shard_size="100KB")
    settings = json.loads((source / "config.json").read_text())
    settings.update(quantization_config=config, **more)
    (folder / "config.json").write_text(json.dumps(settings, default=str))
