#!/usr/bin/env python3
"""A training step of qk.torch.QuantGRU beside torch.nn.GRU's: forward and backward to the weights
and x, f32 on the CPU, one layer, one thread, in turns, best of each. A line a preset: milliseconds
of the thread's own time, which other work on the machine leaves alone, and the ratio of the steps.
Says so and leaves with 77 where a package is missing.

    PYTHONPATH=ffi/python QK_LIBRARY_DIR=build/release bench/gru_training.py
        [--shapes 100,32,32,64:100,32,64,128] [--presets w8a8,w8h16] [--turns 60]

Shapes are steps, sequences, inputs, units. "observing": W8H16 that widens its ranges at each
call.
"""
import argparse
import sys
import time

try:
    import qk
    import qk.torch
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SHAPES = "100,32,32,64:100,32,64,64:100,32,32,128:100,32,64,128"
PRESETS = "w8a8,w8h16,w8a16,w16a16,observing"


def layers(presets, module, x):
    yield "torch.nn.GRU", module
    for preset in presets:
        observing = preset == "observing"
        layer = qk.torch.QuantGRU.from_torch(module, preset="w8h16" if observing else preset)
        layer.calibrate(x).observing = observing
        yield preset, layer


def milliseconds(layer, x, dy):
    """Of the forward pass, and of both."""
    start = time.thread_time()
    y, _ = layer(x)
    middle = time.thread_time()
    y.backward(dy)
    return 1e3 * (middle - start), 1e3 * (time.thread_time() - start)


def case(shape, presets, turns):
    steps, batch, inputs, units = shape
    torch.manual_seed(7)
    x = torch.randn(steps, batch, inputs, requires_grad=True)
    dy = torch.randn(steps, batch, units)
    best = {}
    contestants = dict(layers(presets, torch.nn.GRU(inputs, units), x.detach()))
    for _ in range(turns):
        for name, layer in contestants.items():
            now = milliseconds(layer, x, dy)
            best[name] = tuple(map(min, best.get(name, now), now))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--presets", default=PRESETS)
    parser.add_argument("--turns", type=int, default=60)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("layer,shape,forward,step,ratio")
    for text in options.shapes.split(":"):
        shape = tuple(int(part) for part in text.split(","))
        with qk.Context(threads=1):
            best = case(shape, options.presets.split(","), options.turns)
        for name, (forward, step) in best.items():
            print(f'{name},"{" x ".join(map(str, shape))}",{forward:.2f},{step:.2f},'
                  f"{step / best['torch.nn.GRU'][1]:.2f}", flush=True)


if __name__ == "__main__":
    main()
