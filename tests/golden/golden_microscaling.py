"""FP4 codes with scales of one byte: ModelOpt, gpt-oss, DeepSeek's names, and NaN among the scales.

    python3 golden_microscaling.py [FOLDER...]

Writes those folders of data/ alone, all of its own without arguments; needs requirements.txt and
requirements-nodeps.txt.
"""
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch: plain eager arithmetic, no network
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import shutil
import sys
from unittest import mock

import torch

import package_quantizers as packages
from golden_common import DATA, save_checkpoint, save_json, save_tensors, weights

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
LAYER = "model.layers.0.self_attn.q_proj"
OTHER = "model.layers.0.mlp.down_proj"
EXPERTS = "model.layers.0.mlp.experts"
# E4M3 by bytes: 0, denormals, the smallest normal numbers, the largest, and NaN.
SCALES_OF_8_BITS = [0, 1, 2, 3, 6, 7, 8, 9, 0x38, 0x7d, 0x7e]
NAN = 0x7f


def put_bytes(tensor, values):
    """The same tensor, its first bytes replaced."""
    made = tensor.clone().contiguous()
    made.view(torch.uint8).reshape(-1)[:len(values)] = torch.tensor(values, dtype=torch.uint8)
    return made


def all_codes(packed):
    """The first row of codes: every code beside every other."""
    return put_bytes(packed, [i * 37 % 256 for i in range(packed.shape[1])])


def write_compressed(name, layers, scales):
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme

    scheme = preset_name_to_scheme("NVFP4A16", ["Linear"])
    tensors, truth = {}, {}
    for index, (layer, n, k, dtype) in enumerate(layers):
        made = packages.nvfp4(weights(9000 + index, n, k, dtype))
        state = {"weight_packed": all_codes(made["data"]),
                 "weight_scale": put_bytes(made["scale"], list(scales)),
                 "weight_global_scale": made["global"]}
        tensors.update({f"{layer}.{key}": value for key, value in state.items()})
        truth[f"{layer}.weight"] = NVFP4PackedCompressor.decompress(state, scheme)["weight"]
    config = QuantizationConfig(config_groups={"group_0": scheme}, format="nvfp4-pack-quantized",
                                quant_method="compressed-tensors", ignore=["lm_head"],
                                quantization_status=QuantizationStatus.COMPRESSED)
    save_checkpoint(name, tensors, truth, config.model_dump(mode="json"))


