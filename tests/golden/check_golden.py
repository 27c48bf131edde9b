"""Proves tests/golden/data consistent with the rules in README.md; numpy and safetensors only.

Every committed truth must follow from the committed checkpoint, and every answer in
bnb_quantize_oracle from its input, bit for bit, by code that shares nothing with the packages.
"""
import json
import sys
import zlib
from pathlib import Path

try:
    import numpy as np

    import bnb_model as bnb
    from golden_read import Tensor, nibbles, read, read_checkpoint, round_to, same_bits
except ImportError as error:
    print(f"skipped: {error}; see requirements-check.txt")
    sys.exit(77)

DATA = Path(__file__).resolve().parent / "data"
MAX_FILE_BYTES, MAX_TOTAL_BYTES = 1_000_000, 3_000_000
results = {"passed": 0, "failed": 0}


def check(ok, what):
    results["passed" if ok else "failed"] += 1
    if not ok:
        print(f"FAILED {what}")


def dequantize_llm_int8(tensors, layer):
    """As bitsandbytes' MatMul8bitFp does: two roundings, to a row's scale and to the product."""
    scales = tensors[f"{layer}.SCB"].bits * (np.float32(1) / np.float32(127))
    return tensors[f"{layer}.weight"].f32() * scales[:, None]


def dequantize_bnb(tensors, layer):
    if f"{layer}.SCB" in tensors:
        return dequantize_llm_int8(tensors, layer)
    prefix = f"{layer}.weight."
    (state_key,) = [key for key in tensors if key.startswith(prefix + "quant_state.")]
    state = json.loads(tensors[state_key].bits.tobytes())
    absmax = tensors[prefix + "absmax"].bits
    if absmax.dtype == np.uint8:
        absmax = bnb.unnest(absmax, tensors[prefix + "nested_quant_map"].bits,
                            tensors[prefix + "nested_absmax"].f32(), state["nested_offset"],
                            state["nested_blocksize"])
    n, k = state["shape"]
    codes = bnb.unpack(tensors[f"{layer}.weight"].bits)[:n * k]
    table = tensors[prefix + "quant_map"].bits
    return bnb.dequantize(codes, table, absmax, state["blocksize"]).reshape(n, k)


def affine(codes, zeros, scales):
    """(code - zero) * scale with an exact difference and one fp32 product."""
    return (codes - zeros).astype(np.float32) * scales


def dequantize_awq(tensors, layer, config):
    words, zero_words = tensors[f"{layer}.qweight"].bits, tensors[f"{layer}.qzeros"].bits
    scales = tensors[f"{layer}.scales"].f32()
    if config.get("version", "gemm") == "gemm":
        order = [0, 4, 1, 5, 2, 6, 3, 7]
        codes, zeros = nibbles(words, order), nibbles(zero_words, order)
        group = codes.shape[0] // zeros.shape[0]
        return affine(codes, np.repeat(zeros, group, 0), np.repeat(scales, group, 0)).T
    codes, zeros, group = nibbles(words), nibbles(zero_words), config["group_size"]
    column = np.arange(codes.shape[1]) // group
    return affine(codes, zeros[:, column], scales[:, column])


def dequantize_gptq8(tensors, layer, config):
    words = np.ascontiguousarray(tensors[f"{layer}.qweight"].bits.T)
    codes = words.view(np.uint8).T.astype(np.int32)  # [k,n]
    zeros = tensors[f"{layer}.qzeros"].bits.view(np.uint8).astype(np.int32)
    zeros = zeros + (config.get("checkpoint_format", "gptq") == "gptq") & 255
    group = tensors[f"{layer}.g_idx"].bits
    return affine(codes, zeros[group], tensors[f"{layer}.scales"].f32()[group]).T


def dequantize_gptq(tensors, layer, config):
    if config["bits"] == 8:
        return dequantize_gptq8(tensors, layer, config)
    codes = nibbles(tensors[f"{layer}.qweight"].bits.T).T
    zeros = nibbles(tensors[f"{layer}.qzeros"].bits)
    if config.get("checkpoint_format", "gptq") == "gptq":
        zeros = (zeros + 1) & 15
    # AutoRound writes no g_idx where groups are in order.
    group = np.arange(codes.shape[0]) // (codes.shape[0] // zeros.shape[0])
    if f"{layer}.g_idx" in tensors:
        group = tensors[f"{layer}.g_idx"].bits
    return affine(codes, zeros[group], tensors[f"{layer}.scales"].f32()[group]).T


