#!/usr/bin/env python3
"""Instructions and bytes a multiply-add of the integer GRU, on microcontrollers and aarch64.

    bench/gru_boards.py MAKE_MODEL FOLDER

Runs examples/mcu/run (qemu -icount: an instruction is a tick) and, for aarch64, the same two files
under qemu-aarch64, which logs each instruction. Writes docs/measurements/data/gru/boards.csv, where
rows of another library, measured elsewhere, stay as they are; bench/pages.py then writes the page.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
DATA = ROOT / "docs/measurements/data/gru/boards.csv"
BOARDS = ("m0", "m4", "m33", "m55", "rv32")
C, H = 32, 64
PRODUCTS = 3 * H * (C + H)
STEPS = 4


def on_boards(make_model, folder):
    """{(preset, board): instructions a step}, the build of the least."""
    lines = subprocess.run([ROOT / "examples/mcu/run", make_model, folder], check=True,
                           capture_output=True, text=True).stdout
    found = {}
    for board, preset, steps in re.findall(
            r"^(\w+) \w+ preset ([01]): .* about (\d+) instructions", lines, re.MULTILINE):
        found[preset, board] = min(int(steps), found.get((preset, board), 1 << 30))
    return found


def on_aarch64(folder, model):
    """Instructions between the two looks at the clock that examples/mcu/digest.cpp takes a step."""
    program = folder / "aarch64"
    mcu = ROOT / "examples/mcu"
    subprocess.run(["aarch64-linux-gnu-g++", "-std=c++20", "-O2", "-static", f"-I{folder}",
                    folder / "qk_gru.cpp", mcu / "digest.cpp", mcu / "host.cpp", "-o", program],
                   check=True)
    emulator = subprocess.Popen(["qemu-aarch64", "-singlestep", "-d", "exec,nochain", program,
                                 model], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    looks, count, was_clock = 0, 0, False
    for line in emulator.stderr:
        is_clock = b"no_clock" in line
        looks += is_clock and not was_clock
        was_clock = is_clock
        if looks == 2 * STEPS:
            break
        count += looks % 2 == 1 and not is_clock
    emulator.kill()
    emulator.wait()
    return count / STEPS


def main():
    make_model, folder = map(pathlib.Path, sys.argv[1:])
    boards = on_boards(make_model, folder)
    rows = []
    for preset, name in (("0", "W8A8"), ("1", "W8H16")):
        model = folder / f"preset{preset}.qkg"
        subprocess.run([make_model, preset, model], check=True, stdout=subprocess.DEVNULL)
        counts = [boards[preset, board] for board in BOARDS] + [on_aarch64(folder, model)]
        cells = [f"{count / PRODUCTS:.2f}" for count in counts]
        rows.append(",".join([f"GRU {name}", *cells, f"{model.stat().st_size / PRODUCTS:.2f}"]))
    before = DATA.read_text(encoding="utf-8").splitlines()
    head = [line for line in before if line.startswith(("#", "\"c = "))]
    others = [line for line in before if line not in head and not line.startswith("GRU ")]
    DATA.write_text("\n".join([*head, *rows, *others]) + "\n", encoding="utf-8")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
