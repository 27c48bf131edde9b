"""compressed-tensors with actorder "group": versions after 0.13 neither write nor read it.

    PYTHONPATH=FOLDER_OF_0.13.0:$PYTHONPATH python3 test_packages.py Packages.test_ordered
"""
import compressed_tensors
import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, \
    apply_quantization_config
from huggingface_hub import save_torch_state_dict

from . import golden

if tuple(map(int, compressed_tensors.__version__.split(".")[:2])) > (0, 13):
    raise ImportError(f"compressed-tensors {compressed_tensors.__version__} writes no act-order: "
                      "0.13.0 does, on PYTHONPATH, alone")
INT = {"type": "int", "symmetric": True, "strategy": "group", "group_size": 32,
       "actorder": "group"}
KINDS = {
    "ordered": ("int4", {**INT, "num_bits": 4}),
    "ordered_asymmetric": ("int4", {**INT, "num_bits": 4, "symmetric": False}),
    "ordered_8bit": ("int8", {**INT, "num_bits": 8}),
}


def models(_):
    """This version knows no fused experts."""
    return "llama", "qwen2_tied"


def make(source, folder, kind):
    config = QuantizationConfig(
        config_groups={"group_0": {"targets": ["Linear"], "weights": KINDS[kind][1]}},
        quant_method="compressed-tensors", format="pack-quantized", ignore=["lm_head"],
        quantization_status=QuantizationStatus.FROZEN)
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    apply_quantization_config(model, config)
    quantized = {name: module for name, module in model.named_modules()
                 if getattr(module, "quantization_scheme", None) is not None}
    for module in quantized.values():
        golden("golden_order").observe(module, module.quantization_scheme.weights)
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    tied = model.config.tie_word_embeddings
    folder.mkdir()
    save_torch_state_dict({name: value for name, value in model.state_dict().items()
                           if name != "lm_head.weight" or not tied},
                          folder, max_shard_size="100KB")
    model.config.save_pretrained(folder)
    config.quantization_status = QuantizationStatus.COMPRESSED
    compressor.update_config(str(folder))
    compressor.decompress_model(model)
    return {f"{name}.weight": module.weight.data for name, module in quantized.items()}
