"""Checks what `qk quantize` and `qk dequantize` write, with safetensors' own reader and numpy.

    python3 check_quantized.py PATH/TO/qk [--keep FOLDER]

The bitsandbytes files must hold the bytes that bitsandbytes itself stores for the same weights,
the compressed-tensors files those of docs/formats.md, and the dequantized weights must follow
from either. --keep leaves the files for check_with_packages.py.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np

    import bnb_model as bnb
    from check_golden import check, dequantize_bnb, dequantize_compressed, results
    from golden_read import nibbles, read, read_checkpoint, round_to, same_bits
except ImportError as error:
    print(f"skipped: {error}; see requirements-check.txt")
    sys.exit(77)

DATA = Path(__file__).resolve().parent / "data"
f32 = np.float32

# Name, options of qk quantize, folder of the package's own file for the same weights.
VARIANTS = [
    ("nf4_b64", ["--format", "nf4"], "bnb_nf4"),
    ("nf4_b32", ["--format", "nf4", "--block", "32"], "bnb_nf4"),
    ("nf4_b128_nested", ["--format", "nf4", "--block", "128", "--nested"], "bnb_nf4_nested"),
    ("nf4_b64_nested", ["--format", "nf4", "--nested"], "bnb_nf4_nested"),
    ("fp4_b64", ["--format", "fp4"], "bnb_fp4"),
    ("fp4_b64_nested", ["--format", "fp4", "--nested"], "bnb_fp4_nested"),
    ("int4_g32", ["--format", "int4", "--group", "32"], None),
    ("int4_g32_asymmetric", ["--format", "int4", "--group", "32", "--asymmetric"], None),
    ("int4_row", ["--format", "int4", "--group", "row"], None),
    ("int4_row_asymmetric", ["--format", "int4", "--group", "row", "--asymmetric"], None),
]


def run_qk(*command):
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)


def state_of(tensors, weight):
    for key in tensors:
        if key.startswith(weight + ".quant_state."):
            return json.loads(tensors[key].bits.tobytes())
    return None


def check_bnb_layer(name, weight, dense, tensors, reference):
    """The stored planes against the rules, and against the package's file where it has them."""
    state, code = state_of(tensors, weight), bnb.dynamic_map()
    n, k = dense[weight].bits.shape
    check(state["shape"] == [n, k], f"{name} {weight} shape")
    packed, absmax = bnb.quantize_4bit(dense[weight].f32().reshape(-1), state["quant_type"],
                                       state["blocksize"])
    planes = {"": packed.reshape(-1, 1), ".absmax": absmax,
              ".quant_map": bnb.TABLES[state["quant_type"]]}
    if "nested_offset" in state:
        codes, second, offset = bnb.nest(absmax, code)
        planes |= {".absmax": codes, ".nested_absmax": second, ".nested_quant_map": code}
        check(f32(state["nested_offset"]) == offset, f"{name} {weight} offset")
    for plane, bits in planes.items():
        check(same_bits(bits, tensors[weight + plane].bits), f"{name} {weight}{plane}")
    if state_of(reference, weight)["blocksize"] != state["blocksize"]:
        return
    check(state == state_of(reference, weight), f"{name} {weight} JSON")
    for key, tensor in reference.items():
        if key.startswith(weight) and ".quant_state." not in key:
            check(key in tensors and tensors[key].dtype == tensor.dtype
                  and same_bits(tensors[key].bits, tensor.bits), f"{name} {key}")


