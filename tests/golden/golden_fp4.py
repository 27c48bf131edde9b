"""compressed-tensors' mxfp4 and nvfp4, with scales at the ends of their types.

    python3 golden_fp4.py

Needs requirements.txt. The package decodes an E8M0 scale of 255 to infinity, where OCP's format
and qk have NaN: it is not in these files.
"""
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch: plain eager arithmetic, no network
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, \
    apply_quantization_config
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

from golden_common import DATA, linear, save_json, save_tensors

LAYERS = [("model.layers.0.self_attn.q_proj", 24, 96, True),
          ("model.layers.0.mlp.down_proj", 7, 160, False)]
# Scales of the first row of the last layer: of MXFP4 from 2^-127 on, of NVFP4 as E4M3.
ENDS = {"mxfp4": [0, 1, 118, 127, 135], "nvfp4": [0x00, 0x01, 0x07, 0x08, 0x38, 0x7e, 0x20]}


def observe(module):
    args, weight = module.quantization_scheme.weights, module.weight.data
    groups = weight.reshape(weight.shape[0], -1, args.group_size)
    low, high, whole = groups.amin(-1), groups.amax(-1), None
    if args.strategy == "tensor_group":
        whole = generate_gparam(weight.min().reshape(1), weight.max().reshape(1))
        module.weight_global_scale.data.copy_(whole)
    scale, _ = calculate_qparams(low, high, args, global_scale=whole)
    module.weight_scale.data = scale.reshape(module.weight_scale.shape).to(weight.dtype)


def write(kind):
    name = f"ct_{kind}"
    config = QuantizationConfig(
        config_groups={"group_0": preset_name_to_scheme(kind.upper() + "A16", ["Linear"])},
        format=f"{kind}-pack-quantized", quantization_status=QuantizationStatus.FROZEN,
        ignore=["lm_head"])
    model = torch.nn.Module()
    for index, (layer, n, k, bias) in enumerate(LAYERS):
        # A module's name cannot hold a dot.
        model.add_module(layer.replace(".", "/"),
                         linear(7000 + 11 * index + n, n, k, torch.bfloat16, bias))
    apply_quantization_config(model, config)
    for module in model.children():
        observe(module)
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    row = module.weight_scale.data.view(torch.uint8)[0]
    row[:len(ENDS[kind])] = torch.tensor(ENDS[kind], dtype=torch.uint8)
    tensors = {key.replace("/", "."): value.clone() for key, value in model.state_dict().items()}
    compressor.decompress_model(model)
    save_tensors(name, "model.safetensors", tensors)
    save_tensors(name, "truth.safetensors", {
        f"{key.replace('/', '.')}.weight": module.weight.data
        for key, module in model.named_children()})
    save_json(name, "config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                                    "torch_dtype": "bfloat16"})
    config.quantization_status = QuantizationStatus.COMPRESSED
    compressor.update_config(str(DATA / name))


if __name__ == "__main__":
    for kind in ENDS:
        write(kind)
