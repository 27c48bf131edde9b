"""What the golden writers share: seeded weights with realistic statistics, and saving."""
import importlib.util
import json
import sys
import types
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

DATA = Path(__file__).resolve().parent / "data"
MAX_FILE_BYTES = 1_000_000


def weights(seed, n, k, dtype):
    """Heavy tails (Student t, 4 degrees), outlier input channels, rows of different size."""
    rng = np.random.default_rng(seed)
    w = rng.standard_t(4, size=(n, k)) * 0.02
    outliers = rng.choice(k, size=max(1, k // 40), replace=False)
    w[:, outliers] *= 8.0
    w *= np.exp(rng.normal(0.0, 0.4, size=(n, 1)))
    return torch.from_numpy(w.astype(np.float32)).to(dtype)


def linear(seed, n, k, dtype, bias=False):
    layer = torch.nn.Linear(k, n, bias=bias)
    layer.weight.data = weights(seed, n, k, dtype)
    if bias:
        layer.bias.data = weights(seed + 5000, 1, n, dtype)[0]
    return layer


def save_tensors(name, file_name, tensors):
    folder = DATA / name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / file_name
    save_file({key: value.contiguous() for key, value in tensors.items()}, path, {"format": "pt"})
    if path.stat().st_size > MAX_FILE_BYTES:
        raise SystemExit(f"{path} is larger than {MAX_FILE_BYTES} bytes")


def save_checkpoint(name, tensors, truth, quantization_config, model_type="llama", **more):
    save_tensors(name, "model.safetensors", tensors)
    save_tensors(name, "truth.safetensors", truth)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": model_type,
              "quantization_config": quantization_config, **more}
    save_json(name, "config.json", config)


def save_json(name, file_name, value):
    text = json.dumps(value, indent=2, sort_keys=True) + "\n"
    (DATA / name / file_name).write_text(text, encoding="utf-8")


def skip_package_init(*names):
    """Makes `import name.module` work where name/__init__.py imports what is not installed.

    AutoAWQ and AutoGPTQ import removed parts of transformers there; their packing modules
    need none of it and run unchanged.
    """
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        module = types.ModuleType(name)
        module.__path__ = list(spec.submodule_search_locations)
        module.__spec__ = spec
        sys.modules[name] = module
