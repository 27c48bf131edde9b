"""qk_quantize against the packages' own quantizers, over new random and nasty tensors each time.

    QK_LIBRARY_DIR=build/release PYTHONPATH=ffi/python python3 check_quantizers.py [--seed N]

Needs what package_quantizers.py's head names, so it is run before a release and not by CI; a
package that is missing is named, and its quantizers are left out.
"""
import argparse
import os
import sys
import time

import numpy as np

try:
    import torch

    import package_quantizers as packages
    import qk
    from qk._abi import CONSTANTS, STRUCTS, lib
except ImportError as error:
    print(f"skipped: {error}; see package_quantizers.py")
    sys.exit(77)

DESC = STRUCTS["qk_tensor_desc"]
TYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
# By the packages' names: format, scale format (None: the numbers' own), group, flags, planes
# beside DATA and SCALE.
DESCRIBED = {
    "mxfp4": ("FP4_E2M1", "E8M0", 32, (), ()),
    "mxfp8": ("E4M3", "E8M0", 32, (), ()),
    "nvfp4": ("FP4_E2M1", "E4M3", 16, ("GLOBAL", "GLOBAL_DIVIDES"), ("global",)),
    "nvfp4_modelopt": ("FP4_E2M1", "E4M3", 16, ("GLOBAL",), ("global",)),
    "int8_row": ("S8", None, -1, ("SYMMETRIC",), ()),
    "int8_g32": ("S8", None, 32, ("SYMMETRIC",), ()),
    "fp8_row": ("E4M3", None, -1, (), ()),
    "fp8_g32": ("E4M3", None, 32, (), ()),
    "q4_0": ("U4_AFFINE", "F16", 32, ("SYMMETRIC",), ()),
    "q8_0": ("S8", "F16", 32, (), ()),
}
RECORDS = {"q4_0": "GGUF_Q4_0", "q8_0": "GGUF_Q8_0"}  # layouts whose only plane is DATA


def quantized(context, x, name):
    format_name, scale, group, flags, planes = DESCRIBED[name]
    dense = qk.asarray(x, context=context)
    desc = DESC.from_buffer_copy(dense.desc)
    desc.format = CONSTANTS[f"QK_FORMAT_{format_name}"]
    desc.scale_format = CONSTANTS[f"QK_FORMAT_{scale or TYPES[x.dtype]}"]
    desc.group_size = group
    desc.flags = sum(CONSTANTS[f"QK_TENSOR_{flag}"] for flag in flags)
    if name in RECORDS:
        desc.layout = CONSTANTS[f"QK_LAYOUT_{RECORDS[name]}"]
    out = qk.Tensor.from_desc(desc, context)
    context.call(lib.qk_quantize, dense, out)
    stored = ("data",) if name in RECORDS else ("data", "scale") + planes
    return {plane: out.plane(plane).view(np.uint8) for plane in stored}


def numbers(rng, dtype):
    """One of nine kinds, 4 x 64, finite."""
    shape, half = (4, 64), dtype == torch.float16

    def powers(low, high, shape=shape):
        return np.ldexp(rng.uniform(-2, 2, shape), rng.integers(low, high, shape))

    made = (
        lambda: rng.standard_t(4, shape) * 0.02,
        lambda: rng.integers(-64, 65, shape) / 64,
        lambda: rng.integers(-28, 29, shape) / 4 * np.exp2(rng.integers(-3, 4, (4, 1))),
        lambda: np.where(rng.random(shape) < 0.1, rng.standard_normal(shape), -0.0),
        lambda: powers(-26, -12) if half else powers(-149, -100),
        lambda: powers(-24, 15) if half else powers(-149, 126),
        lambda: powers(-24, 15),
        lambda: powers(-30, 10, (4, 1)) * rng.standard_normal(shape),
        lambda: np.repeat(powers(-10, 10, (4, 1)), 64, 1),
    )[rng.integers(9)]()
    if rng.random() < 0.3:
        made[:, :32] = 0
    x = torch.from_numpy(made.astype(np.float32)).to(dtype)
    return torch.where(x.isfinite(), x, torch.zeros_like(x))


def is_broken(name, x):
    """What a package has no answer for: docs/formats.md, rules 8 and 10."""
    if name.startswith("mx"):
        return x.dtype == torch.float16 and bool((x.abs() >= 57344).any())
    return name == "nvfp4_modelopt" and not bool((x != 0).any())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--tensors", type=int, default=900)
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    contexts = [qk.Context(threads=threads) for threads in (1, 3)]
    names, compared, failed = list(DESCRIBED), dict.fromkeys(DESCRIBED, 0), 0
    try:
        import modelopt  # noqa: F401
    except ImportError as error:
        names.remove("nvfp4_modelopt")
        print(f"left out: nvfp4_modelopt, {error}")
    if "GGML_BASE" not in os.environ:
        names = [name for name in names if name not in RECORDS]
        print("left out: q4_0 and q8_0, GGML_BASE names no library")
    for turn in range(arguments.tensors):
        for dtype in TYPES:
            x = numbers(rng, dtype)
            for name in names:
                if is_broken(name, x):
                    continue
                expected = packages.QUANTIZERS[name](x)
                for plane, got in quantized(contexts[turn % 2], x, name).items():
                    truth = packages.raw(expected[plane]).numpy()
                    compared[name] += 1
                    if not np.array_equal(got.reshape(-1), truth):
                        failed += 1
                        at = int(np.nonzero(got.reshape(-1) != truth)[0][0])
                        print(f"seed {arguments.seed}, tensor {turn}, {dtype}, {name} {plane}: "
                              f"byte {at} is {got.reshape(-1)[at]}, expected {truth[at]}")
    print(", ".join(f"{name} {count}" for name, count in compared.items()), "planes compared")
    return 1 if failed or not all(compared[name] for name in names) else 0


if __name__ == "__main__":
    sys.exit(main())
