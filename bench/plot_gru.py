#!/usr/bin/env python3
"""Draws docs/images/gru_speed.svg and gru_accuracy.svg.

    plot_gru.py SPEED.jsonl OUT_FOLDER

SPEED.jsonl: lines of qk_bench_cpu_gru and gru_onnxruntime.py. The accuracy figures are the table of
docs/gru.md, which is read from there. Says so and leaves with 77 where matplotlib is missing.
"""
import json
import pathlib
import sys

try:
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"


def accuracy_table():
    """{setting: [dB of each network]} and the networks' names."""
    text = (DOCS / "gru.md").read_text(encoding="utf-8").split("## Accuracy")[1].split("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")]
            for line in text.splitlines() if line.startswith("|")]
    return {row[0]: [float(cell) for cell in row[1:-1]] for row in rows[2:]}, rows[0][1:-1]


def plot_accuracy(path):
    table, networks = accuracy_table()
    figure, axes = plt.subplots(figsize=(8, 3.6))
    width = 0.8 / len(networks)
    for i, network in enumerate(networks):
        places = [at + (i - (len(networks) - 1) / 2) * width for at in range(len(table))]
        axes.bar(places, [row[i] for row in table.values()], width, label=network)
    axes.set_xticks(range(len(table)), [name.replace(", ", ",\n", 1) for name in table], fontsize=7)
    axes.set_ylabel("signal over error, dB")
    axes.legend(fontsize=7)
    save(figure, path)


def plot_speed(lines, path):
    figure, axes = plt.subplots(figsize=(8, 4.2))
    series = {}
    for line in lines:
        if "peer" in line:
            if line["steps"] > 1:
                series.setdefault("ONNX Runtime, f32", []).append((line["h"], line["us"]))
            continue
        name = line["preset"]
        if name != "W16A16":
            series.setdefault(f"{name}, sequence", []).append((line["h"], line["sequence us"]))
        if name == "W8A8":
            series.setdefault("W8A8, streaming", []).append((line["h"], line["streaming us"]))
            for key in ("int8 float gates vnni", "int8 float gates avx2"):
                series.setdefault(key, []).append((line["h"], line[key + " us"]))
    for name, points in series.items():
        axes.plot(*zip(*sorted(points)), marker="o", markersize=3, label=name,
                  linestyle="-" if name.startswith("W") else "--")
    sizes = sorted({line["h"] for line in lines})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel("h = c")
    axes.set_ylabel("us a step, one thread, batch 1")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=7)
    save(figure, path)


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
    out = pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    plot_speed(lines, out / "gru_speed.svg")
    plot_accuracy(out / "gru_accuracy.svg")


if __name__ == "__main__":
    main()
