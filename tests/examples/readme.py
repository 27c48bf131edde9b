"""The C programs of README.md and the guides compile as C99 and as C++, run, and say what is wrong.

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
        for binary in builds(program):
            expect(r"[^\n]+\n", run(binary, 0))
            print(f"{page}: runs")
