"""AutoAWQ, AutoGPTQ, GPTQModel and compressed-tensors: integer 4-bit checkpoints."""
import types

import torch

from golden_common import DATA, linear, save_checkpoint, save_json, save_tensors, \
    skip_package_init, weights

skip_package_init("awq", "awq.modules", "awq.utils", "awq.quantize", "awq.models")
skip_package_init("auto_gptq", "auto_gptq.nn_modules", "auto_gptq.nn_modules.qlinear",
                  "auto_gptq.quantization", "auto_gptq.utils")

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
LAYER = "model.layers.0.self_attn.q_proj"
OTHER = "model.layers.0.mlp.down_proj"


def awq_parameters(layer, group_size, zero_point=True):
    """AutoAWQ's own search-free quantizer: the weight snapped to its grid, scales and zeros."""
    from awq.quantize.quantizer import AwqQuantizer

    settings = types.SimpleNamespace(group_size=group_size, zero_point=zero_point, w_bit=4)
    layer.weight.data, scales, zeros = AwqQuantizer.pseudo_quantize_tensor(settings,
                                                                           layer.weight.data)
    return scales, zeros


def pack_awq_gemm(layer, group_size, scales, zeros):
    """The packed layer and the dequantized weight, from AutoAWQ's gemm code."""
    from awq.modules.linear.gemm import WQLinear_GEMM
    from awq.utils.packing_utils import dequantize_gemm

    gemm = WQLinear_GEMM.from_linear(layer, 4, group_size, False, scales.t().contiguous(),
                                     zeros.t().contiguous())
    return gemm, dequantize_gemm(gemm.qweight, gemm.qzeros, gemm.scales, 4, group_size).t()


def pack_awq_gemv(layer, group_size, scales, zeros):
    """AutoAWQ has no CPU dequantizer for gemv; the same codes packed as gemm give the truth.

    Its gemm packer takes multiples of 32 rows only, so rows of ones are added and cut off again.
    """
    from awq.modules.linear.gemv import WQLinear_GEMV

    gemv = WQLinear_GEMV.from_linear(layer, 4, group_size, False, scales, zeros)
    rows = layer.out_features
    grow = (0, 0, 0, -rows % 32)
    pad = torch.nn.functional.pad
    padded = torch.nn.Linear(layer.in_features, rows + grow[3], bias=False)
    padded.weight.data = pad(layer.weight.data, grow)
    _, truth = pack_awq_gemm(padded, group_size, pad(scales, grow, value=1.0), pad(zeros, grow))
    return gemv, truth[:rows]


def awq_config(version, group_size, zero_point=True):
    from awq.models._config import AwqConfig

    return AwqConfig(zero_point=zero_point, q_group_size=group_size, w_bit=4,
                     version=version).to_transformers_dict()


def write_awq(name, version, group_size, layers, config_group_size=None):
    tensors, truth = {}, {}
    pack = pack_awq_gemv if version == "gemv" else pack_awq_gemm
    for index, (layer_name, n, k, bias) in enumerate(layers):
        layer = linear(1000 + 17 * index + group_size, n, k, F16, bias)
        scales, zeros = awq_parameters(layer, group_size)
        module, weight = pack(layer, group_size, scales, zeros)
        tensors.update({f"{layer_name}.{key}": value
                        for key, value in module.state_dict().items()})
        truth[f"{layer_name}.weight"] = weight
    save_checkpoint(name, tensors, truth, awq_config(version, config_group_size or group_size))


def write_awq_refused():
    """Two layouts that qk names and refuses; no truth is needed for a refusal."""
    from awq.modules.linear.gemv_fast import WQLinear_GEMVFast
    from awq.modules.linear.marlin import WQLinear_Marlin

    layer = linear(1200, 8, 128, F16)
    scales, zeros = awq_parameters(layer, 64)
    fast = WQLinear_GEMVFast.from_linear(layer, 4, 64, False, scales, zeros)
    layer = linear(1201, 64, 128, F16)
    scales, _ = awq_parameters(layer, 64, zero_point=False)
    marlin = WQLinear_Marlin.from_linear(layer, 4, 64, False, scales, None)
    for version, module in (("gemv_fast", fast), ("marlin", marlin)):
        name = f"awq_{version}_refused"
        tensors = {f"{LAYER}.{key}": value for key, value in module.state_dict().items()}
        save_checkpoint(name, tensors, {}, awq_config(version, 64, version != "marlin"))
        (DATA / name / "truth.safetensors").unlink()


