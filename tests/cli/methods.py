"""A small file of every method that qk names and refuses: tensors and configuration as the package
writes them, the name that qk gives the method, and its sentence about the layer."""
import struct

from harness import floats

N, K = 32, 64  # of the layer "m.up_proj"; experts are [2,N,K]
SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "F16": 2,
         "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "I64": 8}
GENERAL = "run qk quantize on the model's 16-bit checkpoint"
FLOAT_ZEROS = ("its zeros are floats, applied in 16 bits with roundings that no format of qk has; "
               + GENERAL)


def ones(dtype, *shape):
    """A tensor of bytes 1: nothing in it is NaN in any type."""
    count = SIZES[dtype]
    for size in shape:
        count *= size
    return (dtype, list(shape), b"\1" * count)


def shape_of(*sizes):
    return ("I64", [len(sizes)], struct.pack(f"<{len(sizes)}q", *sizes))


class Method:
    """layer: the name qk lists; tensors: suffixes of it, and a dense head beside."""

    def __init__(self, key, name, config, tensors, reason, layer="m.up_proj", files=None):
        self.key, self.name, self.reason, self.layer = key, name, reason, layer
        self.tensors = {layer + suffix: tensor for suffix, tensor in tensors.items()}
        self.tensors["lm_head.weight"] = ("F32", [2, 2], floats([1, 2, 3, 4]))
        self.files = files or ({"config.json": {"quantization_config": config}} if config else {})


def foreign(key, name, config, tensors, anchor, said=None, instead=GENERAL, **more):
    """A method of the table of methods: `anchor` is the suffix whose type the sentence quotes."""
    dtype = tensors[anchor][0]
    said = said or (f'quant_method "{config["quant_method"]}"' if config else
                    "no configuration names it")
    what = anchor[1:] if anchor else "experts"
    return Method(key, name, config, tensors,
                  f"{name} ({said}; {what} is {dtype}), which qk does not load: "
                  f"{instead}",
                  **more)


def compressed(form, **weights):
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {
        "group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "type": "int",
                                                       "symmetric": True, "strategy": "group",
                                                       "group_size": 16, **weights}}}}


