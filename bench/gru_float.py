#!/usr/bin/env python3
"""The float GRU of calibration next to torch.nn.GRU (c = h), in turns, best of each: milliseconds
for `steps` steps. One JSON object a line; says so and leaves with 77 where a package is missing.

    PYTHONPATH=ffi/python QK_LIBRARY_DIR=build/release bench/gru_float.py
        [--h 64,256,1024] [--batch 1,16] [--threads 1,2] [--steps 100] [--turns 9]
"""
import argparse
import json
import sys
import time

try:
    import numpy as np
    import qk
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def numbers(text):
    return [int(part) for part in text.split(",")]


def milliseconds(call):
    start = time.perf_counter()
    call()
    return 1e3 * (time.perf_counter() - start)


def case(h, batch, threads, steps, turns):
    torch.set_num_threads(threads)
    torch.manual_seed(7)
    module = torch.nn.GRU(h, h)
    x = torch.randn(steps, batch, h)
    values = x.numpy()
    with qk.Context(threads=threads) as context, torch.inference_mode():
        gru = qk.GRU.from_torch(module, context=context)
        error = np.abs(gru.run_float(values) - module(x)[0].numpy()).max()
        calls = {"qk_run_float_ms": lambda: gru.run_float(values),
                 "qk_calibrate_ms": lambda: gru.calibrate(values), "torch_ms": lambda: module(x)}
        best = {name: float("inf") for name in calls}
        for _ in range(turns):
            for name, call in calls.items():
                best[name] = min(best[name], milliseconds(call))
        gru.close()
    return {"h": h, "batch": batch, "threads": threads, "steps": steps,
            **{name: round(value, 3) for name, value in best.items()},
            "largest_difference": float(error)}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--h", type=numbers, default=[64, 256, 1024])
    parser.add_argument("--batch", type=numbers, default=[1, 16])
    parser.add_argument("--threads", type=numbers, default=[1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    for threads in options.threads:
        for h in options.h:
            for batch in options.batch:
                print(json.dumps(case(h, batch, threads, options.steps, options.turns)),
                      flush=True)


if __name__ == "__main__":
    main()