def write_modelopt(name, algorithm, layers, scales=(), in_config=False):
    """The package's table has +0 at code 8, where qk has -0: no golden code is 8."""
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    tensors, truth = {}, {}
    for index, (layer, n, k, dtype) in enumerate(layers):
        if algorithm == "MIXED_PRECISION" and index == 1:  # FP8: one scale
            weight = weights(9200 + index, n, k, dtype)
            scale = weight.float().abs().amax() / 448
            codes = (weight.float() / scale).to(torch.float8_e4m3fn)
            tensors.update({f"{layer}.weight": codes, f"{layer}.weight_scale": scale})
            truth[f"{layer}.weight"] = (codes.float() * scale).to(dtype)
            continue
        made, scale, whole = NVFP4QTensor.quantize(weights(9200 + index, n, k, dtype), 16)
        codes = made._quantized_data
        if index == 0 and scales:
            codes, scale = all_codes(codes), put_bytes(scale, list(scales))
        for nibble in (0, 4):
            codes = torch.where((codes >> nibble) & 15 == 8, codes & (0xf0 >> nibble), codes)
        made = NVFP4QTensor(made.metadata["shape"], dtype, codes)
        truth[f"{layer}.weight"] = made.dequantize(dtype, scale=scale, double_scale=whole,
                                                   block_sizes={-1: 16})
        tensors.update({f"{layer}.weight": codes, f"{layer}.weight_scale": scale,
                        f"{layer}.weight_scale_2": whole,
                        f"{layer}.input_scale": torch.tensor(0.01)})
    section = {"quant_algo": algorithm, "kv_cache_quant_algo": None, "group_size": 16,
               "exclude_modules": ["lm_head"]}
    producer = {"name": "modelopt", "version": "0.47.0"}
    dtype = str(layers[0][3]).removeprefix("torch.")
    if in_config:
        save_checkpoint(name, tensors, truth, {"quant_method": "modelopt", "producer": producer,
                                               "ignore": ["lm_head"], **section}, torch_dtype=dtype)
        return
    save_tensors(name, "model.safetensors", tensors)
    save_tensors(name, "truth.safetensors", truth)
    save_json(name, "config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                                    "torch_dtype": dtype})
    save_json(name, "hf_quant_config.json", {"producer": producer, "quantization": section})


def write_gpt_oss(name, experts, n, k, dtype, scales=()):
    """transformers dequantizes experts to [experts,k,n]; qk has rows, one after another."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    from transformers import Mxfp4Config

    tensors, truth = {}, {}
    for index, (layer, rows, columns) in enumerate([("gate_up_proj", 2 * n, k),
                                                    ("down_proj", k, n)]):
        made = packages.mxfp4(weights(9300 + index, experts * rows, columns, BF16))
        blocks = all_codes(made["data"]).reshape(experts, rows, columns // 32, 16)
        scale = put_bytes(made["scale"], list(scales)).reshape(experts, rows, columns // 32)
        tensors.update({f"{EXPERTS}.{layer}_blocks": blocks, f"{EXPERTS}.{layer}_scales": scale,
                        f"{EXPERTS}.{layer}_bias": weights(9310 + index, experts, rows, BF16)})
        dense = convert_moe_packed_tensors(blocks, scale, dtype=dtype)
        truth[f"{EXPERTS}.{layer}.weight"] = dense.transpose(1, 2).reshape(-1, columns)
    save_checkpoint(name, tensors, truth, Mxfp4Config().to_dict(), model_type="gpt_oss",
                    dtype=str(dtype).removeprefix("torch."))


def write_deepseek(name, layers, scales=()):
    """Experts of FP4 beside a layer of FP8 in blocks, by transformers' operation for both."""
    from transformers import FineGrainedFP8Config
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize

    config = FineGrainedFP8Config(weight_block_size=[128, 128], scale_fmt="ue8m0")
    holder = mock.Mock(quantization_config=config)
    tensors, truth = {}, {}
    for index, (layer, n, k) in enumerate(layers):
        made = packages.mxfp4(weights(9400 + index, n, k, BF16))
        codes = all_codes(made["data"]).view(torch.int8)
        scale = put_bytes(made["scale"], list(scales) if index == 0 else [])
        scale = scale.view(torch.float8_e8m0fnu)
        tensors.update({f"{layer}.weight": codes, f"{layer}.scale": scale})
        truth[f"{layer}.weight"] = Fp8Dequantize(holder)._dequantize_one(codes, scale, BF16)
    made = Fp8Quantize(holder).convert({"w": weights(9450, 128, 256, BF16)})
    codes, scale = made.values()
    tensors.update({"layers.0.attn.wq_a.weight": codes, "layers.0.attn.wq_a.scale": scale})
    truth["layers.0.attn.wq_a.weight"] = Fp8Dequantize(holder)._dequantize_one(codes, scale, BF16)
    save_checkpoint(name, tensors, truth, config.to_dict(), model_type="deepseek_v4",
                    dtype="bfloat16", expert_dtype="fp4")


EXPERT = "layers.0.ffn.experts.0.w"
CASES = {
    "ct_nvfp4_nan": lambda name: write_compressed(name, [(LAYER, 3, 64, BF16)], [NAN]),
    "modelopt_nvfp4": lambda name: write_modelopt(name, "NVFP4", [
        (LAYER, 13, 192, BF16), (OTHER, 7, 80, BF16)], SCALES_OF_8_BITS),
    "modelopt_nvfp4_f16": lambda name: write_modelopt(name, "W4A16_NVFP4", [
        (LAYER, 7, 80, F16)], SCALES_OF_8_BITS, True),
    "modelopt_nvfp4_nan": lambda name: write_modelopt(name, "W4A16_NVFP4", [
        (LAYER, 3, 64, F32)], [NAN], True),
    "modelopt_mixed": lambda name: write_modelopt(name, "MIXED_PRECISION", [
        (LAYER, 9, 64, BF16), (OTHER, 5, 48, BF16)]),
    "gpt_oss": lambda name: write_gpt_oss(name, 3, 32, 64, BF16, [0, 1, 118, 127, 130]),
    "gpt_oss_f16_ends": lambda name: write_gpt_oss(name, 2, 32, 64, F16, [
        0, 90, 103, 104, 112, 113, 141, 142, 143, 253, 254]),
    "deepseek_v4": lambda name: write_deepseek(name, [
        (EXPERT + "1", 13, 96), (EXPERT + "2", 5, 32)], [0, 1, 118, 127, 130]),
    "deepseek_v4_nan": lambda name: write_deepseek(name, [(EXPERT + "1", 3, 64)],
                                                   [252, 253, 254, 255]),
}

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.set_num_threads(1)
    for case, write in CASES.items():
        if not sys.argv[1:] or case in sys.argv[1:]:
            shutil.rmtree(DATA / case, ignore_errors=True)
            write(case)
