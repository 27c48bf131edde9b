"""compressed-tensors, GPTQ and bitsandbytes: 8-bit integers, and nested NF4 in half precision.

    python3 golden_int8.py [FOLDER...]

Writes those folders of data/ alone, all of its own without arguments; needs requirements.txt.
"""
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch: plain eager arithmetic, no network
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import shutil
import sys

import torch

from golden_common import DATA, linear, save_checkpoint, save_json, save_tensors, weights

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
LAYER = "model.layers.0.self_attn.q_proj"
OTHER = "model.layers.0.mlp.down_proj"


def compressed_config(form, weights_args):
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus

    group = {"targets": ["Linear"], "weights": weights_args}
    if form != "pack-quantized":  # weights and activations of 8 bits
        group["input_activations"] = {"num_bits": 8, "type": weights_args["type"],
                                      "strategy": "token", "dynamic": True}
    return QuantizationConfig(config_groups={"group_0": group}, quant_method="compressed-tensors",
                              format=form, quantization_status=QuantizationStatus.FROZEN,
                              ignore=["lm_head"])


def observe(module, scale_type):
    """Scales and zeros of a layer from its smallest and largest weights, by the package's rule."""
    from compressed_tensors.quantization.utils import calculate_qparams

    args, weight = module.quantization_scheme.weights, module.weight.data
    n, k = weight.shape
    rows, columns = {"tensor": (n, k), "channel": (1, k), "group": (1, args.group_size or k),
                     "block": tuple(args.block_structure or (1, k))}[args.strategy]
    pad = torch.nn.functional.pad(weight, (0, -k % columns, 0, -n % rows))
    blocks = pad.reshape(pad.shape[0] // rows, rows, pad.shape[1] // columns, columns)
    scale, zero = calculate_qparams(blocks.amin((1, 3)), blocks.amax((1, 3)), args)
    module.weight_scale.data = scale.reshape(module.weight_scale.shape).to(scale_type)
    if not args.symmetric:
        module.weight_zero_point.data = zero.reshape(module.weight_zero_point.shape).to(
            module.weight_zero_point.dtype)


def write_compressed(name, form, layers, dtype, scale_type=None, **weights_args):
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationStatus, apply_quantization_config

    config = compressed_config(form, {"num_bits": 8, "type": "int", "symmetric": True,
                                      **weights_args})
    model = torch.nn.Module()
    for index, (layer, n, k, bias) in enumerate(layers):
        # A module's name cannot hold a dot.
        model.add_module(layer.replace(".", "/"), linear(6000 + 11 * index + n, n, k, dtype, bias))
    apply_quantization_config(model, config)
    for module in model.children():
        observe(module, scale_type or dtype)
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    tensors = {key.replace("/", "."): value.clone() for key, value in model.state_dict().items()}
    compressor.decompress_model(model)
    truth = {f"{key.replace('/', '.')}.weight": module.weight.data
             for key, module in model.named_children()}
    save_tensors(name, "model.safetensors", tensors)
    save_tensors(name, "truth.safetensors", truth)
    save_json(name, "config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    config.quantization_status = QuantizationStatus.COMPRESSED
    compressor.update_config(str(DATA / name))


def write_all(names):
    for name, write in CASES.items():
        if names and name not in names:
            continue
        shutil.rmtree(DATA / name, ignore_errors=True)
        write(name)


def compressed(form, layers, dtype, **more):
    return lambda name: write_compressed(name, form, layers, dtype, **more)


PACK, INT = "pack-quantized", "int-quantized"
CASES = {
    "ct_pack8_g32": compressed(PACK, [(LAYER, 13, 96, True), (OTHER, 6, 160, False)], BF16,
                               strategy="group", group_size=32),
    "ct_pack8_channel": compressed(PACK, [(LAYER, 9, 75, False), (OTHER, 3, 41, False)], F16,
                                   strategy="channel"),
    "ct_pack8_asym_refused": compressed(PACK, [(LAYER, 9, 64, False)], BF16, strategy="group",
                                        group_size=32, symmetric=False),
    "ct_int8_channel": compressed(INT, [(LAYER, 17, 75, True), (OTHER, 5, 130, False)], BF16,
                                  strategy="channel"),
    "ct_int8_tensor": compressed(INT, [(LAYER, 11, 52, False)], BF16, scale_type=F32,
                                 strategy="tensor"),
    "ct_int8_g64": compressed(INT, [(LAYER, 7, 192, False)], F16, strategy="group", group_size=64),
    "ct_int8_asym_refused": compressed(INT, [(LAYER, 9, 40, False)], BF16, strategy="channel",
                                       symmetric=False),
}


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    write_all(sys.argv[1:])
