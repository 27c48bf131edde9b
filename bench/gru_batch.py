#!/usr/bin/env python3
"""Batches of sequences on one thread: a frozen GRU (c = h) next to ONNX Runtime's and PyTorch's
float GRUs of the same weights, in turns, best of each: microseconds a step of the whole batch.
One JSON object a line; says so and leaves with 77 where a package is missing.

    PYTHONPATH=ffi/python QK_LIBRARY_DIR=build/release bench/gru_batch.py
        [--h 64,128,512,1024] [--batch 64] [--presets w8a8,w8h16] [--turns 9]
"""
import argparse
import json
import sys
import time

try:
    import numpy as np
    import qk
    import torch
    from gru_onnxruntime import onnxruntime, session_of
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def numbers(text):
    return [int(part) for part in text.split(",")]


def onnx_weights(module):
    """W, R and B of a torch.nn.GRU, whose gates are r, z, n, with gates z, r, n."""
    def ordered(parameter):
        r, z, n = np.split(parameter.detach().numpy(), 3)
        return np.concatenate([z, r, n])

    biases = [ordered(module.bias_ih_l0), ordered(module.bias_hh_l0)]
    return {"W": ordered(module.weight_ih_l0)[None], "R": ordered(module.weight_hh_l0)[None],
            "B": np.concatenate(biases)[None]}


def microseconds(call, steps):
    start = time.thread_time()
    call()
    return 1e6 * (time.thread_time() - start) / steps


def case(h, batch, presets, turns):
    torch.manual_seed(7)
    steps = max(32, 2**24 // (h * h * batch))
    module = torch.nn.GRU(h, h)
    x = torch.randn(steps, batch, h)
    values = x.numpy()
    session = session_of(h, steps, batch, onnx_weights(module))
    inputs = {"X": values, "H0": np.zeros((1, batch, h), np.float32)}
    calls = {"onnxruntime": lambda: session.run(None, inputs)[0][:, 0],
             "torch": lambda: module(x)[0].numpy()}
    with qk.Context(threads=1) as context, torch.inference_mode():
        truth = calls["torch"]()
        difference = {"onnxruntime": np.abs(calls["onnxruntime"]() - truth).max()}
        for preset in presets:
            gru = qk.GRU.from_torch(module, preset=preset, context=context)
            gru.calibrate(values).freeze()
            calls[preset] = lambda gru=gru: gru(values)
            difference[preset] = np.abs(calls[preset]() - truth).max()
        best = {name: float("inf") for name in calls}
        for _ in range(turns):
            for name, call in calls.items():
                best[name] = min(best[name], microseconds(call, steps))
    return {"bench": "gru batch", "h": h, "batch": batch, "steps": steps,
            **{f"{name} us": round(value, 1) for name, value in best.items()},
            **{f"{name} differs by": round(float(value), 5) for name, value in difference.items()},
            "onnxruntime": onnxruntime.__version__, "torch": torch.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--h", type=numbers, default=[64, 128, 512, 1024])
    parser.add_argument("--batch", type=numbers, default=[64])
    parser.add_argument("--presets", type=lambda text: text.split(","), default=["w8a8", "w8h16"])
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for h in options.h:
        for batch in options.batch:
            print(json.dumps(case(h, batch, options.presets, options.turns)), flush=True)


if __name__ == "__main__":
    main()