def quantize_int4(x, groups, scale_dtype, symmetric):
    """docs/formats.md: codes 0..15 [n,k], zeros and scales [n,G], the scales as stored bits."""
    n, k = x.shape
    grouped = x.reshape(n, groups, k // groups)
    low = np.minimum(grouped.min(-1), f32(0))
    high = np.maximum(grouped.max(-1), f32(0))
    if symmetric:
        stored = round_to(scale_dtype, np.maximum(-low, high) / f32(7.5))
    else:
        stored = round_to(scale_dtype, np.maximum(high - low, f32(1e-5)) / f32(15))
    scale = stored.astype(f32)
    if scale_dtype == "BF16":
        scale = (stored.astype(np.uint32) << 16).view(f32)
    zeros = np.full((n, groups), 8)
    if not symmetric:
        zeros = np.clip(-np.rint(low / scale), 0, 15).astype(int)
    codes = np.rint(grouped / scale[:, :, None]).astype(int)
    codes = np.clip(codes + zeros[:, :, None], 0, 15).reshape(n, k)
    return codes, zeros, stored


def check_int4_layer(name, layer, dense, tensors, args):
    x = dense[f"{layer}.weight"].f32()
    n, k = x.shape
    scales = tensors[f"{layer}.weight_scale"]
    groups = 1 if args["strategy"] == "channel" else k // args["group_size"]
    check(k % groups == 0 and (groups == 1 or k // groups == args["group_size"]),
          f"{name} {layer} divides into groups, as compressed-tensors demands")
    if scales.bits.shape != (n, groups):
        return
    codes, zeros, stored = quantize_int4(x, groups, scales.dtype, args["symmetric"])
    check(tensors[f"{layer}.weight_shape"].bits.tolist() == [n, k], f"{name} {layer} shape")
    check(same_bits(stored, scales.bits), f"{name} {layer} scales")
    words = nibbles(tensors[f"{layer}.weight_packed"].bits)
    check(words.shape == (n, -(-k // 8) * 8), f"{name} {layer} words")
    check(np.array_equal(words[:, :k], codes) and not words[:, k:].any(), f"{name} {layer} codes")
    zero_name = f"{layer}.weight_zero_point"
    check((zero_name in tensors) == (not args["symmetric"]), f"{name} {layer} has zeros")
    if zero_name in tensors:
        words = nibbles(tensors[zero_name].bits.T).T
        check(np.array_equal(words[:n], zeros) and not words[n:].any(), f"{name} {layer} zeros")


def check_config(name, config, reference):
    if reference is None:
        check(config["quant_method"] == "compressed-tensors", f"{name} quant_method")
        check(config["format"] == "pack-quantized", f"{name} format")
        args = config["config_groups"]["group_0"]["weights"]
        check((args["num_bits"], args["type"]) == (4, "int"), f"{name} weights")
        return
    for key in ("quant_method", "load_in_4bit", "bnb_4bit_quant_type",
                "bnb_4bit_use_double_quant", "bnb_4bit_quant_storage"):
        check(config.get(key) == reference[key], f"{name} {key}")


def check_dequantized(name, dense, tensors, dequantized):
    for weight, source in dense.items():
        if not weight.endswith(".weight"):
            continue
        layer = weight.removesuffix(".weight")
        if state_of(tensors, weight):
            values = dequantize_bnb(tensors, layer)
        elif f"{layer}.weight_packed" in tensors:
            values = dequantize_compressed(tensors, layer)
        else:
            values = source.f32()  # left dense
        check(same_bits(round_to(dequantized[weight].dtype, values), dequantized[weight].bits),
              f"{name} dequantized {weight}")


def check_variant(qk, name, options, reference_folder, folder):
    out, back = folder / name, folder / f"{name}_dequantized.safetensors"
    run_qk(qk, "quantize", "--quiet", DATA / "dense", out, *options)
    run_qk(qk, "dequantize", "--quiet", out, back)
    dense = read(DATA / "dense" / "model.safetensors")
    tensors, config = read_checkpoint(out)
    reference, reference_config = {}, None
    if reference_folder:
        reference, reference_config = read_checkpoint(DATA / reference_folder)
    check_config(name, config, reference_config)
    quantized = 0
    for weight in [key for key in dense if key.endswith(".weight")]:
        layer = weight.removesuffix(".weight")
        if state_of(tensors, weight):
            check_bnb_layer(name, weight, dense, tensors, reference)
        elif f"{layer}.weight_packed" in tensors:
            args = config["config_groups"]["group_0"]["weights"]
            check_int4_layer(name, layer, dense, tensors, args)
        else:
            check(same_bits(dense[weight].bits, tensors[weight].bits), f"{name} dense {weight}")
            continue
        quantized += 1
    layers = sum(key.endswith(".weight") for key in dense)
    # Groups along k need k % 32 == 0, which half of the layers have; all other variants take all.
    check(quantized == (layers // 2 if "int4_g32" in name else layers), f"{name} layer count")
    for bias in [key for key in dense if key.endswith(".bias")]:
        check(same_bits(dense[bias].bits, tensors[bias].bits), f"{name} {bias}")
    check_dequantized(name, dense, tensors, read(back))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("qk", type=Path)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for name, options, reference in VARIANTS:
            check_variant(arguments.qk, name, options, reference, folder)
    print(f"{results['passed']} passed, {results['failed']} failed")
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
