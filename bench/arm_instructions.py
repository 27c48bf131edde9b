#!/usr/bin/env python3
"""Instructions that the Arm kernels take for 128 weights, counted under qemu: a stand-in for time
where there is no Arm processor. Exact and repeatable, but an instruction is not a cycle.

    arm_instructions.py [--build FOLDER] [--sets generic,neon,dotprod,i8mm] [--json]

Cross-builds qk_bench_arm_instructions (preset arm64) and runs it under `qemu-aarch64 -cpu max` once
for each set of instructions that the library may use. qemu logs every instruction (-singlestep -d
exec); those between two calls of qk_bench_mark() are a call of the library. A case runs on 32 and
on 64 rows of w (8 and 16 for the generic kernels), and what the rows more add is counted: what a
call costs by itself is left out ("a call" in --json). Skips (77) without qemu or cross compiler.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MARK = b"qk_bench_mark"
PREFIX = "/usr/aarch64-linux-gnu"


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def build(folder):
    def run(*command):
        subprocess.run(command, cwd=ROOT, check=True, stdout=sys.stderr)

    run("cmake", "--preset", "arm64", "-B", folder, "-DQK_BUILD_BENCH=ON")
    run("cmake", "--build", folder, "--target", "qk_bench_arm_instructions")
    return os.path.join(folder, "bench", "qk_bench_arm_instructions")


def segments(log):
    """Lines between the marks of a log, the mark's own calls left out."""
    counts, lines, rest = [], 0, b""
    while block := log.read(1 << 20):
        block = rest + block
        end = block.rfind(b"\n") + 1
        block, rest = block[:end], block[end:]
        *before, last = block.split(MARK)
        for part in before:
            counts.append(lines + part.count(b"\nTrace ") + part.startswith(b"Trace ") - 2)
            lines = 0
        lines += last.count(b"\nTrace ") + last.startswith(b"Trace ")
    return counts[1::2]


def run_set(qemu, binary, name):
    """(weights, work, instructions for 128 weights, instructions of a call itself)"""
    with tempfile.TemporaryDirectory() as folder:
        pipe = os.path.join(folder, "log")
        os.mkfifo(pipe)
        rows = "8" if name == "generic" else "32"
        command = [qemu, "-cpu", "max", "-L", PREFIX, "-singlestep", "-d", "exec,nochain",
                   "-D", pipe, binary, name, rows]
        counts = []

        def count():
            with open(pipe, "rb") as log:
                counts.extend(segments(log))

        reader = threading.Thread(target=count)
        reader.start()
        out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        reader.join()
    cases = [line.split("\t") for line in out.splitlines()]
    if len(counts) != 2 * len(cases):
        sys.exit(f"{len(counts)} counts for {len(cases)} cases: does the log name qk_bench_mark?")
    for (weights, work, units), once, twice in zip(cases, counts[::2], counts[1::2]):
        yield weights, work, (twice - once) / int(units), 2 * once - twice


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "arm64"))
    parser.add_argument("--sets", default="generic,neon,dotprod,i8mm")
    parser.add_argument("--json", action="store_true", help="an object a line instead of a table")
    options = parser.parse_args()
    qemu = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    if qemu is None:
        skip("qemu-aarch64 is not installed")
    if shutil.which("aarch64-linux-gnu-g++") is None:
        skip("aarch64-linux-gnu-g++ is not installed")
    binary = build(options.build)
    sets, table = options.sets.split(","), {}
    for name in sets:
        for weights, work, unit, call in run_set(qemu, binary, name):
            table.setdefault((work, weights), {})[name] = unit
            if options.json:
                print(json.dumps({"bench": "arm instructions", "set": name, "weights": weights,
                                  "work": work, "for 128 weights": round(unit, 1),
                                  "a call": call}), flush=True)
    if options.json:
        return
    print("| instructions for 128 weights | | " + " | ".join(sets) + " |")
    print("|---|---|" + "---:|" * len(sets))
    for (work, weights), row in sorted(table.items(), key=lambda item: item[0][0]):
        print(f"| {work} | {weights} | " + " | ".join(f"{row[name]:.0f}" for name in sets) + " |")


if __name__ == "__main__":
    main()
