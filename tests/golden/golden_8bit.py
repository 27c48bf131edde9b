"""compressed-tensors, GPTQ, bitsandbytes and transformers: 8 bits, and NF4 with second scales of
half precision.

    python3 golden_8bit.py [FOLDER...]

Writes those folders of data/ alone, all of its own without arguments; needs requirements.txt.
"""
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch: plain eager arithmetic, no network
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import shutil
import sys
from unittest import mock

import torch

from golden_common import DATA, linear, save_checkpoint, save_json, save_tensors, \
    skip_package_init, weights

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


def gptq_parameters(layer, group_size, sym, act_order):
    """AutoGPTQ's quantizer, group by group, without error feedback."""
    from auto_gptq.quantization.quantizer import Quantizer

    scales, zeros = [], []
    for start in range(0, layer.in_features, group_size):
        quantizer = Quantizer()
        quantizer.configure(8, perchannel=True, sym=sym, mse=False)
        quantizer.find_params(layer.weight.data[:, start:start + group_size], weight=True)
        scales.append(quantizer.scale)
        zeros.append(quantizer.zero)
    scales, zeros = torch.cat(scales, 1).to(F16).float(), torch.cat(zeros, 1)
    g_idx = torch.arange(layer.in_features, dtype=torch.int32) // group_size
    if act_order:
        g_idx = g_idx[torch.randperm(len(g_idx), generator=torch.Generator().manual_seed(7))]
    step, zero = scales[:, g_idx.long()], zeros[:, g_idx.long()]
    codes = torch.clamp(torch.round(layer.weight.data / step) + zero, 0, 255)
    layer.weight.data = (codes - zero) * step  # on the grid, as the packers expect it
    return scales, zeros, g_idx


def pack_auto_gptq(layer, group_size, scales, zeros, g_idx):
    from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear

    module = QuantLinear(8, group_size, layer.in_features, layer.out_features, False)
    module.pack(layer, scales.clone(), zeros.clone(), g_idx)
    module.scales = module.scales.to(F16)
    with torch.no_grad():  # x = identity reads the dequantized weight out of the package's forward
        return module, module(torch.eye(layer.in_features, dtype=F16)).t()


def pack_gptqmodel(layer, group_size, scales, zeros, g_idx):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear

    module = TorchLinear(bits=8, group_size=group_size, sym=True, desc_act=False,
                         in_features=layer.in_features, out_features=layer.out_features,
                         bias=layer.bias is not None)
    module.pack_original(layer, scales, zeros, g_idx)
    module.post_init()
    return module, module.dequantize_weight().t()


def write_gptq(name, pack, group_size, layers, sym=True, act_order=False):
    """AutoGPTQ's files are version 1, GPTQModel's version 2 here."""
    skip_package_init("auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear",
                      "auto_gptq.quantization", "auto_gptq.utils")
    tensors, truth = {}, {}
    for index, (layer_name, n, k, bias) in enumerate(layers):
        layer = linear(7000 + 13 * index + group_size, n, k, F32, bias)
        parameters = gptq_parameters(layer, group_size, sym, act_order)
        module, weight = pack(layer, group_size, *parameters)
        keys = ("qweight", "qzeros", "scales", "g_idx") + (("bias",) if bias else ())
        tensors.update({f"{layer_name}.{key}": getattr(module, key) for key in keys})
        truth[f"{layer_name}.weight"] = weight
    config = {"bits": 8, "group_size": group_size, "damp_percent": 0.01, "desc_act": act_order,
              "static_groups": False, "sym": sym, "true_sequential": True,
              "model_name_or_path": None, "model_file_base_name": None,
              "is_marlin_format": False, "quant_method": "gptq"}  # as AutoGPTQ stores it
    if pack is pack_gptqmodel:
        from gptqmodel.quantization.config import QuantizeConfig

        config = QuantizeConfig(bits=8, group_size=group_size, desc_act=False, sym=True,
                                format="gptq_v2", offload_to_disk=False).to_dict()
    save_checkpoint(name, tensors, truth, config)


