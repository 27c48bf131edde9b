"""examples/c/llama.c on a random model of 1.1 billion weights, beside the rate of reading memory.

    bench/llama.py LLAMA FOLDER [--repeat N] [--tokens N]

Writes the model to FOLDER once (TinyLlama's shapes, U4 in groups of 128, 0.64 GB) and runs the
program LLAMA on it, exact and with --int8 in turns, N times. LLAMA measures how fast its threads
read memory right after each run; the medians of both rates and of their ratio are printed.
"""
import argparse
import json
import os
import pathlib
import random
import re
import statistics
import subprocess
import sys

HIDDEN, LAYERS, HEADS, KV_HEADS, WIDE, VOCAB, GROUP = 2048, 22, 32, 4, 5632, 32000, 128
PIECE = 1 << 24


def tensors():
    """(name, dtype, shape, bytes of an element) of the file, in its order."""
    kv = HIDDEN // HEADS * KV_HEADS
    linear = {"lm_head": (VOCAB, HIDDEN)}
    yield "model.embed_tokens.weight", "F16", (VOCAB, HIDDEN), 2
    yield "model.norm.weight", "F16", (HIDDEN,), 2
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        yield at + "input_layernorm.weight", "F16", (HIDDEN,), 2
        yield at + "post_attention_layernorm.weight", "F16", (HIDDEN,), 2
        for name, shape in {"self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (kv, HIDDEN),
                            "self_attn.v_proj": (kv, HIDDEN), "self_attn.o_proj": (HIDDEN, HIDDEN),
                            "mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN),
                            "mlp.down_proj": (HIDDEN, WIDE)}.items():
            linear[at + name] = shape
    for name, (n, k) in linear.items():
        yield name + ".weight_packed", "I32", (n, k // 8), 4
        yield name + ".weight_scale", "F16", (n, k // GROUP), 2
        yield name + ".weight_shape", "I64", (2,), 8


def content(name, shape, size, rng):
    """The bytes of a tensor, in pieces."""
    count = size
    for length in shape:
        count *= length
    if name.endswith("_shape"):
        packed = next(s for n, _, s, _ in tensors() if n == name[:-5] + "packed")
        yield b"".join(value.to_bytes(8, "little") for value in (packed[0], packed[1] * 8))
    elif name.endswith("norm.weight"):
        yield b"\x00\x3c" * (count // 2)  # 1
    elif name.endswith("_scale"):
        yield b"\x00\x18" * (count // 2)  # 2^-9: rows of 2048 weights keep the size of x
    else:
        mask = b"\xff\x8f" if size == 2 else b"\xff"  # F16: below 2^-11
        for start in range(0, count, PIECE):
            piece = min(PIECE, count - start)
            bits = int.from_bytes(rng.randbytes(piece), "little")
            if size == 2:
                bits &= int.from_bytes(mask * (piece // 2), "little")
            yield bits.to_bytes(piece, "little")


def write_model(folder):
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama", "hidden_act": "silu", "hidden_size": HIDDEN, "vocab_size": VOCAB,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": WIDE,
        "num_key_value_heads": KV_HEADS, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "eos_token_id": 2,
        "quantization_config": {
            "quant_method": "compressed-tensors", "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                "num_bits": 4, "type": "int", "strategy": "group", "group_size": GROUP,
                "symmetric": True}}}}}
    header, at = {}, 0
    for name, dtype, shape, size in tensors():
        end = at + size
        for length in shape:
            end = at + (end - at) * length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = random.Random(1)
    with open(folder / "unfinished", "wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name, _, shape, size in tensors():
            for piece in content(name, shape, size, rng):
                out.write(piece)
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    os.replace(folder / "unfinished", folder / "model.safetensors")


def run(program, folder, tokens, *options):
    """(tokens a second, GB/s of weights, GB/s that memory reads), from what the program says."""
    done = subprocess.run([program, folder, "--ids", "1,306,4658,278", "--tokens", str(tokens),
                           "--ignore-end", *options], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    weights = re.search(r"([0-9.]+) tokens a second, .*: ([0-9.]+) GB/s", done.stderr)
    memory = re.search(r"memory read by .*: ([0-9.]+) GB/s", done.stderr)
    return float(weights[1]), float(weights[2]), float(memory[1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", default="0")
    o = parser.parse_args()
    if not (o.folder / "model.safetensors").exists():
        write_model(o.folder)
    modes = {"exact": [], "int8": ["--int8"]}
    found = {mode: [] for mode in modes}
    for _ in range(o.repeat):
        for mode, options in modes.items():
            found[mode].append(run(o.program, o.folder, o.tokens, "--threads", o.threads, *options))
    for mode, runs in found.items():
        speed, weights, memory = map(statistics.median, zip(*runs))
        share = [w / m for _, w, m in runs]
        print(f"{mode:6} {speed:7.2f} tokens a second, {weights:6.2f} GB/s of weights, memory "
              f"gives {memory:6.2f}: {statistics.median(share):.2f} of the floor "
              f"({min(share):.2f} to {max(share):.2f})")


if __name__ == "__main__":
    main()
