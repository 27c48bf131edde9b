"""Release tier: GGUF files that the package gguf writes, every type, in one file and split in
three, through qk inspect, verify, dequantize and multiply; what qk decodes against what the
package's numpy code does, bit by bit, scales that are no numbers included.

    test_gguf.py PATH/TO/qk      needs numpy and gguf; skips (77) without
"""
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import numpy as np
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter, quants
    from golden_gguf import HALVES, random_blocks, save, weights
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

LAYERS, HIDDEN, INNER, WORDS, EXPERTS = 2, 256, 512, 64, 3


def model(path, kind, rng, odd=False, parts=0):
    """A small mixture of experts with tied embeddings; {layer: what it decodes to}."""
    writer = GGUFWriter(path, "llama", split_max_tensors=parts)
    writer.add_block_count(LAYERS)
    writer.add_token_list([f"<{i}>" for i in range(WORDS)])
    truth = {}

    def add(name, rows, k, experts=1):
        blocks = random_blocks(rng, kind, rows * experts, k)
        if odd:
            for at in HALVES[kind]:
                blocks.reshape(-1, GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1])[
                    ::5, at:at + 2] = rng.choice([[0, 0x7c], [0, 0xfc], [1, 0x7e]])
        values = quants.dequantize(blocks, GGMLQuantizationType[kind])
        if experts > 1:
            blocks, values = blocks.reshape(experts, rows, -1), values.reshape(experts, rows, k)
        writer.add_tensor(name + ".weight", blocks, raw_dtype=GGMLQuantizationType[kind])
        truth[name + ".weight"] = values

    add("token_embd", WORDS, HIDDEN)
    for i in range(LAYERS):
        writer.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(HIDDEN, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{i}.{name}", HIDDEN, HIDDEN)
        writer.add_tensor(f"blk.{i}.attn_q.bias", weights(rng, 1, HIDDEN)[0])
        writer.add_tensor(f"blk.{i}.ffn_gate_inp.weight", weights(rng, EXPERTS, HIDDEN))
        add(f"blk.{i}.ffn_gate_exps", INNER, HIDDEN, EXPERTS)
        add(f"blk.{i}.ffn_down_exps", HIDDEN, INNER, EXPERTS)
    save(writer)
    return truth


def decoded(path):
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        yield name, np.frombuffer(data[8 + size + begin:8 + size + end], np.uint32).reshape(
            entry["shape"])


def same(got, wanted):
    nan = np.isnan(wanted)
    return (got.shape == wanted.shape and np.array_equal(got[~nan], wanted.view(np.uint32)[~nan])
            and np.isnan(got.view(np.float32)[nan]).all())


def main(qk):
    def run(*arguments, code=0):
        done = subprocess.run([qk, *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
        return done.stdout

    rng = np.random.default_rng(3)
    checked = 0
    np.seterr(all="ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind in HALVES:
            for case in ("whole", "split", "odd"):
                path = folder / f"{kind}-{case}.gguf"
                truth = model(path, kind, rng, case == "odd", 6 if case == "split" else 0)
                if case == "split":
                    path = sorted(folder.glob(f"{kind}-split-*.gguf"))[0]
                seen = json.loads(run("inspect", path, "--json"))
                assert seen["quantized_layers"] == len(truth) and seen["refused_layers"] == 0
                if kind != "MXFP4":  # random powers of two up to 2^127: some values overflow
                    run("verify", path, code=1 if case == "odd" else 0)
                out = folder / f"{kind}-{case}.safetensors"
                run("dequantize", path, out, "--dtype", "f32", "-q")
                found = {key: value for key, value in decoded(out) if key in truth}
                assert found.keys() == truth.keys()
                for key, values in truth.items():
                    assert same(found[key], values), (kind, case, key)
                    checked += 1
                if case == "whole" and kind != "MXFP4":
                    for packed in ([], ["--packed"]):
                        run("multiply", path, "blk.0.attn_q", "--repeat", 1, *packed)
    print(f"{checked} layers of {len(HALVES)} types decode to the package's bits")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
