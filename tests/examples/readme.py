"""The C programs of README.md and the guides compile as C99 and as C++, run, and say what is wrong;
parts of programs for microcontrollers compile with the files of tools/amalgamate.

    readme.py REPOSITORY BUILD CC CXX WORK [WRAPPER]
"""
import pathlib
import re
import subprocess
import sys

repository, build, cc, cxx, work = map(pathlib.Path, sys.argv[1:6])
work.mkdir(parents=True, exist_ok=True)
STRICT = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{repository}/include"]
MODEL = repository / "tests" / "golden" / "data" / "bnb_nf4"


def run(binary, code, *arguments):
    done = subprocess.run([binary, *arguments], capture_output=True, text=True)
    if done.returncode != code:
        sys.exit(f"{arguments}: exit {done.returncode}, not {code}: {done.stdout}{done.stderr}")
    return done.stdout if code == 0 else done.stderr


def expect(pattern, text):
    if not re.fullmatch(pattern, text):
        sys.exit(f"{text!r} is not {pattern}")


def programs(page):
    return re.findall(r"```c\n(.*?)```", page.read_text("utf-8"), re.S)


def builds(program):
    """The program as it comes from each language."""
    source, objects, binary = work / "program.c", work / "program.o", work / "program"
    source.write_text(program, "utf-8")
    for language in ([cc, "-std=c99"], [cxx, "-x", "c++", "-std=c++11"],
                     [cxx, "-x", "c++", "-std=c++20"]):
        subprocess.run([*language, *STRICT, "-c", source, "-o", objects], check=True)
        subprocess.run([cc, objects, build / "libqk_io.a", build / "libqk.a", "-ljansson",
                        "-lpthread", "-lm", "-o", binary], check=True)
        yield binary


def compiles_for_a_board(part):
    """Beside the model that `qk gru export --c` writes and features of the caller's own."""
    subprocess.run([repository / "tools" / "amalgamate", work], check=True, capture_output=True)
    source = work / "part.c"
    source.write_text("#include <stddef.h>\n#include <stdint.h>\nextern const uint8_t denoiser[];\n"
                      "extern const size_t denoiser_bytes;\nextern const int32_t feature[16];\n"
                      + part, "utf-8")
    subprocess.run([cc, "-std=c99", *STRICT, f"-I{work}", "-c", source, "-o", work / "part.o"],
                   check=True)


def loads_a_layer(program):
    for binary in builds(program):
        for arguments in ([], [MODEL], [MODEL, "a", "b"]):
            expect(r"usage: \S+ CHECKPOINT LAYER\n", run(binary, 2, *arguments))
        expect(r".*cannot open.*\n", run(binary, 1, work / "missing", "a"))
        expect(r".*layer: .*\n", run(binary, 1, MODEL, "missing"))
        expect(r"y\[0\] = -?[0-9.e-]+ of 96\n",
               run(binary, 0, MODEL, "model.layers.0.self_attn.q_proj"))


readme, = programs(repository / "README.md")
loads_a_layer(readme)
guides = {page.stem: programs(page) for page in (repository / "docs/guides").glob("*.md")}
loads_a_layer(guides.pop("load_and_multiply")[0])
for page, found in guides.items():
    for program in found:
        if '#include "qk_gru.h"' in program:
            compiles_for_a_board(program)
            print(f"{page}: compiles")
            continue
        for binary in builds(program):
            expect(r"[^\n]+\n", run(binary, 0))
            print(f"{page}: runs")
