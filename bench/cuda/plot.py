#!/usr/bin/env python3
"""Draws docs/images/cuda_rows.svg and cuda_share.svg, and prints every result as a table.

    plot.py OUT_FOLDER RESULT.json [RESULT.json ...]

RESULT.json: what bench_cuda, bench_cuda_rows and peers.py wrote. Says so and leaves with 77 where
matplotlib is missing; the tables are printed anyway.
"""
import collections
import json
import pathlib
import sys

# What bench_cuda_rows calls a kind of weights, and what bench_cuda does, for up to 32 rows.
KINDS = {"u4 g128 packed": "linear u4 g128 f16 x f16", "nf4 b64 packed": "linear nf4 b64 f32 x f16"}
SHAPES = [(4096, 4096), (8192, 8192), (28672, 4096)]


def load(paths):
    """{what: {(n, k): {m: line}}} over all files."""
    results = collections.defaultdict(lambda: collections.defaultdict(dict))
    for path in paths:
        for line in json.loads(pathlib.Path(path).read_text(encoding="utf-8")):
            results[line["what"]][line["n"], line["k"]][line["m"]] = line
    return results


def table(results, what):
    """One Markdown table: a row for each m, a column for each shape."""
    shapes = sorted(results[what], key=lambda shape: (shape[0] * shape[1], shape))
    rows = sorted({m for shape in shapes for m in results[what][shape]})
    print(f"\n{what}\n\n| m | " + " | ".join(f"{n}x{k}" for n, k in shapes) + " |")
    print("|---|" + "---:|" * len(shapes))
    for m in rows:
        cells = []
        for shape in shapes:
            line = results[what][shape].get(m)
            share = line.get("share") if line else None
            cells.append("" if line is None else f"{line['us']:.1f}" +
                         (f", {share:.2f}" if share else ""))
        print(f"| {m} | " + " | ".join(cells) + " |")


def plot_rows(plt, results, path):
    """Time over m, a panel for each shape."""
    figure, panels = plt.subplots(1, len(SHAPES), figsize=(12, 4.6), sharex=True)
    for panel, shape in zip(panels, SHAPES):
        for what, small in KINDS.items():
            points = {**results[small][shape], **results[what][shape]}
            draw(panel, points, what.replace(" packed", ", qk"), "-")
        for what in results:
            if what.startswith("peer: ") and not what.endswith("dequantize f16"):
                draw(panel, results[what][shape], what.removeprefix("peer: "), "--")
        draw(panel, results["dense f16 cuBLASLt"][shape], "dense f16, cuBLASLt", ":")
        panel.set(xscale="log", yscale="log", xlabel="m, rows of x", title="{} x {}".format(*shape))
        panel.grid(True, which="major", alpha=0.3)
    panels[0].set_ylabel("us")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="lower center", ncols=4, fontsize=8)
    save(plt, figure, path, below=0.12)


def draw(panel, points, label, style):
    points = sorted((m, line["us"]) for m, line in points.items() if m > 0)
    if points:
        panel.plot(*zip(*points), style, marker="o", markersize=3, label=label)


def plot_share(plt, results, path):
    """Share of the floor over the bytes moved: products of one row, and dequantization."""
    figure, panels = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    for what in sorted(results):
        shares = sorted((line["bytes"] / 1e6, line["share"]) for shape in results[what].values()
                        for m, line in shape.items() if m <= 1 and line.get("share"))
        if what.startswith("linear ") and what.endswith("x f16"):
            panels[0].plot(*zip(*shares), marker="o", markersize=3,
                           label=what.removeprefix("linear ").removesuffix(" x f16"))
        elif what.startswith("dequantize") and what.endswith("to f16"):
            panels[1].plot(*zip(*shares), marker="o", markersize=3,
                           label=what.removeprefix("dequantize ").removesuffix(" to f16"))
    for panel, title in zip(panels, ("qk_linear, m = 1: share of the read floor",
                                     "qk_dequantize: share of the expand ceiling")):
        panel.set(xscale="log", xlabel="MB moved", title=title, ylim=(0, 1.1))
        panel.xaxis.set_minor_formatter(plt.NullFormatter())
        panel.grid(True, alpha=0.3)
        panel.legend(fontsize=7)
    save(plt, figure, path)


def save(plt, figure, path, below=0.0):
    figure.tight_layout(rect=(0, below, 1, 1))
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    results = load(sys.argv[2:])
    for what in sorted(results):
        table(results, what)
    try:
        import matplotlib
        matplotlib.use("svg")
        import matplotlib.pyplot as plt
    except ImportError as error:
        print(f"skipped the plots: {error}")
        sys.exit(77)
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    plot_rows(plt, results, out / "cuda_rows.svg")
    plot_share(plt, results, out / "cuda_share.svg")


if __name__ == "__main__":
    main()
