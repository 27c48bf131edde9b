#!/usr/bin/env python3
"""Takes what a run of all benches measured over into docs/measurements/data; bench/pages.py then
writes the pages.

    take_results.py cuda RESULTS      a folder that bench/cuda/run_all wrote
    take_results.py cpu RESULTS       a folder that bench/cpu_run_all wrote; --prefix intel_ for
                                      another machine than the pages' first

Only results that the folder holds are replaced, each as a whole. Machine and commit are those
of the run's machine.txt.
"""
import argparse
import csv
import json
import pathlib
import re

DATA = pathlib.Path(__file__).resolve().parent.parent / "docs/measurements/data"
SHAPES = ("4096x4096", "6144x4096", "4096x14336", "8192x8192", "28672x4096", "8192x28672",
          "57344x8192")
ON_CPU = [(4096, 4096), (4096, 14336), (14336, 4096)]
ROWS = "build/cuda/bench/bench_cuda_rows rows.json"
LINEAR = "qk_bench_cpu_linear"


def store(data, name, about, header, rows):
    """Writes one result; nothing where nothing was measured."""
    rows = list(rows)
    if not rows:
        return
    path = data / f"{name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as file:
        file.writelines(f"# {key}: {value}\n" for key, value in about.items())
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
    print(f"{name}: {len(rows)} rows")


def named(name, scales=True):
    """What the pages call the weights of a bench: "nf4 b64 f32" is "NF4 b64, f32 scales"."""
    words = name.replace(" packed", "").replace(" x f16", "").split(" x ")
    head, *tail = words[0].split()
    group = tail[:1]
    rest = [word for word in tail[1:] if word in ("nested", "act-order", "zeros") or word.isupper()]
    if scales and len(tail) > 1 and tail[1] == "f32":
        rest.append("f32 scales")
    label = " ".join([head.upper(), *group])
    return ", ".join([label, *rest, *(f"{word} x" for word in words[1:])])


def lines_of(folder, name):
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def cuda_rows(lines, prefix, rows, scales, share):
    """(weights, m, shape, us[, share]) of the lines whose name starts so, in the pages' order.
    A share of 0 is not known: the run had no floors. What two parts timed is taken once."""
    once = {(line["what"], line["m"], line["n"], line["k"]): line for line in lines}
    for line in sorted(once.values(), key=lambda line: SHAPES.index(f"{line['n']}x{line['k']}")
                       if f"{line['n']}x{line['k']}" in SHAPES else len(SHAPES)):
        what = line["what"]
        if what.startswith(prefix) and line["m"] in rows and not what.endswith("overlapped"):
            known = f"{line['share']:.2f}" if line["share"] > 0 else ""
            tail = [known] if share else []
            yield [named(what.removeprefix(prefix), scales), line["m"], f"{line['n']}x{line['k']}",
                   f"{line['us']:.1f}", *tail]


def in_order(rows):
    """Rows of one kind of weights side by side, and of one m within them."""
    rows = list(rows)
    first = list(dict.fromkeys(row[0] for row in rows))
    return sorted(rows, key=lambda row: (first.index(row[0]), row[1], SHAPES.index(row[2])))


def without_m(rows):
    return ([row[0], *row[2:]] for row in rows)


def many_rows(lines):
    """Products of 17 rows and more beside the dense one of the same run: three results."""
    dense = {(line["n"], line["k"], line["m"]): line["us"] for line in lines
             if line["what"].startswith("dense")}
    found = {"linear_4096": [], "bytes_4096": [], "checkpoint_4096": []}
    for line in lines:
        shape = f"{line['n']}x{line['k']}"
        base = dense.get((line["n"], line["k"], line["m"]))
        if base is None or line["m"] < 17 or shape not in SHAPES:
            continue
        what = line["what"]
        label = "dense f16, cuBLASLt" if what.startswith("dense") else named(what, scales=False)
        which = ("linear_4096" if "packed" in what or label.startswith("dense") else
                 "bytes_4096" if what.startswith(("s8", "lut8")) else "checkpoint_4096")
        over = "" if label.startswith("dense") else f"{base / line['us']:.2f}"
        found[which].append([label.removesuffix(", ROW"), line["m"], shape, f"{line['us']:.1f}",
                             over])
    return found