def grid(values, n, k, block=None):
    """One number of a tensor, of a row, of a group or of a block for each of [n,k]."""
    values = values.reshape(-1, values.shape[-1] if values.ndim == 2 else 1)
    rows, columns = block or (n // values.shape[0], k // values.shape[1])
    return values[np.arange(n)[:, None] // rows, np.arange(k) // columns]


def dequantize_scaled(tensors, layer, name, block=None):
    """Codes of 8 bits as they are, times the scale: in f32, which holds 16-bit products exactly."""
    codes = tensors[f"{layer}.weight"].f32()
    if f"{layer}.weight_zero_point" in tensors:
        codes = codes - grid(tensors[f"{layer}.weight_zero_point"].f32(), *codes.shape)
    return codes * grid(tensors[f"{layer}.{name}"].f32(), *codes.shape, block)


def columns_of(tensors, layer, k, group):
    """The group of each column, which files with act-order say themselves."""
    g_idx = tensors.get(f"{layer}.weight_g_idx")
    return np.arange(k) // group if g_idx is None else g_idx.bits


def dequantize_packed8(tensors, layer):
    n, k = tensors[f"{layer}.weight_shape"].bits
    codes = tensors[f"{layer}.weight_packed"].bits.view(np.uint8)[:, :k].astype(np.int32)
    zeros = np.full((n, 1), 128)
    if f"{layer}.weight_zero_point" in tensors:  # four rows a word
        words = np.ascontiguousarray(tensors[f"{layer}.weight_zero_point"].bits.T)
        zeros = words.view(np.uint8).T[:n].astype(np.int32)
    scales = tensors[f"{layer}.weight_scale"].f32()
    if f"{layer}.weight_g_idx" in tensors:
        return affine(codes, grid(zeros, n, k), scales[:, columns_of(tensors, layer, k, 1)])
    return affine(codes, grid(zeros, n, k), grid(scales, n, k))


# Of FP4: codes, the scales of groups, and the global number, by the names of the four that have it.
FP4_NAMES = [("_blocks", "_scales", None), (".weight_packed", ".weight_scale", "global_scale"),
             (".weight", ".weight_scale", "scale_2"), (".weight", ".scale", None)]


def find_fp4(tensors, layer):
    for codes, scales, whole in FP4_NAMES:
        packed, scale = (tensors.get(layer + suffix) for suffix in (codes, scales))
        if packed is None or scale is None or packed.dtype not in ("U8", "I8"):
            continue
        if scale.dtype in ("U8", "F8_E8M0", "F8_E4M3"):
            return packed, scale, tensors.get(f"{layer}.weight_{whole}")
    return None


def dequantize_fp4(packed, scale, whole):
    """E2M1 codes, even columns in the low nibble, times scales of one byte, which a global number
    divides or multiplies. Experts are rows, one after another."""
    rows = int(np.prod(scale.bits.shape[:-1]))
    packed = packed.bits.view(np.uint8).reshape(rows, -1)
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(rows, -1)
    entries = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    if scale.dtype == "U8":
        scale = Tensor("F8_E8M0", scale.bits)
    divides = whole is not None and whole.bits.shape == (1,)  # ModelOpt's has no dimension
    scales = scale.f32().reshape(rows, -1)
    if whole is not None:
        number = whole.f32().reshape(())
        scales = scales / number if divides else scales * number
    with np.errstate(over="ignore"):
        return np.concatenate([entries, -entries])[codes] * grid(scales, *codes.shape)


def dequantize_compressed(tensors, layer, config=None):
    """config: of weights that are not packed."""
    if f"{layer}.weight_packed" not in tensors:
        (group,) = config["config_groups"].values()
        return dequantize_scaled(tensors, layer, "weight_scale",
                                 group["weights"].get("block_structure"))
    n, k = tensors[f"{layer}.weight_shape"].bits
    if tensors[f"{layer}.weight_packed"].bits.shape[1] != -(-k // 8):
        return dequantize_packed8(tensors, layer)
    codes = nibbles(tensors[f"{layer}.weight_packed"].bits)[:, :k]
    scales = tensors[f"{layer}.weight_scale"].f32()
    group = -(-k // scales.shape[1])
    zeros = np.full((n, scales.shape[1]), 8)
    if f"{layer}.weight_zero_point" in tensors:
        zeros = nibbles(tensors[f"{layer}.weight_zero_point"].bits.T).T[:n]
    column = columns_of(tensors, layer, k, group)
    return affine(codes, zeros[:, column], scales[:, column])


def check_dense(folder):
    """Ties each bnb_ checkpoint to the dense weights it was quantized from."""
    dense, code = read(folder / "model.safetensors"), bnb.dynamic_map()
    for name in ("bnb_nf4", "bnb_fp4", "bnb_nf4_nested", "bnb_fp4_nested"):
        tensors, _ = read_checkpoint(DATA / name)
        for key in [key for key in tensors if ".quant_state." in key]:
            weight = key.partition(".quant_state.")[0]
            state = json.loads(tensors[key].bits.tobytes())
            values = dense[weight].f32().reshape(-1)
            packed, absmax = bnb.quantize_4bit(values, state["quant_type"], state["blocksize"])
            planes = {weight: packed.reshape(-1, 1), f"{weight}.absmax": absmax}
            if "nested_offset" in state:
                codes, second, offset = bnb.nest(absmax, code)
                planes |= {f"{weight}.absmax": codes, f"{weight}.nested_absmax": second}
                check(float(offset) == state["nested_offset"], f"{name} {weight} offset")
            for plane, bits in planes.items():
                check(same_bits(bits, tensors[plane].bits), f"{name} {plane}")


def same_numbers(bits, truth):
    """Bits, but of NaN only that it is one."""
    nan = np.isnan(truth.f32())
    found = Tensor(truth.dtype, bits)
    return np.array_equal(nan, np.isnan(found.f32())) and same_bits(
        np.where(nan, 0, bits).astype(bits.dtype), np.where(nan, 0, truth.bits).astype(bits.dtype))


# AutoRound's packing formats: whose bytes, and whether zeros are stored minus one.
AUTO_ROUND = {"auto_round:auto_gptq": ("gptq", "gptq"), "auto_round:auto_awq": ("awq", ""),
              "auto_round:gptqmodel": ("gptq", "gptq_v2")}


def check_checkpoint(folder):
    tensors, config = read_checkpoint(folder)
    method = config["quant_method"]
    if method == "auto-round":
        method, config["checkpoint_format"] = AUTO_ROUND[config["packing_format"]]
    for name, truth in read(folder / "truth.safetensors").items():
        layer = name.removesuffix(".weight")
        fp4 = find_fp4(tensors, layer)
        if fp4 is not None:
            values = dequantize_fp4(*fp4)
        elif method == "bitsandbytes":
            values = dequantize_bnb(tensors, layer)
        elif method == "compressed-tensors":
            values = dequantize_compressed(tensors, layer, config)
        elif method == "fp8":
            name = "scale" if f"{layer}.scale" in tensors else "weight_scale_inv"
            values = dequantize_scaled(tensors, layer, name, config["weight_block_size"])
        elif method == "modelopt":
            values = dequantize_scaled(tensors, layer, "weight_scale")
        elif method == "torchao":  # the same by other names
            own = {key.replace("._weight_qdata", ".weight").replace("._weight_", ".weight_"): tensor
                   for key, tensor in tensors.items()}
            values = dequantize_scaled(own, layer, "weight_scale")
        else:
            values = {"awq": dequantize_awq, "gptq": dequantize_gptq}[method](tensors, layer,
                                                                              config)
        check(same_numbers(round_to(truth.dtype, values), truth), f"{folder.name} {layer}")


def check_blockwise(folder):
    tensors, truths = read(folder / "model.safetensors"), read(folder / "truth.safetensors")
    for name, truth in truths.items():
        layer = name.removesuffix(".weight")
        values = bnb.dequantize(tensors[f"{layer}.data"].bits.reshape(-1),
                                tensors[f"{layer}.code"].bits, tensors[f"{layer}.absmax"].bits,
                                int(layer.rpartition("bs")[2])).reshape(truth.bits.shape)
        check(same_bits(round_to(truth.dtype, values), truth.bits), f"{folder.name} {layer}")


def check_tables(expected):
    code = bnb.dynamic_map()
    check(zlib.crc32(code.tobytes()) == 0x1B137AEB, "crc32 of the dynamic map")
    check(same_bits(code, expected["dynamic_map"].bits), "dynamic map")
    for quant_type, table in bnb.TABLES.items():
        check(same_bits(table, expected[f"{quant_type}_table"].bits), f"{quant_type} table")
    return code


def check_oracle(folder):
    inputs, expected = read(folder / "inputs.safetensors"), read(folder / "expected.safetensors")
    code = check_tables(expected)
    for key, answer in expected.items():
        if key.endswith("_table") or key == "dynamic_map":
            continue
        case, kind, blocksize, plane = key.split(".", 3)
        dense, blocksize = inputs[case].f32(), int(blocksize[2:])
        if kind == "8bit":
            data, absmax = bnb.quantize_8bit(dense, code, blocksize)
            planes = {"data": data, "absmax": absmax}
        else:
            packed, absmax = bnb.quantize_4bit(dense, kind, blocksize)
            planes = {"packed": packed, "absmax": absmax}
            if plane.startswith("nested."):
                codes, second, offset = bnb.nest(absmax, code)
                planes = {"nested.absmax": codes, "nested.nested_absmax": second,
                          "nested.offset": np.array([offset], np.float32)}
        check(same_bits(planes[plane], answer.bits), f"{folder.name} {key}")


def main():
    files = [path for path in DATA.rglob("*") if path.is_file()]
    check(all(path.stat().st_size < MAX_FILE_BYTES for path in files), "every file is small")
    check(sum(path.stat().st_size for path in files) < MAX_TOTAL_BYTES, "the data is small")
    for folder in sorted(DATA.iterdir()):
        if folder.name == "dense":
            check_dense(folder)
        elif folder.name == "bnb_quantize_oracle":
            check_oracle(folder)
        elif folder.name == "bnb_8bit_blockwise":
            check_blockwise(folder)
        elif folder.name in ("gguf", "quantizer_oracle"):
            continue  # ggml's and the packages' own, which other programs judge
        elif (folder / "truth.safetensors").exists():
            check_checkpoint(folder)
        else:
            check(folder.name.endswith("_refused"), f"{folder.name} has a truth")
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
