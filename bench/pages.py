#!/usr/bin/env python3
"""Writes the tables and plots of docs/performance.md, docs/measurements and README.md from results.

    bench/pages.py             rewrites what has changed
    bench/pages.py --check     names the pages that differ, and leaves with 1 if there are any

The results are docs/measurements/data/*/*.csv: lines "# key: value" (machine, commit, command,
cells), a header, rows. bench/take_results.py fills them from what the benches wrote. A page says

    <!-- table cuda/dequantize -->
    <!-- end -->

and the table stands between the two lines ("kernels" or "spills" instead of "table": what
pages_resources.py makes of it). A result with a column "shape" (or "into", a layout) gets a column
a shape; what stands before it names a row, what follows is put into the pattern "cells".
"""
import argparse
import csv
import pathlib
import re
import sys

import pages_plot
import pages_resources

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs/measurements/data"
IMAGES = ROOT / "docs/images"
MARKED = re.compile(r"(<!-- (table|kernels|spills) (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)

# The table and the plot that open docs/performance.md: one shape, and where each figure is stored.
SHAPE = "8192x8192"
COLUMNS = ("1", "4", "16", "64", "256", "4096")
ON_CUDA = (
    ("qk, U4 g128", (("cuda/linear_16", "U4 g128"), ("cuda/linear_4096", "U4 g128"))),
    ("qk, NF4 b64", (("cuda/linear_16", "NF4 b64"), ("cuda/linear_4096", "NF4 b64"))),
    ("cuBLASLt, dense f16", (("peers/cuda", "cuBLASLt, dense f16"),
                             ("cuda/linear_4096", "dense f16, cuBLASLt"))),
    ("Marlin, int4 g128", (("peers/cuda", "Marlin (vLLM), int4 g128"),)),
    ("Machete, AWQ g128", (("peers/cuda", "Machete (vLLM), AWQ g128"),)),
    ("bitsandbytes NF4, fused", (("peers/cuda", "bitsandbytes NF4 b64, fused"),)),
    ("bitsandbytes NF4, to f16 + cuBLAS",
     (("peers/cuda", "bitsandbytes NF4 b64, dequantize + dense"),)),
    ("llama.cpp Q4_0", (("peers/cuda", "llama.cpp Q4_0"),)))
ON_CPU = (  # rows of cpu/peers, one run of all
    ("qk exact, NF4 b64", "qk, nf4 b64 f32, exact"),
    ("qk int8 mode, NF4 b64", "qk, nf4 b64 f32, int8"),
    ("qk exact, U4 g128", "qk, u4 g128 f16, exact"),
    ("qk int8 mode, U4 g128", "qk, u4 g128 f16, int8"),
    ("ONNX Runtime, int8, b128", "MatMulNBits b128, int8"),
    ("ONNX Runtime, f32, b64", "MatMulNBits b64, f32 sums"),
    ("bitsandbytes NF4, bf16", "matmul_4bit nf4 packed, AVX-512 BF16"),
    ("PyTorch int4 b128, bf16", "int4 b128, bf16"),
    ("PyTorch, dense bf16", "dense bf16"))
# The bars that open README.md: one row of x, each project's best kernel of its kind.
BARS_CPU = (
    ("qk, int8 mode", "peers/cpu_qk", "1 thread", "int8"),
    ("qk, exact", "peers/cpu_qk", "1 thread", "exact"),
    ("BesTLA, int8", "peers/cpu_1", "share of floor", "gemv_4bit_u8s8_fp32 vnni b32"),
    ("XNNPACK, int8", "peers/cpu_1", "share of floor", "qd8-f32-qb4w 1x16c8 vnnigfni b128"),
    ("ik_llama.cpp, int8", "peers/cpu_1", "share of floor", "Q4_0_R8 M=1"),
    ("ONNX Runtime, int8", "peers/cpu_1", "share of floor", "MatMulNBits b128 CompInt8 zp M=1"),
    ("llama.cpp, int8", "peers/cpu_1", "share of floor", "Q4_K repack M=1"),
    ("bitsandbytes, bf16", "peers/cpu_1", "share of floor", "gemv_4bit cpu nf4 bf16 b64"),
    ("ONNX Runtime, f32", "peers/cpu_1", "share of floor", "MatMulNBits b64 CompFp32 M=1"))
BARS_CUDA = ("qk, U4 g128", "qk, NF4 b64", "Marlin, int4 g128", "llama.cpp Q4_0",
             "Machete, AWQ g128", "bitsandbytes NF4, fused", "cuBLASLt, dense f16")


def read(name):
    """(what is said about a result, its header, its rows)."""
    about, lines = {}, []
    for line in (DATA / f"{name}.csv").read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            key, value = line[2:].split(": ", 1)
            about[key] = value
        else:
            lines.append(line)
    header, *rows = csv.reader(lines)
    for row in rows:
        if len(row) != len(header):
            sys.exit(f"{name}: {len(row)} cells in {','.join(row)!r}, {len(header)} in the header")
    return about, header, rows


def cell(pattern, names, values):
    """The pattern's {names} filled in, {name:%} as a percentage; what has no value goes."""
    words = []
    for word in pattern.split(", "):
        name, percent = re.search(r"\{(\w+)(:%)?\}", word).groups()
        value = values[names.index(name)]
        if value:
            shown = f"{100 * float(value):.0f}%" if percent else value
            words.append(re.sub(r"\{.*\}", shown, word))
    return ", ".join(words)


def pivot_of(header):
    return next((name for name in ("shape", "into") if name in header), None)


def pivoted(about, header, rows):
    """A row for each key, a column for each shape; keys and shapes in the order of the data."""
    at = header.index(pivot_of(header))
    shapes = list(dict.fromkeys(row[at] for row in rows))
    cells = {}
    for row in rows:
        cells.setdefault(tuple(row[:at]), {})[row[at]] = cell(about["cells"], header[at + 1:],
                                                              row[at + 1:])
    return header[:at] + shapes, [[*key, *(found.get(shape, "") for shape in shapes)]
                                  for key, found in cells.items()]


def markdown(header, rows):
    numbers = [all(re.match(r"[\d.,%/ x-]*( us| to |$)", row[i]) for row in rows) and i > 0
               for i in range(len(header))]
    yield "| " + " | ".join(header) + " |"
    yield "|" + "|".join("---:" if number else "---" for number in numbers) + "|"
    before = None
    for row in rows:
        shown = ["" if i == 0 and len(row) > 2 and before and row[0] == before[0] and row[0] != ""
                 else text for i, text in enumerate(row)]
        yield "| " + " | ".join(shown) + " |"
        before = row


def table(name, kind="table"):
    about, header, rows = read(name)
    if kind in pages_resources.TABLES:
        header, *rows = pages_resources.TABLES[kind](header, rows)
    elif pivot_of(header) is not None:
        header, rows = pivoted(about, header, rows)
    program = about.get("command", "")
    said = {**about, "commit": f"commit {about.get('commit')}",
            "command": program if "'" in program else f"`{program}`"}
    where = "; ".join(said[key] for key in ("machine", "versions", "commit", "command")
                      if key in about)
    return "\n".join([*markdown(header, rows), "", f"<small>{where}</small>", ""])


def times(sources):
    """{m: microseconds} of one system at SHAPE; later sources win."""
    found = {}
    for name, system in sources:
        _, header, rows = read(name)
        for row in rows:
            line = dict(zip(header, row))
            if row[0] == system and line["shape"] == SHAPE:
                found[line["m"]] = line["us"]
    return found


def on_cpu(product):
    """{m: the share of the floor, or GFLOP/s} of one row of cpu/peers, on one thread."""
    _, _, rows = read("cpu/peers")
    share, eight, sixteen, many = next(row[1:] for row in rows if row[0].endswith(product))
    return {"1": f"{100 * float(share):.0f}%", "4": f"{eight} (m = 8)", "16": sixteen,
            "256": f"{many} (m = 512)"}


def share_of_floor(source, column, which):
    _, header, rows = read(source)
    shares = next(row for row in rows if which in row and
                  (source != "peers/cpu_qk" or row[1].startswith("NF4, groups of 64")))
    return f"{100 * float(shares[header.index(column)].split(',')[0]):.0f}%"


def front_table():
    rows = [["**H200: us**", *[""] * len(COLUMNS)]]
    for label, sources in ON_CUDA:
        found = times(sources)
        rows.append([label, *(found.get(m, "-") for m in COLUMNS)])
    rows.append(["**CPU: GFLOP/s**", *[""] * len(COLUMNS)])
    for label, product in ON_CPU:
        found = on_cpu(product)
        rows.append([label, *(found.get(m, "-") for m in COLUMNS)])
    return "\n".join([*markdown(["", *(f"m = {m}" for m in COLUMNS)], rows), ""])


def plot():
    lines = [(label, sorted((int(m), float(us)) for m, us in times(sources).items()))
             for label, sources in ON_CUDA]
    return pages_plot.drawing("One product on an H200: 8192 x 8192 weights, f16 x", "m, rows of x",
                              "us", lines)


def bars():
    cpu = [(name, share_of_floor(*where)) for name, *where in BARS_CPU]
    cuda = [(name, times(dict(ON_CUDA)[name])["1"]) for name in BARS_CUDA]
    return pages_plot.bars([
        ("4-bit weights times a vector: one CPU core",
         "share of what memory can deliver: longer is faster",
         [(name, float(share[:-1]), share) for name, share in cpu]),
        ("The same on an H200: 8192 x 8192", "microseconds: shorter is faster",
         [(name, float(us), f"{us} us") for name, us in cuda])])


def page(text):
    def fill(match):
        made = front_table() if match[3] == "front" else table(match[3], match[2])
        return f"{match[1]}\n{made}\n{match[4]}"
    return MARKED.sub(fill, text)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    made = {path: page(path.read_text(encoding="utf-8"))
            for path in (ROOT / "docs/performance.md", *sorted(DATA.parent.glob("*.md")))}
    used = {match[3] for text in made.values() for match in MARKED.finditer(text)}
    stored = {str(path.relative_to(DATA).with_suffix("")) for path in DATA.glob("*/*.csv")}
    made[IMAGES / "linear.svg"] = plot()
    made[IMAGES / "front.svg"] = bars()
    differ = {path: text for path, text in made.items()
              if not path.exists() or path.read_text(encoding="utf-8") != text}
    for path, text in differ.items():
        if check:
            print(f"{path.relative_to(ROOT)}: not what the stored results say; run bench/pages.py")
        else:
            path.write_text(text, encoding="utf-8")
            print(path.relative_to(ROOT))
    unused = sorted(stored - used)
    if unused:
        print(f"on no page: {', '.join(unused)}")
    sys.exit(1 if unused or check and differ else 0)


if __name__ == "__main__":
    main()