def llm_int8_weight(module, dtype):
    """What the package multiplies by where it dequantizes a weight: in training on a CPU."""
    from bitsandbytes.autograd._functions import MatMul8bitFp

    module.state.CB, module.state.SCB = module.weight.data, module.weight.SCB
    x = torch.zeros(1, module.in_features, dtype=dtype)
    linear_of = torch.nn.functional.linear
    with mock.patch.object(torch.nn.functional, "linear", wraps=linear_of) as product:
        MatMul8bitFp.apply(x, module.weight, None, None, module.state)
    return product.call_args.args[1]


def write_llm_int8(name, layers):
    import bitsandbytes as bnb
    from transformers import BitsAndBytesConfig

    tensors, truth = {}, {}
    for index, (layer_name, n, k, dtype, bias) in enumerate(layers):
        dense = linear(8000 + index, n, k, dtype, bias)
        module = bnb.nn.Linear8bitLt(k, n, bias=bias, has_fp16_weights=False)
        module.weight = bnb.nn.Int8Params(dense.weight.data, requires_grad=False,
                                          has_fp16_weights=False)
        if bias:
            module.bias.data = dense.bias.data
        module = module.to("cpu")  # quantizes
        tensors.update({f"{layer_name}.{key}": value.clone()
                        for key, value in module.state_dict().items()})
        truth[f"{layer_name}.weight"] = llm_int8_weight(module, dtype)
    save_checkpoint(name, tensors, truth, BitsAndBytesConfig(load_in_8bit=True).to_dict())


def write_half_nested(name, layers):
    """Nested NF4 whose second scales a converter has stored in half precision. The package's C++
    would read such memory as f32; its device-independent code multiplies them as they are."""
    import bitsandbytes as bnb
    from bitsandbytes.backends.default.ops import _dequantize_4bit_compute, \
        _dequantize_blockwise_compute
    from transformers import BitsAndBytesConfig

    tensors, truth = {}, {}
    for index, (layer_name, n, k, dtype, half) in enumerate(layers):
        weight = bnb.nn.Params4bit(weights(8100 + index, n, k, dtype), requires_grad=False,
                                   blocksize=64, compress_statistics=True, quant_type="nf4")
        weight = weight.to("cpu")  # quantizes
        state = weight.quant_state
        state.state2.absmax = state.state2.absmax.to(half)
        tensors[f"{layer_name}.weight"] = weight.data
        tensors.update({f"{layer_name}.weight.{key}": value
                        for key, value in state.as_dict(packed=True).items()})
        second = state.state2
        absmax = _dequantize_blockwise_compute(state.absmax, second.absmax, second.code,
                                               second.blocksize, second.dtype) + state.offset
        truth[f"{layer_name}.weight"] = _dequantize_4bit_compute(
            weight.data.reshape(-1), absmax, state.code, state.blocksize, state.shape, state.dtype)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=BF16)
    save_checkpoint(name, tensors, truth, config.to_dict())


def write_fp8(name, block, layers, scale_format="float", nan=False):
    """quant_method fp8, as DeepSeek-V3 and Qwen3 have it, by transformers' own operations. The
    first layer begins with every code, the two NaN where that is the point."""
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    config = FineGrainedFP8Config(weight_block_size=block, scale_fmt=scale_format)
    holder = mock.Mock(quantization_config=config)
    tensors, truth = {}, {}
    for index, (layer_name, n, k) in enumerate(layers):
        key = f"{layer_name}.weight"
        made = Fp8Quantize(holder).convert({key: weights(8200 + index, n, k, BF16)})
        if index == 0:
            codes = torch.arange(256, dtype=torch.uint8)
            made[key].view(torch.uint8).reshape(-1)[:256] = \
                codes if nan else torch.where(codes % 128 == 127, codes - 1, codes)
        tensors.update(made)
        truth[key] = Fp8Dequantize(holder)._dequantize_one(*made.values(), BF16)
    save_checkpoint(name, tensors, truth, config.to_dict(), dtype="bfloat16")