def gptq_parameters(layer, group_size, sym, bits=4):
    """AutoGPTQ's quantizer, group by group, without error feedback: scales and zeros [n, G]."""
    from auto_gptq.quantization.quantizer import Quantizer

    scales, zeros = [], []
    for start in range(0, layer.in_features, group_size):
        quantizer = Quantizer()
        quantizer.configure(bits, perchannel=True, sym=sym, mse=False)
        quantizer.find_params(layer.weight.data[:, start:start + group_size].float(), weight=True)
        scales.append(quantizer.scale)
        zeros.append(quantizer.zero)
    return torch.cat(scales, 1).to(F16).float(), torch.cat(zeros, 1)


def gptq_snap(layer, scales, zeros, g_idx, bits=4):
    """The nearest grid point of every weight, which is what the packer expects to be given."""
    step, zero = scales[:, g_idx], zeros[:, g_idx]
    codes = torch.clamp(torch.round(layer.weight.data.float() / step) + zero, 0,
                        2 ** bits - 1)
    layer.weight.data = (codes - zero) * step


def pack_auto_gptq(layer, group_size, scales, zeros, g_idx):
    from auto_gptq.nn_modules.qlinear.qlinear_cuda import QuantLinear

    module = QuantLinear(4, group_size, layer.in_features, layer.out_features,
                         layer.bias is not None)
    module.pack(layer, scales.clone(), zeros.clone(), g_idx)
    module.scales = module.scales.to(F16)
    if layer.bias is not None:
        module.bias = module.bias.to(F16)
    bias, module.bias = module.bias, None
    with torch.no_grad():  # x = identity reads the dequantized weight out of the package's forward
        truth = module(torch.eye(layer.in_features, dtype=F16)).t()
    module.bias = bias
    return module, truth


def gptqmodel_config(version, group_size, sym, desc_act, bits=4):
    from gptqmodel.quantization.config import QuantizeConfig

    return QuantizeConfig(bits=bits, group_size=group_size, desc_act=desc_act, sym=sym,
                          format="gptq" if version == 1 else "gptq_v2", offload_to_disk=False)


def pack_gptqmodel(layer, group_size, scales, zeros, g_idx, config):
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    module = TorchLinear(bits=config.bits, group_size=group_size, sym=config.sym,
                         desc_act=config.desc_act,
                         in_features=layer.in_features, out_features=layer.out_features,
                         bias=layer.bias is not None)
    module.pack_original(layer, scales, zeros, g_idx.to(torch.int32))
    module.post_init()
    truth = module.dequantize_weight().t()
    if config.format == "gptq":
        convert_gptq_v2_to_v1_format_module(module, config)
    return module, truth


def auto_gptq_config(group_size, sym, desc_act):
    """What AutoGPTQ 0.7.1 stores: no checkpoint_format, which means version 1."""
    return {"bits": 4, "group_size": group_size, "damp_percent": 0.01, "desc_act": desc_act,
            "static_groups": False, "sym": sym, "true_sequential": True,
            "model_name_or_path": None, "model_file_base_name": None,
            "is_marlin_format": False, "quant_method": "gptq"}


def write_gptq(name, packer, version, group_size, sym, layers, act_order=False, bits=4):
    config = gptqmodel_config(version, group_size, sym, act_order, bits)
    tensors, truth = {}, {}
    for index, (layer_name, n, k, bias) in enumerate(layers):
        layer = linear(2000 + 13 * index + group_size + version, n, k, F32, bias)
        g_idx = torch.arange(k, dtype=torch.int32) // group_size
        if act_order:
            g_idx = g_idx[torch.randperm(k, generator=torch.Generator().manual_seed(7))]
        scales, zeros = gptq_parameters(layer, group_size, sym, bits)
        gptq_snap(layer, scales, zeros, g_idx.long(), bits)
        if packer == "auto_gptq":
            module, weight = pack_auto_gptq(layer, group_size, scales, zeros, g_idx)
        else:
            module, weight = pack_gptqmodel(layer, group_size, scales, zeros, g_idx, config)
        keys = ("qweight", "qzeros", "scales", "g_idx") + (("bias",) if bias else ())
        tensors.update({f"{layer_name}.{key}": getattr(module, key) for key in keys})
        truth[f"{layer_name}.weight"] = weight
    stored = config.to_dict()
    if packer == "auto_gptq":
        stored = auto_gptq_config(group_size, sym, act_order)
    save_checkpoint(name, tensors, truth, stored)