def older(folder, code, floors):
    """Products by the kernels of an older card: those of few rows with their share of the floor
    that the card's own code found, if it is there, those of many beside the dense product of the
    same run."""
    few = []
    for line in lines_of(folder, f"bench-{code}"):
        weights = line["what"].removeprefix("linear ").removesuffix(" x f16")
        floor = floors.get((weights, line["n"], line["k"]), 0)
        if line["what"].endswith(" x f16"):
            few.append({**line, "share": floor / line["us"]})
    few = in_order(list(cuda_rows(few, "linear ", (1, 2, 4, 8, 16), False, True)))
    many = in_order(many_rows(lines_of(folder, f"rows-{code}"))["linear_4096"])
    return [[f"sm_{code}", *row] for row in few], [[f"sm_{code}", *row] for row in many]


def as_stored(lines):
    """Products from checkpoints' layouts; the bench names a layout where it is not the format's
    usual one."""
    for name, *rest in in_order(list(cuda_rows(lines, "layout ", (1, 4, 16), False, True))):
        weights = name.removesuffix(", f32 x")
        usual = "ROW_HIGH" if weights.startswith("NF4") else "AWQ_GEMM"
        layout = "" if weights.endswith(("GPTQ", "AWQ_GEMV")) else f", {usual}"
        yield [weights + layout, "f16" if weights == name else "f32", *rest]


def packed(lines):
    """Packed weights to f16, by rows and by columns."""
    by_rows = [{**line, "what": line["what"].removesuffix(" to f16")} for line in lines
               if line["what"].endswith(" to f16")]
    by_columns = [{**line, "what": line["what"].removesuffix(" to f16 [k,n]")} for line in lines
                  if line["what"].endswith(" to f16 [k,n]")]
    yield from without_m(in_order(list(cuda_rows(by_rows, "packed ", (0,), True, True))))
    for label, *rest in without_m(in_order(list(cuda_rows(by_columns, "packed ", (0,), True,
                                                          True)))):
        yield [f"{label}, to [k,n]", *rest]


def repacked(lines, size):
    """Repacked from a layout into another, square weights: (from, into, us, share)."""
    for line in lines:
        if line["what"].startswith("repack ") and line["n"] == line["k"] == size:
            source, target = line["what"].removeprefix("repack ").split(" to ")
            yield [source, target, f"{line['us']:.1f}", f"{line['share']:.2f}"]


def transposed(lines):
    """Products y = x . w, and the dense ones of the same run, which have no share."""
    prefix, dense = "transposed ", "transposed dense"
    rows = {line["m"] for line in lines if line["what"].startswith(prefix)}
    packed = [line for line in lines if not line["what"].startswith(dense)]
    for row in cuda_rows(lines, dense, rows, False, True):
        yield ["dense f16, cuBLASLt", *row[1:-1], ""]
    yield from cuda_rows(packed, prefix, rows, False, True)


def experts(lines):
    """Layers of experts: (model, weights, tokens, us, share)."""
    for line in lines:
        model, *weights, part = line["what"].split()
        if part == "layer":
            tokens = f"{line['m']} token" + ("" if line["m"] == 1 else "s")
            yield [model, named(" ".join(weights), scales=False), tokens, f"{line['us']:.1f}",
                   f"{line['share']:.2f}"]


def experts_beside(lines, others):
    """The same layers by qk and by peers, in the columns that peers have."""
    columns = {line["m"] for line in others}
    found = [(row[0], f"qk, {row[1]}", row[2], row[3]) for row in experts(lines)
             if int(row[2].split()[0]) in columns]
    for line in others:
        model, peer = line["what"].removeprefix("peer: ").split(" ", 1)
        tokens = f"{line['m']} token" + ("" if line["m"] == 1 else "s")
        found.append((model, peer, tokens, f"{line['us']:.1f}"))
    models = list(dict.fromkeys(row[0] for row in found))
    return sorted(found, key=lambda row: models.index(row[0])) if others else []


