#!/usr/bin/env python3
"""Draws docs/images/gru_speed.svg and gru_accuracy.svg.

    plot_gru.py SPEED.jsonl OUT_FOLDER
    plot_gru.py cuda BENCH.json CUDNN.json OUT_FOLDER     gru_speed_cuda.svg alone

SPEED.jsonl: lines of qk_bench_cpu_gru and gru_onnxruntime.py. BENCH.json, CUDNN.json: what
bench_cuda_gru and cuda/gru_cudnn.py wrote. The accuracy figures are the table of
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
    axes.set_xticks(range(len(table)), [name.replace(", ", ",\n") for name in table], fontsize=7)
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


def plot_cuda(lines, peers, path):
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.6))
    for panel, batch in zip(panels, (1, 64)):
        series = {}
        for line in lines:
            if line["batch"] == batch and line["steps"] > 100:
                series.setdefault(line["preset"], {})[line["h"]] = line["us_step"]
        best = series.setdefault("cuDNN f16, best", {})
        for line in peers:
            if line["batch"] == batch and line["steps"] > 1:
                best[line["h"]] = min(best.get(line["h"], float("inf")), line["us_step"])
        for name, points in series.items():
            panel.plot(*zip(*sorted(points.items())), marker="o", markersize=3, label=name,
                       linestyle="-" if name.startswith("W") else "--")
        sizes = sorted({line["h"] for line in lines})
        panel.set_xscale("log", base=2)
        panel.set_xticks(sizes, [str(size) for size in sizes])
        panel.set_ylim(bottom=0)
        panel.set(xlabel="h = c", title=f"batch {batch}")
        panel.grid(True, which="major", alpha=0.3)
    panels[0].set_ylabel("us a step")
    panels[0].legend(fontsize=7)
    save(figure, path)


def save(figure, path):
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    if len(sys.argv) == 5 and sys.argv[1] == "cuda":
        bench, cudnn = (json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
                        for path in sys.argv[2:4])
        return plot_cuda(bench, cudnn, pathlib.Path(sys.argv[4]) / "gru_speed_cuda.svg")
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
    out = pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    plot_speed(lines, out / "gru_speed.svg")
    plot_accuracy(out / "gru_accuracy.svg")


if __name__ == "__main__":
    main()
