"""llm-compressor quantizes the model and compressed-tensors saves it, in shards."""
import llmcompressor
import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.quantization import QuantizationModifier
from loguru import logger

from . import add_tokenizer

logger.remove()  # llm-compressor's own lines
INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True}
INT4 = {"num_bits": 4, "type": "int", "symmetric": True}
# The format that qk should see, and the package's scheme or the weights of a group of its own.
KINDS = {
    "mxfp4": ("e2m1", "MXFP4A16"),
    "nvfp4": ("e2m1", "NVFP4A16"),
    "int4": ("int4", {**INT4, "strategy": "group", "group_size": 32}),
    "int4_asymmetric": ("int4", {**INT4, "symmetric": False, "strategy": "group",
                                 "group_size": 64}),
    "int4_channel": ("int4", {**INT4, "strategy": "channel"}),
    "int8_g32": ("int8", {**INT8, "strategy": "group", "group_size": 32}),
    "int8_asymmetric": ("int8", {**INT8, "symmetric": False, "strategy": "group",
                                 "group_size": 64}),
    "int8_channel": ("int8", {**INT8, "strategy": "channel"}),
    "w8a8_channel": ("int8", "INT8"),
    "w8a8_asymmetric": ("int8", {**INT8, "symmetric": False, "strategy": "channel"}, INT8),
    "w8a8_tensor": ("int8", {**INT8, "strategy": "tensor"}, INT8),
    "fp8_tensor": ("e4m3", {**FP8, "strategy": "tensor"}, FP8),
    "fp8_channel": ("e4m3", "FP8_DYNAMIC"),
    "fp8_block": ("e4m3", "FP8_BLOCK"),
    "nvfp4_w4a4": ("e2m1", "NVFP4"),  # with scales of its activations, as the two below
    "fp8_static": ("e4m3", "FP8"),
    "gptq": ("int4", None),
    "mixed": (None, None),  # MIXED
}
# Four schemes in one model, and one projection of the attention dense.
MIXED = {
    "int4": {"targets": ["re:.*(q|o)_proj$"],
             "weights": {**INT4, "symmetric": False, "strategy": "group", "group_size": 32}},
    "int8": {"targets": ["re:.*k_proj$"], "weights": {**INT8, "strategy": "channel"}},
    "fp8": {"targets": ["re:.*down_proj$"],
            "weights": {**FP8, "strategy": "block", "block_structure": [128, 128]},
            "input_activations": {**FP8, "strategy": "group", "group_size": 128, "dynamic": True}},
    "nvfp4": {"targets": ["re:.*gate_proj$", "re:.*up_proj$"],
              "weights": {"num_bits": 4, "type": "float", "symmetric": True, "group_size": 16,
                          "strategy": "tensor_group", "scale_dtype": "torch.float8_e4m3fn",
                          "zp_dtype": "torch.float8_e4m3fn"}},
}
CALIBRATED = {"nvfp4_w4a4", "fp8_static", "gptq"}
# The package wants whole groups.
WHOLE_ROWS = {"int4_channel", "int8_channel", "w8a8_channel", "w8a8_asymmetric", "w8a8_tensor",
              "fp8_tensor", "fp8_channel", "fp8_block", "fp8_static"}


def models(kind):
    experts = () if kind == "gptq" else ("qwen3_moe",)  # a product of its own for each of them
    return ("llama", "qwen2_tied") + experts + (("llama_odd",) if kind in WHOLE_ROWS else ())


def modifier(weights, activations=None):
    ignore = ["lm_head", "re:.*mlp.gate$"]
    if weights is None:
        return QuantizationModifier(config_groups=MIXED, ignore=[*ignore, "re:.*v_proj$"])
    if isinstance(weights, str):
        return QuantizationModifier(targets="Linear", scheme=weights, ignore=ignore)
    group = {"targets": ["Linear"], "weights": weights}
    if activations:
        group["input_activations"] = {**activations, "strategy": "token", "dynamic": True}
    return QuantizationModifier(config_groups={"group_0": group}, ignore=ignore)


def calibration(source):
    add_tokenizer(source)
    rows = [torch.arange(32) * (step + 3) % 96 for step in range(8)]
    rows = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in rows]
    return {"dataset": torch.utils.data.DataLoader(rows, batch_size=1), "max_seq_length": 32,
            "num_calibration_samples": len(rows)}


def make(source, folder, kind):
    """The weights as compressed-tensors decompresses them."""
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    recipe = GPTQModifier(targets="Linear", scheme="W4A16", ignore=["lm_head"]) \
        if kind == "gptq" else modifier(*KINDS[kind][1:])
    llmcompressor.oneshot(model=model, recipe=recipe,
                          **(calibration(source) if kind in CALIBRATED else {}))
    model.save_pretrained(folder, save_compressed=True, max_shard_size="100KB")
    quantized = {name: module for name, module in model.named_modules()
                 if getattr(module, "quantization_scheme", None) is not None}
    ModelCompressor.from_pretrained_model(model).decompress_model(model)
    return {f"{name}.weight": module.weight.data for name, module in quantized.items()}