def chains(lines):
    """Chains of one product after the other, of packed weights."""
    for line in lines:
        weights = line["what"].removeprefix("chain ")
        if weights != line["what"] and not weights.endswith("as stored"):
            yield [named(weights), f"{line['n']}x{line['k']}", f"{line['us']:.1f}",
                   f"{line['share']:.2f}"]


def layers(lines):
    """Products of a layer with one row of x: (header, rows), a column for each kind of weights."""
    rows = {}
    for line in lines:
        words = re.fullmatch(r"(layer|backwards) (8b|70b) ([^,]*)(, alone)?", line["what"])
        if words is None or line["m"] != 1:
            continue
        model = f"Llama-3-{words[2].upper()}"
        label = "alone" if words[4] else "backwards" if words[1] == "backwards" else model
        share = f", {100 * line['share']:.0f}%" if label == model else ""
        rows.setdefault((model, label), {})[named(words[3])] = f"{line['us']:.1f}{share}"
    weights = list(dict.fromkeys(name for row in rows.values() for name in row))
    labels = ("Llama", "backwards", "alone")
    ordered = sorted(rows, key=lambda row: (row[0] != "Llama-3-8B", labels.index(
        row[1].split("-")[0])))
    return (["us a layer", *weights],
            ([label, *(rows[model, label].get(name, "") for name in weights)]
             for model, label in ordered))


def take_cuda(folder, data):
    time, commit, card = (folder / "machine.txt").read_text(encoding="utf-8").splitlines()[:3]
    about = {"machine": card, "commit": f"{commit[:7]}, {time[:10]}"}

    def put(name, command, cells, header, rows):
        store(data, name, {**about, "command": command, "cells": cells}, header, rows)

    bench = lines_of(folder, "bench")
    program = "build/cuda/bench/bench_cuda"
    shares = ["weights", "shape", "us", "share"]
    to_f16 = [{**line, "what": line["what"].removesuffix(" to f16")} for line in bench
              if line["what"].startswith("dequantize") and line["what"].endswith("to f16")]
    put("cuda/dequantize", program, "{us} us, {share:%}", shares,
        without_m(in_order(list(cuda_rows(to_f16, "dequantize ", (0,), True, True)))))
    put("cuda/quantize", f"{program} out.json quantize", "{us} us, {share:%}", shares,
        without_m(in_order(list(cuda_rows(bench, "quantize f16 to ", (0,), True, True)))))
    put("cuda/packed", f"{program} out.json packed", "{us} us, {share:%}", shares, packed(bench))
    for name, size in (("cuda/layouts", 8192), ("cuda/layouts_4096", 4096)):
        put(name, f"{program} out.json repack", "{us}, {share:%}",
            ["from", "into", "us", "share"], repacked(bench, size))
    put("cuda/linear_1", program, "{us}, {share:%}", shares,
        without_m(in_order(list(cuda_rows(bench, "linear ", (1,), True, True)))))
    small = [line for line in bench if line["what"].endswith("x f16")]
    f32 = [line for line in bench if line["what"].endswith(" x f32")]
    few = ["weights", "m", "shape", "us"]
    put("cuda/linear_16", program, "{us}", few,
        in_order(list(cuda_rows(small, "linear ", (1, 2, 4, 8, 16, 32), False, False))))
    put("cuda/linear_f32", program, "{us}, {share:%}", [*few, "share"],
        in_order(list(cuda_rows(f32, "linear ", (4, 16), False, True))))
    put("cuda/checkpoint_16", f"{program} out.json layouts", "{us}, {share:%}",
        ["weights", "x", "m", "shape", "us", "share"], as_stored(bench))
    put("cuda/bytes_16", f"{program} out.json bytes", "{us}, {share:%}", [*few, "share"],
        ([row[0].replace(" row", ", one group a row"), *row[1:]] for row in
         in_order(cuda_rows(bench, "bytes ", (1, 4, 8, 16), False, True))))
    put("cuda/transposed", f"{program} out.json transposed", "{us}, {share:%}", [*few, "share"],
        in_order(transposed(bench)))
    for name, rows in many_rows(lines_of(folder, "rows")).items():
        put(f"cuda/{name}", ROWS, "{us}, {over_dense}", [*few, "over_dense"], in_order(rows))
    floors = {(line["what"].removeprefix("floor: read "), line["n"], line["k"]): line["us"]
              for line in bench if line["what"].startswith("floor: read ")}
    translated = [older(folder, code, floors) for code in ("80", "89")]
    put("cuda/older_16", "build/cuda-80/bench/bench_cuda out.json nofloors batch",
        "{us}, {share:%}", ["code", "weights", "m", "shape", "us", "share"],
        (row for few, _ in translated for row in few))
    put("cuda/older_256", "build/cuda-80/bench/bench_cuda_rows rows.json 120 256",
        "{us}, {over_dense}", ["code", "weights", "m", "shape", "us", "over_dense"],
        (row for _, many in translated for row in many))
    chain = lines_of(folder, "chain")
    put("cuda/chain", "build/cuda/bench/bench_cuda_chain out.json", "{us} us, {share:%}", shares,
        chains(chain))
    header, rows = layers(chain)
    put("cuda/layers", "build/cuda/bench/bench_cuda_chain out.json", "{us}", header, rows)
    put("cuda/experts", "build/cuda/bench/bench_cuda_experts experts.json", "{us} us, {share:%}",
        ["model", "weights", "shape", "us", "share"], experts(lines_of(folder, "experts")))
    put("peers/experts", "python3 bench/cuda/experts_peers.py experts-peers.json", "{us}",
        ["model", "by", "shape", "us"],
        experts_beside(lines_of(folder, "experts"), lines_of(folder, "experts-peers")))
    put("peers/cuda_torch", "python3 bench/cuda/peers.py peers.json", "{us}",
        ["peer", "m", "shape", "us"],
        ([line["what"].removeprefix("peer: "), line["m"], f"{line['n']}x{line['k']}",
          f"{line['us']:.1f}"] for line in lines_of(folder, "peers")
         if line["what"].startswith("peer: ") and line["m"] > 0))


