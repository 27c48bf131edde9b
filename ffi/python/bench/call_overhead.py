"""What a qk_linear call costs from Python beyond the same call from C: n = k = 16, one thread.

    QK_LIBRARY_DIR=build/release PYTHONPATH=ffi/python python3 ffi/python/bench/call_overhead.py

Needs a C compiler for the floor. Exit 1 where a prepared call costs more than 5 us over C.
"""
import os
import subprocess
import sys
import tempfile
import timeit
from pathlib import Path

import numpy as np

import qk

GOAL_US = 5.0


def floor_us(libraries):
    """The same call in a loop of C, from the same library."""
    here = Path(__file__).resolve()
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "floor")
        subprocess.run(["cc", "-std=c99", "-O2", f"-I{here.parents[3] / 'include'}",
                        str(here.with_name("call_floor.c")), f"{libraries}/libqk.so",
                        f"-Wl,-rpath,{libraries}", "-o", program], check=True)
        return float(subprocess.run([program], check=True, capture_output=True,
                                    text=True).stdout) / 1000


def best_us(call, count=10000, rounds=15):
    return min(timeit.repeat(call, number=count, repeat=rounds)) / count * 1e6


def main():
    floor = floor_us(os.path.abspath(os.environ["QK_LIBRARY_DIR"]))
    w = qk.quantize(np.ones((16, 16), "f"), group_size=16)
    x, y = np.ones(16, "f"), np.empty(16, "f")
    layer = qk.Layer(w)
    with qk.Context(threads=1):
        ways = {"qk.prepare(x, w, out=y)()": qk.prepare(x, w, out=y),
                "qk.linear(x, w, out=y)": lambda: qk.linear(x, w, out=y),
                "qk.linear(x, w)": lambda: qk.linear(x, w), "layer(x)": lambda: layer(x),
                "w @ x": lambda: w @ x}
        times = {name: best_us(call) for name, call in ways.items()}
    print(f"{'C, qk_linear':28} {floor:6.2f} us")
    for name, us in times.items():
        print(f"{name:28} {us:6.2f} us   {us - floor:+6.2f} over C")
    worst = times["qk.prepare(x, w, out=y)()"] - floor
    print(f"prepared: {worst:.2f} us over C, goal {GOAL_US}")
    return 0 if worst <= GOAL_US else 1


if __name__ == "__main__":
    sys.exit(main())
