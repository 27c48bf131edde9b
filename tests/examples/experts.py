"""examples/c/experts.c against sums in Python's doubles: gpt-oss' experts, of one tensor, and a
mixture of a layer an expert.

    experts.py PROGRAM QK GOLDEN WORK
"""
import json
import math
import pathlib
import random
import struct
import subprocess
import sys

program, command = sys.argv[1], sys.argv[2]
golden, work = map(pathlib.Path, sys.argv[3:5])
work.mkdir(parents=True, exist_ok=True)
SHARES = (0.75, 0.25)


def run(*arguments, code=0):
    done = subprocess.run([*map(str, arguments)], capture_output=True, text=True)
    if done.returncode != code:
        sys.exit(f"{arguments}: exit {done.returncode}, not {code}: {done.stdout}{done.stderr}")
    return done.stderr if code else done.stdout


def save(path, tensors):
    """Of F32: shape and values by name."""
    header, data = {}, b""
    for name, (shape, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data),
                                                                         len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read(path):
    """F32 and BF16 tensors: shape and values by name."""
    raw = path.read_bytes()
    start = 8 + struct.unpack_from("<Q", raw)[0]
    found = {}
    for name, entry in json.loads(raw[8:start]).items():
        begin, end = entry.get("data_offsets", (0, 0))
        data = raw[start + begin:start + end]
        if entry.get("dtype") == "BF16":
            data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
        elif entry.get("dtype") != "F32":
            continue
        found[name] = (entry["shape"], struct.unpack(f"<{len(data) // 4}f", data))
    return found


def times(rows, x, bias):
    return [sum(w * v for w, v in zip(row, x)) + b for row, b in zip(rows, bias)]


def silu(gate, up):
    return gate / (1 + math.exp(-gate)) * up


def clamped(gate, up):
    gate, up = min(gate, 7.0), max(-7.0, min(up, 7.0))
    return gate / (1 + math.exp(-1.702 * gate)) * (up + 1)


def layer(experts, join):
    """y of the program's token; of each expert: rows of gate, up and down, and their biases."""
    k = len(experts[0]["gate"][0])
    x = [(i % 7) * 0.125 for i in range(k)]
    y = [0.0] * k
    for e, share in zip((0, len(experts) - 1), SHARES):
        one = experts[e]
        gate, up = (times(one[name], x, one[f"{name}_bias"]) for name in ("gate", "up"))
        joined = [join(a, b) for a, b in zip(gate, up)]
        for i, value in enumerate(times(one["down"], joined, one["down_bias"])):
            y[i] += share * value
    return y


def compare(expected, head, *arguments):
    lines = run(program, *arguments).splitlines()
    found = [float(line.split(" = ")[1]) for line in lines[1:]]
    if lines[0] != head or len(found) != len(expected):
        sys.exit(f"{lines[0]!r} and {len(found)} values, not {head!r} and {len(expected)}")
    size = max(map(abs, expected))
    worst = max(abs(a - b) for a, b in zip(found, expected))
    if not (size > 0 and worst <= 1e-5 * size):
        sys.exit(f"{arguments}: {worst} away, where values are up to {size}")


def rows_of(values, n, k):
    return [values[row * k:(row + 1) * k] for row in range(n)]


def a_layer_an_expert():
    draw, n, k, count = random.Random(7), 24, 40, 5
    tensors, experts = {}, []
    for e in range(count):
        one = {}
        for name, rows, columns in (("gate", n, k), ("up", n, k), ("down", k, n)):
            values = [struct.unpack("<f", struct.pack("<f", draw.gauss(0, 0.3)))[0]
                      for _ in range(rows * columns)]
            tensors[f"m.experts.{e}.{name}_proj.weight"] = ([rows, columns], values)
            one[name], one[f"{name}_bias"] = rows_of(values, rows, columns), [0.0] * rows
        experts.append(one)
    path = work / "mixture.safetensors"
    save(path, tensors)
    names = [f"m.experts.*.{name}_proj" for name in ("down", "gate", "up")]
    compare(layer(experts, silu), f"{count} experts, {k} -> {n} -> {k}", path, *names)
    wrong = run(program, path, names[1], *names[1:], code=1)
    if "these are not the projections of one mixture" not in wrong:
        sys.exit(wrong)


def experts_of_gpt_oss():
    path, twin = golden / "gpt_oss", work / "gpt_oss.safetensors"
    run(command, "dequantize", path, twin, "--dtype", "f32", "--force")
    found, head = read(twin), "model.layers.0.mlp.experts"
    (count, k, wide), values = found[f"{head}.gate_up_proj"]  # as transformers has them, [E,k,n]
    (_, inner, _), downs = found[f"{head}.down_proj"]
    experts = []
    for e in range(count):
        at = lambda i, row: values[(e * k + i) * wide + row]
        down = lambda i, row: downs[(e * inner + i) * k + row]
        bias, down_bias = (found[f"{head}.{name}_proj_bias"][1][e * size:(e + 1) * size]
                           for name, size in (("gate_up", wide), ("down", k)))
        experts.append({
            "gate": [[at(i, 2 * r) for i in range(k)] for r in range(inner)],
            "up": [[at(i, 2 * r + 1) for i in range(k)] for r in range(inner)],
            "down": [[down(i, r) for i in range(inner)] for r in range(k)],
            "gate_bias": bias[::2], "up_bias": bias[1::2], "down_bias": down_bias})
    compare(layer(experts, clamped), f"{count} experts, {k} -> {inner} -> {k}", path,
            f"{head}.down_proj", f"{head}.gate_up_proj")


if "usage: " not in run(program, golden, code=2):
    sys.exit("no usage")
a_layer_an_expert()
experts_of_gpt_oss()