NVFP4 = {".weight": ones("U8", N, K // 2), ".weight_scale": ones("F8_E4M3", N, K // 16),
         ".weight_scale_2": ones("F32"), ".input_scale": ones("F32")}
MXFP4_CT = {".weight_packed": ones("U8", N, K // 2), ".weight_scale": ones("U8", N, K // 32)}
QUARK = {".weight": ones("U8", N, K // 2), ".weight_scale": ones("U8", N, K // 32)}
BLOCKS = {".weight": ones("F8_E5M2", N, K), ".weight_scale_inv": ones("F32", 1, 1)}
LLM_INT8 = {".weight": ones("I8", N, K), ".SCB": ones("F32", N), ".weight_format": ones("U8")}
WORDS = {".qweight": ones("I32", K // 8, N), ".qzeros": ones("I32", 1, N // 8),
         ".scales": ones("F16", 1, N)}
EXPERTS = "m.experts.gate_up_proj"


def method(name):
    return {"quant_method": name}


FOREIGN = [
    foreign("modelopt_int4_awq", "INT4 AWQ",
            {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"},
            {".weight": ones("U8", N // 2, K), ".weight_scale": ones("F32", N, 1),
             ".pre_quant_scale": ones("BF16", K)}, ".weight",
            'quant_method "modelopt", quant_algo "W4A16_AWQ"'),
    foreign("modelopt_int4", "INT4", {"quant_method": "modelopt", "quant_algo": "W4A16"},
            {".weight": ones("U8", N // 2, K), ".weight_scale": ones("F32", N, 1)}, ".weight",
            'quant_method "modelopt", quant_algo "W4A16"'),
    foreign("packed_alone", "packed integers", None,
            {".weight": ones("U8", N // 2, K), ".weight_scale": ones("F32", N, 1)}, ".weight"),
    foreign("quark_mxfp4", "MXFP4", method("quark"), QUARK, ".weight"),
    foreign("modelopt_experts", "NVFP4", method("modelopt"),
            {"": ones("U8", 2, N, K // 2), "_weight_scale": ones("F8_E4M3", 2, N, K // 16),
             "_weight_scale_2": ones("F32", 2)}, "", layer=EXPERTS),
    foreign("ct_mxfp6", "MXFP6", compressed("mxfp6-pack-quantized", type="float"),
            {".weight_packed": ones("U8", N, K * 3 // 4), ".weight_scale": ones("U8", N, K // 32)},
            ".weight_packed", 'quant_method "compressed-tensors", format "mxfp6-pack-quantized"'),
    foreign("ct_marlin_24", "Marlin 2:4", compressed("marlin-24"),
            {".weight_packed": ones("I32", K // 32, N * 2), ".scale_packed": ones("F16", 1, N),
             ".meta": ones("I16", K, N // 16)}, ".weight_packed",
            'quant_method "compressed-tensors", format "marlin-24"'),
    foreign("ct_sparse", "2:4 sparse", method("compressed-tensors"),
            {".compressed": ones("BF16", N * K // 2), ".bitmask": ones("U8", N, K // 8),
             ".shape": shape_of(N, K)}, ".compressed"),
    foreign("fp8_blocks_of_e5m2", "FP8 in blocks",
            {"quant_method": "fp8", "weight_block_size": [128, 128]}, BLOCKS, ".weight"),
    foreign("keys_of_other_types", "FP8 in blocks",
            {"quant_method": "next", "bits": "8", "group_size": [128, 128], "w_bit": None,
             "desc_act": "no", "version": 3}, BLOCKS, ".weight"),
    foreign("fp8_experts", "FP8 in blocks", method("fp8"),
            {"": ones("F8_E4M3", 2, N, K), "_scale_inv": ones("F32", 2, 1, 1)}, "",
            layer=EXPERTS),
    foreign("fbgemm_experts", "FP8", method("fbgemm_fp8"),
            {"": ones("F8_E4M3", 2, N, K), "_scale": ones("F32", 2, 1, K)}, "", layer=EXPERTS),
    foreign("fp8_of_e5m2", "FP8", method("fbgemm_fp8"),
            {".weight": ones("F8_E5M2", N, K), ".weight_scale": ones("F32", N, 1)}, ".weight"),
    foreign("mxfp8_of_e5m2", "MXFP8", method("quark"),
            {".weight": ones("F8_E5M2", N, K), ".weight_scale": ones("U8", N, K // 32)}, ".weight"),
    foreign("fp8_bare", "FP8", None, {".weight": ones("F8_E5M2", N, K)}, ".weight"),
    foreign("torchao_int4", "torchao int4", method("torchao"),
            {"._weight_qdata": ones("I8", N, K // 2), "._weight_scale": ones("BF16", K // 32, N),
             "._weight_zero_point": ones("BF16", K // 32, N)}, "._weight_qdata",
            instead=FLOAT_ZEROS),
    foreign("torchao_tiles", "torchao int4", method("torchao"),
            {"._weight_qdata": ones("I32", N // 8, K // 64, 32, 2),
             "._weight_scale_and_zero": ones("BF16", K // 32, N, 2)}, "._weight_qdata",
            instead="its words of 4-bit codes are laid out for one device's kernels; " + GENERAL),
    foreign("torchao_nvfp4", "torchao NVFP4", method("torchao"),
            {"._weight_qdata": ones("U8", N, K // 2), "._weight_scale": ones("F8_E4M3", N, K // 16),
             "._weight_per_tensor_scale": ones("F32")}, "._weight_qdata"),
    foreign("torchao_mxfp4", "torchao MXFP4", method("torchao"),
            {"._weight_qdata": ones("U8", N, K // 2),
             "._weight_scale": ones("F8_E8M0", N, K // 32)},
            "._weight_qdata"),
    foreign("torchao_older", "torchao", method("torchao"),
            {".weight:qdata": ones("I8", N, K), ".weight:scale": ones("F32", N, 1)},
            ".weight:qdata"),
    foreign("eetq", "EETQ", method("eetq"),
            {".weight": ones("I8", K, N), ".weight_scales": ones("F16", N)}, ".weight"),
    foreign("hqq", "HQQ", method("hqq"),
            {".W_q": ones("U8", N // 2, K), ".scale": ones("F16", N, 1),
             ".zero": ones("F16", N, 1)},
            ".W_q", instead=FLOAT_ZEROS),
    foreign("sinq", "SINQ", method("sinq"),
            {".W_q": ones("U8", N // 2, K), ".scale": ones("F16", N, 1)}, ".W_q"),
    foreign("quanto", "quanto", method("quanto"),
            {".weight._data": ones("I8", N, K), ".weight._scale": ones("F32", N, 1)},
            ".weight._data"),
    foreign("aqlm", "AQLM", method("aqlm"),
            {".codes": ones("I16", N, K // 8, 1), ".codebooks": ones("F16", 1, 16, 1, 8),
             ".scales": ones("F16", N, 1, 1, 1)}, ".codes"),
    foreign("vptq", "VPTQ", method("vptq"),
            {".indices": ones("I16", 1, 4, K), ".centroids.weight": ones("F16", 1, 64),
             ".weight_scale": ones("F16", K)}, ".indices"),
    foreign("higgs", "HIGGS", method("higgs"),
            {".weight": ones("I16", N // 4, K), ".scales": ones("F16", N, 1),
             ".tables": ones("F16", 16), ".tables2": ones("F16", 16, 16, 2)}, ".weight"),
    foreign("spqr", "SpQR", method("spqr"),
            {".dense_weights": ones("I64", 8), ".row_offsets": ones("I32", N + 1),
             ".col_vals": ones("I32", 1)}, ".dense_weights"),
    foreign("quip", "QuIP#", method("quip"),
            {".Qidxs": ones("I16", N, K // 8), ".SU": ones("F16", K), ".SV": ones("F16", N)},
            ".Qidxs"),
    foreign("exl2", "EXL2", method("exl2"),
            {".q_weight": ones("I32", K // 8, N), ".q_scale": ones("I32", 1, N // 8),
             ".q_scale_max": ones("F16", 1), ".q_groups": ones("I16", 2)}, ".q_weight"),
    foreign("exl3", "EXL3", method("exl3"),
            {".trellis": ones("I16", K // 16, N // 16, 64), ".suh": ones("F16", K),
             ".svh": ones("F16", N)}, ".trellis"),
    foreign("fp_quant", "FP-Quant", method("fp_quant"),
            {".qweight": ones("U8", N, K // 2), ".scales": ones("U8", N, K // 32),
             ".forward_hadamard_matrix": ones("BF16", 32, 32)}, ".qweight"),
    foreign("bitnet", "BitNet", method("bitnet"),
            {".weight": ones("U8", N // 4, K), ".weight_scale": ones("BF16", 1)}, ".weight"),
    foreign("gemma", "Gemma's integers", method("gemma"),
            {".weight": ones("U8", N, K // 2), ".weight_scale": ones("F32", N, 1)}, ".weight"),
    foreign("mlx", "MLX", None, {".weight": ones("U32", N, K // 8), ".scales": ones("F16", N, 1),
                                 ".biases": ones("F16", N, 1)}, ".weight",
            files={"config.json": {"quantization": {"group_size": 64, "bits": 4}}}),
    foreign("metal", "MLX", method("metal"),
            {".weight": ones("U32", N, K // 8), ".scales": ones("F16", N, 1),
             ".qbiases": ones("F16", N, 1)}, ".weight"),
    foreign("tensorrt_llm", "TensorRT-LLM", None,
            {".weight": ones("F8_E4M3", N, K), ".weights_scaling_factor": ones("F32", 1)},
            ".weight"),
    foreign("squeezellm", "SqueezeLLM", method("squeezellm"),
            {".qweight": ones("I32", K // 8, N), ".lookup_table": ones("F32", N, 16)}, ".qweight"),
    foreign("llm_awq", "LLM-AWQ", method("awq"),
            {".qweight": ones("I16", N // 4, K), ".scales": ones("F16", 1, N),
             ".scaled_zeros": ones("F16", 1, N)}, ".qweight"),
    foreign("qqq", "QQQ", method("qqq"),
            {".B": ones("I32", K // 16, N * 2), ".s_channel": ones("F32", 1, N)}, ".B"),
    foreign("marlin", "Marlin", method("marlin"),
            {".B": ones("I32", K // 16, N * 2), ".s": ones("F16", 1, N)}, ".B"),
    foreign("auto_round_mxint4", "MXINT4",
            {"quant_method": "auto-round", "packing_format": "auto_round", "data_type": "mx_int"},
            MXFP4_CT, ".weight_packed", 'quant_method "auto-round", packing_format "auto_round"'),
    foreign("auto_round_activations", "AutoRound with 8-bit activations",
            {"quant_method": "auto-round", "packing_format": "auto_round", "act_bits": 8},
            {**WORDS, ".w_bf16_to_fp8_scale": ones("BF16", 1)}, ".qweight",
            'quant_method "auto-round", packing_format "auto_round"'),
]


def words(bits, rows=K):
    """GPTQ's tensors of this many bits, one group a row."""
    return {".qweight": ones("I32", rows * bits // 32, N),
            ".qzeros": ones("I32", 1, N * bits // 32), ".scales": ones("F16", 1, N),
            ".g_idx": ("I32", [rows], bytes(4 * rows))}


def awq(bits):
    return {".qweight": ones("I32", K, N * bits // 32), ".qzeros": ones("I32", 1, N * bits // 32),
            ".scales": ones("F16", 1, N)}


def packed(bits):
    return {".weight_packed": ones("I32", N, -(-K // (32 // bits))),
            ".weight_scale": ones("BF16", N, K // 16), ".weight_shape": shape_of(N, K)}


def gptq_config(**more):
    return {"quant_method": "gptq", "bits": 4, "group_size": K, "desc_act": False, **more}


def mixed():
    config = compressed("pack-quantized")
    config["config_groups"]["group_1"] = {"targets": ["Linear"], "weights": {
        "num_bits": 2, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16}}
    return config


CT_BITS = "compressed-tensors with {} bits; qk loads 4 and 8: " + GENERAL
TRANSFORM = " behind a transform of the activations ({}), which qk does not do: " + GENERAL
# What is of a dialect that qk loads, and not of the kind of it.
REFUSED = [
    *[Method(f"gptq_{bits}_bits", "GPTQ v1", gptq_config(bits=bits), words(bits),
             f"GPTQ with {bits} bits; qk loads 4 and 8: {GENERAL}") for bits in (2, 3)],
    Method("gptq_i64_words", "GPTQ v1", gptq_config(),
           {**words(4), ".qweight": ones("I64", K // 16, N)},
           f"qweight is I64 [{K // 16},{N}]; qk loads words of I32: {GENERAL}"),
    Method("gptq_unequal_groups", "GPTQ v1", gptq_config(group_size=32, desc_act=True),
           {".qweight": ones("I32", K // 8, N), ".qzeros": ones("I32", 2, N // 8),
            ".scales": ones("F16", 2, N),
            ".g_idx": ("I32", [K], struct.pack(f"<{K}i", *[i % 3 // 2 for i in range(K)]))},
           "g_idx puts more than 32 columns into group 0; qk loads act-order where groups are of "
           "one size: " + GENERAL),
    Method("gptq_marlin", "unknown", gptq_config(checkpoint_format="marlin"), WORDS,
           'GPTQ checkpoint_format "marlin", which qk does not load (gptq and gptq_v2 it does): '
           + GENERAL),
    *[Method(f"awq_{bits}_bits", "unknown", {"quant_method": "awq", "bits": bits, "group_size": K},
             awq(bits), f"AWQ with {bits} bits; qk loads 4: {GENERAL}") for bits in (2, 8)],
    Method("awq_marlin", "unknown",
           {"quant_method": "awq", "bits": 4, "group_size": K, "version": "marlin"}, awq(4),
           'AutoAWQ version "marlin", which qk does not load (gemm and gemv it does): ' + GENERAL),
    Method("auto_round_fake", "unknown",
           {"quant_method": "auto-round", "packing_format": "auto_round:fake"}, words(4),
           'qweight of quant_method "auto-round", packing_format "auto_round:fake", which qk does '
           "not load (awq, gptq and auto-round it does): " + GENERAL),
    Method("auto_round_rotated", "GPTQ v1",
           {"quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 4,
            "group_size": K, "rotation_config": {"block_size": 32}}, words(4),
           "GPTQ" + TRANSFORM.format("rotation_config")),
    Method("ct_2_bits", "compressed-tensors", compressed("pack-quantized", num_bits=2), packed(2),
           CT_BITS.format(2)),
    Method("ct_2_bits_alone", "compressed-tensors", None, packed(2), CT_BITS.format(2)),
    Method("ct_mixed", "compressed-tensors", mixed(), packed(2), CT_BITS.format(2)),
    Method("ct_transform", "compressed-tensors",
           {**compressed("pack-quantized"), "transform_config": {"config_groups": {"u": {}}}},
           packed(4), "compressed-tensors" + TRANSFORM.format("transform_config")),
    Method("ct_loose_zeros", "compressed-tensors", compressed("pack-quantized", symmetric=False),
           {**packed(4), ".weight_zero_point": ones("I8", N, K // 16)},
           f"weight_zero_point is I8 [{N},{K // 16}]; qk loads zeros packed into I32: {GENERAL}"),
    Method("ct_experts", "compressed-tensors", compressed("pack-quantized"),
           {".weight_packed": ones("I32", 2, N, K // 8), ".weight_scale": ones("BF16", 2, N, 4),
            ".weight_shape": shape_of(2, N, K)},
           f'weight_packed is I32 [2,{N},{K // 8}] (quant_method "compressed-tensors", format '
           f'"pack-quantized"); qk loads I32 of rank 2 (pack-quantized): {GENERAL}'),
    Method("nvfp4_without_global", "NVFP4", None,
           {name: tensor for name, tensor in NVFP4.items() if name != ".weight_scale_2"},
           "NVFP4 without weight_scale_2, which its scales are multiplied by: " + GENERAL),
    Method("nvfp4_awq", "ModelOpt", {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"},
           {**NVFP4, ".pre_quant_scale": ones("BF16", K)},
           "FP4 codes behind a scale of the activations (pre_quant_scale), which qk does not do: "
           + GENERAL),
    Method("nvfp4_in_tiles", "ModelOpt", {"quant_method": "modelopt"},
           {**NVFP4, ".weight_scale": ones("F8_E4M3", 128, 4)},
           f"scales are F8_E4M3 [128,4] of weight [{N},{K}], in tiles of 128 x 4 for one GPU's "
           "tensor cores; qk loads scales in rows: " + GENERAL),
    Method("llm_int8_columns", "LLM.int8", {"quant_method": "bitsandbytes", "load_in_8bit": True},
           LLM_INT8, "weight_format 1, codes in the order of one GPU's tensor cores; qk loads 0, "
           "rows as they are: " + GENERAL),
    Method("ct_int8_zeros_of_f32", "compressed-tensors",
           compressed("int-quantized", num_bits=8, symmetric=False),
           {".weight": ones("I8", N, K), ".weight_scale": ones("F32", N, K // 16),
            ".weight_zero_point": ones("I8", N, K // 16)},
           "asymmetric 8-bit codes with F32 scales, whose products with zeros are not exact; qk "
           "loads those with F16 and BF16 scales: " + GENERAL),
    Method("fp8_without_scales", "FP8", None, {".weight": ones("F8_E4M3", N, K)},
           f"FP8 (no configuration names it; weight is F8_E4M3 [{N},{K}]), whose scales are "
           "absent; qk loads weight_scale, weight_scale_inv and scale of F32, F16, BF16 and E8M0: "
           + GENERAL),
    Method("torchao_experts", "torchao", method("torchao"),
           {"._weight_qdata": ones("I8", 2, N, K), "._weight_scale": ones("F32", 2, N, 1)},
           f"_weight_qdata is I8 [2,{N},{K}]; qk loads torchao's bytes of rank 2: {GENERAL}"),
    Method("torchao_smoothed", "torchao", method("torchao"),
           {"._weight_qdata": ones("I8", N, K), "._weight_scale": ones("F32", N, 1),
            "._weight_act_pre_scale": ones("F32", K)},
           "8-bit weights" + TRANSFORM.format("act_pre_scale")),
    Method("next_i8", "unknown", method("next"), {".weight": ones("I8", N, K)},
           f'weight is I8 [{N},{K}] (quant_method "next"), of no method that qk knows; dense '
           "weights are F32, F16 or BF16"),
    Method("gpt2", "unknown", None, {".weight": ones("F32", 4, 8), ".bias": ones("F32", 8)},
           "weight is F32 [4,8] with a bias of 8: stored as [k,n], as GPT-2's Conv1D does; qk "
           "multiplies by [n,k]"),
]
