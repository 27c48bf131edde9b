"""What the packages make of nasty numbers: data/quantizer_oracle. package_quantizers.py's head
says what it needs.

    python3 golden_quantizers.py
"""
import numpy as np
import torch
from golden_common import DATA, save_tensors, weights
from package_quantizers import QUANTIZERS, raw

TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}


def with_exponents(rng, shape, low, high):
    return np.ldexp(rng.uniform(-2, 2, shape), rng.integers(low, high, shape))


def numbers(name, type_name, seed):
    """4 x 64 finite numbers of one kind; the first group is zeros with a negative one."""
    rng, shape = np.random.default_rng(seed), (4, 64)
    half = type_name == "f16"
    made = {
        "grid": lambda: rng.integers(-64, 65, shape) / 64,  # ties of every rule
        "steps": lambda: rng.integers(-14, 15, shape) / 2 * np.exp2(rng.integers(-3, 4, (4, 1))),
        "wide": lambda: with_exponents(rng, shape, -24 if half else -140, 15 if half else 120),
        "tiny": lambda: with_exponents(rng, shape, -26 if half else -149, -12 if half else -100),
        "rows": lambda: rng.standard_normal(shape) * with_exponents(rng, (4, 1), -30, 10),
    }[name]()
    made = torch.from_numpy(made.astype(np.float32))
    made[0, :32] = 0
    made[0, 7] = -0.0
    return made.to(TYPES[type_name])


def main():
    inputs, expected = {}, {}
    for type_name, dtype in TYPES.items():
        cases = {name: numbers(name, type_name, seed)
                 for seed, name in enumerate(("grid", "steps", "wide", "tiny", "rows"), 7100)}
        cases["weights"] = weights(7200, 4, 128, dtype)
        for name, x in cases.items():
            x = torch.where(x.isfinite(), x, torch.zeros_like(x))
            inputs[f"{name}_{type_name}"] = x
            for quantizer, run in QUANTIZERS.items():
                for plane, value in run(x).items():
                    expected[f"{name}_{type_name}.{quantizer}.{plane}"] = raw(value)
    save_tensors("quantizer_oracle", "inputs.safetensors", inputs)
    save_tensors("quantizer_oracle", "expected.safetensors", expected)
    print(f"wrote {len(inputs)} inputs and {len(expected)} planes to {DATA.name}/quantizer_oracle")


if __name__ == "__main__":
    main()
