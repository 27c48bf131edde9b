"""compressed-tensors with actorder "group", whose files say of each column which group it is.

    python3 golden_order.py

Needs requirements.txt with compressed-tensors 0.13.0: later versions neither write nor read
weight_g_idx.
"""
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch: plain eager arithmetic, no network
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import shutil

import torch

from golden_common import DATA, linear, save_checkpoint

F16, BF16 = torch.float16, torch.bfloat16
LAYER = "model.layers.0.self_attn.q_proj"
OTHER = "model.layers.0.mlp.down_proj"


def observe(module, args):
    """Each column's group at random, then scales and zeros of the groups by the package's rule."""
    from compressed_tensors.quantization.utils import calculate_qparams

    n, k = module.weight.shape
    shuffled = torch.randperm(k, generator=torch.Generator().manual_seed(n + k))
    g_idx = (torch.arange(k, dtype=torch.int32) // args.group_size)[shuffled]
    groups = module.weight.data[:, torch.argsort(g_idx, stable=True)].reshape(
        n, -1, args.group_size)
    scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
    module.weight_g_idx.data.copy_(g_idx)
    module.weight_scale.data.copy_(scale)
    if not args.symmetric:
        module.weight_zero_point.data.copy_(zero)


def write(name, layers, dtype, bits, group_size, symmetric):
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, \
        apply_quantization_config

    shutil.rmtree(DATA / name, ignore_errors=True)
    weights_args = {"num_bits": bits, "type": "int", "symmetric": symmetric, "strategy": "group",
                    "group_size": group_size, "actorder": "group"}
    config = QuantizationConfig(
        config_groups={"group_0": {"targets": ["Linear"], "weights": weights_args}},
        quant_method="compressed-tensors", format="pack-quantized",
        quantization_status=QuantizationStatus.FROZEN, ignore=["lm_head"])
    model = torch.nn.Module()
    for index, (layer, n, k, bias) in enumerate(layers):
        # A module's name cannot hold a dot.
        model.add_module(layer.replace(".", "/"), linear(7000 + 11 * index + n, n, k, dtype, bias))
    apply_quantization_config(model, config)
    for module in model.children():
        observe(module, module.quantization_scheme.weights)
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    tensors = {key.replace("/", "."): value.clone() for key, value in model.state_dict().items()}
    compressor.decompress_model(model)
    truth = {f"{key.replace('/', '.')}.weight": module.weight.data
             for key, module in model.named_children()}
    config.quantization_status = QuantizationStatus.COMPRESSED
    save_checkpoint(name, tensors, truth, config.model_dump(mode="json"))


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    write("ct_int4_act_order_sym_g32", [(LAYER, 13, 96, True), (OTHER, 6, 160, False)], BF16, 4, 32,
          True)
    write("ct_int4_act_order_asym_g64", [(LAYER, 9, 192, False)], F16, 4, 64, False)
    write("ct_pack8_act_order_g32", [(LAYER, 5, 96, False)], BF16, 8, 32, True)