def parts(folder, pattern):
    """The lines of all parts whose file matches."""
    for path in sorted(folder.glob(f"{pattern}.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            if text.startswith("{"):
                yield json.loads(text)


def spelled(name):
    """A bench's "nf4 b64 f32" as the CPU's pages say it: "NF4, groups of 64, f32 scales"."""
    plain = re.sub(r" (b?f16) x$", "", name)
    head, *rest = plain.split()
    words = [head.upper()]
    for word in rest:
        words.append(f"groups of {word[1:]}" if re.fullmatch(r"[bg]\d+", word) else
                     {"f32": "f32 scales", "nested": "nested scales"}.get(word, word))
    words = [word for word in words if word != "f16"]
    return ", ".join(words + ([name.removeprefix(plain).strip()] if name != plain else []))


def cells_of(lines, row_of, column_of, cell_of):
    """(header of the columns, rows), both in the order of the lines; the cells of one place, of
    several shapes, stand side by side, "-" where a shape was not measured."""
    rows, columns, shapes = {}, [], []
    for line in lines:
        column, shape = column_of(line), (line.get("n"), line.get("k"))
        columns += [column] * (column not in columns)
        shapes += [shape] * (shape not in shapes)
        rows.setdefault(row_of(line), {}).setdefault(column, {})[shape] = cell_of(line)

    def cell(found):
        return ", ".join(found.get(shape, "-") for shape in shapes) if found else ""
    return columns, ([*row, *(cell(cells.get(column)) for column in columns)]
                     for row, cells in rows.items())


def three_digits(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def ratio(line):
    return f"{line['ratio']:.2f}"


def threads_of(line):
    return f"{line['threads']} thread{'s' * (line['threads'] > 1)}"


def products(folder, pattern):
    """Lines of products with one mode after the other, shapes in the pages' order."""
    lines = [line for mode in ("exact", "int8", "bf16")
             for line in parts(folder, pattern.format(mode=mode))]
    return sorted(lines, key=lambda line: ON_CPU.index((line["n"], line["k"]))
                  if (line["n"], line["k"]) in ON_CPU else len(ON_CPU))


def take_cpu_products(folder, put):
    def take(name, command, names, lines, row_of, column_of, cell_of):
        columns, rows = cells_of(lines, row_of, column_of, cell_of)
        put(name, f"{LINEAR} {command}", [*names, *columns], rows)

    modes = ("exact", "int8", "bf16")
    one_row = [line for line in products(folder, "{mode}_*x*_*") if line["place"] == "dram"]
    take("linear_1", "--mode MODE --threads N", ["mode", "weights"],
         sorted(one_row, key=lambda line: (modes.index(line["mode"]), line["threads"])),
         lambda line: (line["mode"], spelled(line["case"])), threads_of, ratio)
    for name, command, pattern, cell in (
            ("many_rows", "--mode MODE --m M --place l3", "m[15]*_{mode}",
             lambda line: f"{line['GFLOP/s']:.0f}"),
            ("l2", "--place l2 --mode MODE", "l2_{mode}", lambda line: f"{line['GB/s']:.0f}"),
            ("avx2", "--isa avx2 --mode MODE", "avx2_{mode}_*", ratio)):
        take(name, command, ["weights"], sorted(products(folder, pattern), key=lambda line: (
            line["m"], modes.index(line["mode"]))), lambda line: (spelled(line["case"]),),
            lambda line: line["mode"] + (f", {line['m']} rows" if line["m"] > 1 else ""), cell)
    layouts = {(line["case"], line["layout"]): line for line in parts(folder, "layout_*")}
    take("layouts", "--layout LAYOUT", ["weights"], layouts.values(),
         lambda line: (spelled(line["case"]),), lambda line: line["layout"].upper(), ratio)


def take_cpu(folder, data, prefix):
    machine = json.loads((folder / "machine.txt").read_text(encoding="utf-8"))
    about = {"machine": f"{machine['cpu']}, {machine['cores']} cores",
             "commit": f"{machine['commit']}, {machine['time'][:10]}"}

    def put(name, command, header, rows):
        store(data, f"cpu/{prefix}{name}", {**about, "command": command}, header, rows)

    take_cpu_products(folder, put)
    for operation in ("dequantize", "repack", "quantize"):
        put(operation, f"qk_bench_cpu_dequantize --op {operation}",
            ["weights", "to", "GB/s written", "ratio to the floor"],
            ([line["case"], line["to"], f"{line['written GB/s']:.1f}", ratio(line)]
             for line in parts(folder, operation)))
    columns, rows = cells_of(
        [line for mode in ("exact", "int8") for line in parts(folder, f"experts_{mode}_*")],
        lambda line: (line["mode"], threads_of(line)),
        lambda line: f"{line['tokens']} token{'s' * (line['tokens'] > 1)}",
        lambda line: three_digits(line["us"] / 1000))
    put("experts", "qk_bench_cpu_experts --model Qwen3 --mode MODE --threads N",
        ["ms", "threads", *columns], rows)
    columns, rows = cells_of(
        sorted(parts(folder, "peers_*"), key=lambda line: (
            line["threads"], line["m"], ON_CPU.index((line["n"], line["k"])))),
        lambda line: (line["peer"],),
        lambda line: (f"{line['m']} row{'s' * (line['m'] > 1)}, {threads_of(line)}, "
                      f"{'share of the floor' if line['m'] == 1 else 'GFLOP/s'}"),
        lambda line: ratio(line) if line["m"] == 1 else f"{line['GFLOP/s']:.0f}")
    put("peers", "bench/cpu_peers.py", ["product", *columns],
        sorted(rows, key=lambda row: not row[0].startswith("qk")))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("backend", choices=("cuda", "cpu"))
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="instead of the pages'")
    parser.add_argument("--prefix", default="", help="of the results' names (cpu)")
    options = parser.parse_args()
    if options.backend == "cuda" and options.prefix:
        parser.error("--prefix: is of the CPU's results alone")
    if options.backend == "cuda":
        take_cuda(options.results, options.data)
    else:
        take_cpu(options.results, options.data, options.prefix)


if __name__ == "__main__":
    main()