def write_all(names):
    for name, write in CASES.items():
        if names and name not in names:
            continue
        shutil.rmtree(DATA / name, ignore_errors=True)
        write(name)


def compressed(form, layers, dtype, **more):
    return lambda name: write_compressed(name, form, layers, dtype, **more)


PACK, INT, FLOAT = "pack-quantized", "int-quantized", "float-quantized"
CASES = {
    "ct_pack8_g32": compressed(PACK, [(LAYER, 13, 96, True), (OTHER, 6, 160, False)], BF16,
                               strategy="group", group_size=32),
    "ct_pack8_channel": compressed(PACK, [(LAYER, 9, 75, False), (OTHER, 3, 41, False)], F16,
                                   strategy="channel"),
    "ct_pack8_asym_g32": compressed(PACK, [(LAYER, 9, 64, False)], BF16, strategy="group",
                                        group_size=32, symmetric=False),
    "ct_int8_channel": compressed(INT, [(LAYER, 17, 75, True), (OTHER, 5, 130, False)], BF16,
                                  strategy="channel"),
    "ct_int8_tensor": compressed(INT, [(LAYER, 11, 52, False)], BF16, scale_type=F32,
                                 strategy="tensor"),
    "ct_int8_g64": compressed(INT, [(LAYER, 7, 192, False)], F16, strategy="group", group_size=64),
    "ct_fp8_tensor": compressed(FLOAT, [(LAYER, 11, 52, True)], BF16, type="float",
                                strategy="tensor"),
    "ct_fp8_channel": compressed(FLOAT, [(LAYER, 17, 75, False), (OTHER, 5, 130, False)], F16,
                                 type="float", strategy="channel", scale_type=F32),
    "ct_fp8_block": compressed(FLOAT, [(LAYER, 37, 100, False), (OTHER, 16, 33, True)], BF16,
                               type="float", strategy="block", block_structure=[16, 32]),
    "ct_fp8_block_128": compressed(FLOAT, [(LAYER, 130, 140, False)], BF16, scale_type=F32,
                                   type="float", strategy="block", block_structure=[128, 128]),
    "fp8_block_32": lambda name: write_fp8(name, [16, 32], [(LAYER, 48, 96), (OTHER, 16, 64)]),
    "fp8_block_32_nan": lambda name: write_fp8(name, [16, 32], [(LAYER, 16, 32)], nan=True),
    "fp8_block_ue8m0": lambda name: write_fp8(name, [32, 64], [(LAYER, 64, 128)],
                                              scale_format="ue8m0"),
    "gptq_v1_8bit_g32": lambda name: write_gptq(name, pack_auto_gptq, 32,
                                                [(LAYER, 32, 96, False)]),
    "gptq_v1_8bit_asym_g32": lambda name: write_gptq(name, pack_auto_gptq, 32,
                                                     [(LAYER, 32, 64, False)], sym=False),
    "gptq_v1_8bit_act_order_asym_g32": lambda name: write_gptq(
        name, pack_auto_gptq, 32, [(LAYER, 32, 64, False)], sym=False, act_order=True),
    "gptq_v2_8bit_g64": lambda name: write_gptq(name, pack_gptqmodel, 64,
                                                [(LAYER, 32, 128, True)]),
    "bnb_int8": lambda name: write_llm_int8(name, [
        (LAYER, 13, 96, F16, True), (OTHER, 24, 45, F16, False)]),
    "bnb_nf4_nested_half": lambda name: write_half_nested(name, [
        (LAYER, 40, 128, F16, F16), (OTHER, 33, 80, BF16, BF16)]),
    "ct_int8_asym_channel": compressed(INT, [(LAYER, 9, 40, False)], BF16, strategy="channel",
                                       symmetric=False),
}


if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    write_all(sys.argv[1:])