def write_compressed_tensors(name, strategy, group_size, symmetric, dtype, layers):
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, \
        apply_quantization_config
    from compressed_tensors.quantization.utils import calculate_qparams

    weights_args = {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": strategy,
                    "group_size": group_size}
    config = QuantizationConfig(
        config_groups={"group_0": {"targets": ["Linear"], "weights": weights_args}},
        quant_method="compressed-tensors", format="pack-quantized",
        quantization_status=QuantizationStatus.FROZEN, ignore=["lm_head"])
    model = torch.nn.Module()
    for index, (layer_name, n, k, bias) in enumerate(layers):
        model.add_module(layer_name, linear(3000 + 11 * index + n, n, k, dtype, bias))
    apply_quantization_config(model, config)
    for module in model.children():
        args = module.quantization_scheme.weights
        n, k = module.weight.shape
        groups = module.weight.data.reshape(n, -1, group_size or k)
        scale, zero = calculate_qparams(groups.amin(-1), groups.amax(-1), args)
        module.weight_scale.data.copy_(scale)
        if not symmetric:
            module.weight_zero_point.data.copy_(zero)
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    tensors = {key: value.clone() for key, value in model.state_dict().items()}
    compressor.decompress_model(model)
    truth = {f"{layer_name}.weight": getattr(model, layer_name).weight.data
             for layer_name, *_ in layers}
    save_tensors(name, "model.safetensors", {k.replace("/", "."): v for k, v in tensors.items()})
    save_tensors(name, "truth.safetensors", {k.replace("/", "."): v for k, v in truth.items()})
    save_json(name, "config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})
    config.quantization_status = QuantizationStatus.COMPRESSED
    compressor.update_config(str(DATA / name))


def write_all():
    write_awq("awq_gemm_g128", "gemm", 128, [(LAYER, 64, 256, True), (OTHER, 96, 128, False)])
    write_awq("awq_gemm_g64", "gemm", 64, [(LAYER, 32, 192, False), (OTHER, 192, 192, False)])
    write_awq("awq_gemm_channel", "gemm", 96, [(LAYER, 32, 96, False)], config_group_size=-1)
    write_awq("awq_gemv_g128", "gemv", 128, [(LAYER, 24, 384, True), (OTHER, 16, 1152, False)])
    write_awq("awq_gemv_g64", "gemv", 64, [(LAYER, 40, 320, False)])
    write_awq("awq_gemv_g32", "gemv", 32, [(LAYER, 32, 96, False)])
    write_awq_refused()
    auto, model = "auto_gptq", "gptqmodel"
    write_gptq("gptq_v1_sym_g128", auto, 1, 128, True, [(LAYER, 64, 256, True),
                                                        (OTHER, 32, 128, False)])
    write_gptq("gptq_v1_asym_g32", auto, 1, 32, False, [(LAYER, 64, 96, False)])
    write_gptq("gptq_v1_asym_g64", model, 1, 64, False, [(LAYER, 48, 128, False)])
    write_gptq("gptq_v2_asym_g128", model, 2, 128, False, [(LAYER, 64, 384, True)])
    write_gptq("gptq_v2_sym_g32", model, 2, 32, True, [(LAYER, 96, 160, False)])
    write_gptq("gptq_v1_act_order_sym_g32", auto, 1, 32, True, [(LAYER, 32, 128, False)],
               act_order=True)
    write_gptq("gptq_v1_act_order_asym_g32", model, 1, 32, False, [(LAYER, 32, 96, False)],
               act_order=True)
    write_gptq("gptq_v2_act_order_asym_g64", model, 2, 64, False, [(LAYER, 32, 192, True),
                                                                  (OTHER, 64, 128, False)],
               act_order=True)
    write_gptq("gptq_v1_8bit_act_order_g32", model, 1, 32, True, [(LAYER, 32, 96, True)],
               act_order=True, bits=8)
    # A module name cannot hold a dot; save_tensors gets it back from the slash.
    layer, other = LAYER.replace(".", "/"), OTHER.replace(".", "/")
    ct = write_compressed_tensors
    ct("ct_int4_sym_g128", "group", 128, True, BF16, [(layer, 33, 256, True)])
    ct("ct_int4_sym_g32", "group", 32, True, F16, [(layer, 24, 96, False), (other, 9, 160, False)])
    ct("ct_int4_asym_g32", "group", 32, False, BF16, [(layer, 13, 96, False),
                                                      (other, 48, 64, False)])
    ct("ct_int4_sym_channel", "channel", None, True, BF16, [(layer, 13, 75, False)])
    ct("ct_int4_asym_channel", "channel", None, False, F16, [(layer, 21, 52, False)])
