#!/usr/bin/env python3
"""Writes denoiser_data.h: one signal of examples/gru's test set, clean and noisy, and the linear
layer of its network, as integers.

    pip install -r ../gru/requirements.txt && python make_denoiser_data.py
"""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gru"))

import torch
from safetensors.torch import load_file
from train_denoiser import FRAME, signals

SIGNAL, FRAMES = 1, 64  # of the eight that test.f32 has one after the other
HEAD_PLACES, SAMPLE_PLACES = 8, 15


def integers(values, places):
    return torch.round(values * 2 ** places).to(torch.int32).tolist()


def array(declaration, rows):
    yield f"static const {declaration} = {{"
    for row in rows:
        line = "    {"
        for value in row:
            if len(line) + len(f"{value},") > 97:
                yield line.rstrip()
                line = "     "
            line += f"{value}, "
        yield line[:-2] + "},"
    yield "};"


def main():
    clean, noisy = signals(8, FRAMES, torch.Generator().manual_seed(2))
    weights = load_file(HERE.parent / "gru/denoiser.safetensors")
    head = integers(weights["head.weight"], HEAD_PLACES)
    bias = integers(weights["head.bias"], SAMPLE_PLACES)
    lines = [
        "/* Made by make_denoiser_data.py; do not edit. Samples and biases are times 2^-15,",
        " * weights times 2^-HEAD_PLACES. */",
        "#include <stdint.h>", "",
        f"enum {{ FRAMES = {FRAMES}, FRAME = {FRAME}, HEAD_PLACES = {HEAD_PLACES} }};", "",
        *array("int16_t noisy[FRAMES][FRAME]", integers(noisy[:, SIGNAL], SAMPLE_PLACES)), "",
        *array("int16_t clean[FRAMES][FRAME]", integers(clean[:, SIGNAL], SAMPLE_PLACES)), "",
        *array(f"int8_t head_weight[FRAME][{len(head[0])}]", head), "",
        f"static const int32_t head_bias[FRAME] = {{{', '.join(map(str, bias[:8]))},",
        f"                                         {', '.join(map(str, bias[8:]))}}};"]
    (HERE / "denoiser_data.h").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
