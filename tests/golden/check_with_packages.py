"""The real packages load what `qk quantize` wrote and must find the same weights, bit for bit.

    python3 check_quantized.py PATH/TO/qk --keep FOLDER
    python3 check_with_packages.py PATH/TO/qk FOLDER

Needs requirements.txt (PyTorch), so it is run before a release and not by CI.
"""
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch: plain eager arithmetic, no network
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import json
import sys
import tempfile
from pathlib import Path

import bitsandbytes as bnb
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig

from check_golden import check, results
from check_quantized import VARIANTS, run_qk
from golden_bnb import dequantize_default, save_dense_llama


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def bitsandbytes_weight(tensors, weight):
    stats = {key.removeprefix(weight + "."): value for key, value in tensors.items()
             if key.startswith(weight + ".")}
    parameter = bnb.nn.Params4bit.from_prequantized(data=tensors[weight], quantized_stats=stats,
                                                    requires_grad=False, device="cpu")
    state = parameter.quant_state
    return dequantize_default(parameter.data, state).reshape(state.shape)


def compressed_weight(tensors, layer, config):
    from compressed_tensors.compressors import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationConfig

    scheme = QuantizationConfig.model_validate(config).config_groups["group_0"]
    names = PackedQuantizationCompressor.compression_param_names(scheme)
    state = {name: tensors[f"{layer}.{name}"] for name in names}
    return PackedQuantizationCompressor.decompress(state, scheme)["weight"]


def check_variant(folder, name):
    tensors = load_file(folder / name / "model.safetensors")
    config = json.loads((folder / name / "config.json").read_text())["quantization_config"]
    dequantized = load_file(folder / f"{name}_dequantized.safetensors")
    loaded = 0
    for weight, expected in dequantized.items():
        layer = weight.removesuffix(".weight")
        if f"{weight}.absmax" in tensors:
            found = bitsandbytes_weight(tensors, weight)
        elif f"{layer}.weight_packed" in tensors:
            found = compressed_weight(tensors, layer, config)
        else:
            continue
        check(same_bits(found, expected), f"{name} {layer}")
        loaded += 1
    check(loaded > 0, f"{name} was loaded")


def linear_weight(module):
    if isinstance(module, bnb.nn.Linear4bit):
        state = module.weight.quant_state
        return dequantize_default(module.weight.data, state).reshape(state.shape)
    return module.weight.data


def check_model(qk, folder, name, options, arguments):
    """transformers opens the whole folder through its config.json, and the model runs."""
    run_qk(qk, "quantize", "--quiet", folder / "dense", folder / name, *options)
    run_qk(qk, "dequantize", "--quiet", folder / name, folder / f"{name}_dequantized.safetensors")
    model = AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.bfloat16,
                                                 device_map="cpu", **arguments)
    expected = load_file(folder / f"{name}_dequantized.safetensors")
    found = {f"{key}.weight": linear_weight(module) for key, module in model.named_modules()
             if isinstance(module, torch.nn.Linear)}
    check(len(found) == 8, f"{name} has 7 linear layers and its head")
    for weight, value in found.items():
        check(same_bits(value, expected[weight]), f"{name} {weight} in transformers")
    with torch.no_grad():
        logits = model(torch.arange(10).reshape(1, 10)).logits
    check(bool(torch.isfinite(logits).all()), f"{name} runs")


def main():
    qk, kept = Path(sys.argv[1]), Path(sys.argv[2])
    for name, _, _ in VARIANTS:
        check_variant(kept, name)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        # bitsandbytes cannot run a layer on such a CPU whose blocks straddle rows: k % 64 == 0.
        save_dense_llama(folder / "dense", 700, 128)
        for kind in ("nf4", "fp4"):
            check_model(qk, folder, kind, ["--format", kind, "--nested"], {})
        whole = {"quantization_config": CompressedTensorsConfig(dequantize=True)}
        check_model(qk, folder, "int4", ["--format", "int4", "--group", "32"], whole)
        check_model(qk, folder, "int4_row", ["--format", "int4", "--group", "row",
                                             "--asymmetric"], whole)
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
