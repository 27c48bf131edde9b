#!/usr/bin/env python3
"""Draws docs/images/cpu_linear.svg: shares of the read floor, one row of x, weights in memory.

    plot_cpu.py RESULTS.jsonl OUT_FOLDER

RESULTS.jsonl: lines of qk_bench_cpu_linear and cpu_peers.py. Says so and leaves with 77 where
matplotlib is missing.
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

CASES = ("nf4 b64 f32", "nf4 b64 nested", "mxfp4", "nvfp4", "u4 g128 f16", "u4 g32 f16",
         "s8 g128 f16")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    bars = {}
    for text in open(sys.argv[1], encoding="utf-8"):
        line = json.loads(text)
        if line["bench"] == "peer":
            if line["m"] > 1 or line["peer"].startswith("qk"):
                continue
            name = line["peer"]
        elif line["place"] == "dram" and line["m"] == 1 and line["case"] in CASES:
            name = f"qk {line['mode']}, {line['case']}"
        else:
            continue
        bars.setdefault(name, {}).setdefault(line["threads"], []).append(line["ratio"])
    figure, axes = plt.subplots(figsize=(8, 0.4 * len(bars) + 1))
    for at, shares in enumerate(bars.values()):
        for threads, ratios in shares.items():
            middle = sorted(ratios)[len(ratios) // 2]
            place = at + (0.2 if threads > 1 else -0.2 if len(shares) > 1 else 0)
            axes.barh(place, middle, 0.38, color="C1" if threads > 1 else "C0")
            axes.plot([min(ratios), max(ratios)], [place] * 2, color="black", linewidth=1)
    axes.barh(0, 0, color="C0", label="1 thread")
    axes.barh(0, 0, color="C1", label="2 threads")
    axes.set_yticks(range(len(bars)), list(bars), fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("share of the read floor, of its own bytes: median and range of shapes",
                    fontsize=8)
    axes.margins(y=0.01)
    axes.axvline(1, color="gray", linewidth=1)
    axes.legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    out = pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "cpu_linear.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
