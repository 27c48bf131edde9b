"""Writes data/gguf: a GGUF file of every type that qk loads, by the package gguf, with what its
numpy code dequantizes. Needs numpy and gguf==0.19.0.

The package has no quantizer for K-quants and IQ4: those blocks are random bytes. Scales and minima
are f16 numbers of every kind that is finite: negative, zero, subnormal, the largest.
"""
import sys
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quants

DATA = Path(__file__).resolve().parent / "data" / "gguf"
# Where a block has f16 numbers.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": []}
MADE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
ODD = np.array([0x0000, 0x8000, 0x0001, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x3c00], np.uint16)


def random_blocks(rng, name, rows, k):
    elements, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (rows * k // elements, size), dtype=np.uint8)
    for at in HALVES[name]:
        halves = rng.normal(0, 0.02, len(blocks)).astype(np.float16).view(np.uint16)
        count = min(len(ODD), len(halves))
        halves[:count] = rng.permutation(ODD)[:count]
        blocks[:, at:at + 2] = halves.view(np.uint8).reshape(-1, 2)
    if name == "MXFP4":
        blocks[:4, 0] = (0, 1, 254, 255)
    return blocks.reshape(rows, -1)


def weights(rng, rows, k):
    w = rng.standard_t(4, (rows, k)) * 0.02
    w[:, ::37] *= 8
    w[0, :32] = 0
    return w.astype(np.float32)


def save(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(folder):
    rng = np.random.default_rng(16)
    folder.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(folder / "model.gguf", "llama")
    writer.add_name("blocks of every type")
    writer.add_custom_alignment(64)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    truth = {}

    def add(layer, name, data, shape):
        kind = GGMLQuantizationType[name]
        writer.add_tensor(layer + ".weight", data, raw_dtype=kind)
        truth[layer + ".weight"] = quants.dequantize(data, kind).reshape(shape)

    for name in HALVES:
        k = 2 * max(64, GGML_QUANT_SIZES[GGMLQuantizationType[name]][0])
        add(f"random.{name.lower()}", name, random_blocks(rng, name, 5, k), (5, k))
    for name in MADE:
        made = quants.quantize(weights(rng, 3, 96), GGMLQuantizationType[name])
        add(f"made.{name.lower()}", name, made, (3, 96))
    experts = random_blocks(rng, "Q4_K", 6, 256).reshape(2, 3, -1)
    add("blk.0.ffn_gate_exps", "Q4_K", experts, (2, 3, 256))
    writer.add_tensor("made.q4_0.bias", weights(rng, 1, 3)[0])
    writer.add_tensor("dense.f16.weight", weights(rng, 3, 7).astype(np.float16))
    writer.add_tensor("dense.f32.weight", weights(rng, 2, 5))
    save(writer)
    truths = GGUFWriter(folder / "truth.gguf", "llama")
    for name, values in truth.items():
        truths.add_tensor(name, np.ascontiguousarray(values))
    save(truths)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else DATA)
