"""README.md's C program compiles as C99 and as C++, runs, and says what is wrong.

    readme.py REPOSITORY BUILD CC CXX WORK [WRAPPER]
"""
import pathlib
import re
import subprocess
import sys

repository, build, cc, cxx, work = map(pathlib.Path, sys.argv[1:6])
work.mkdir(parents=True, exist_ok=True)
program, = re.findall(r"```c\n(.*?)```", (repository / "README.md").read_text("utf-8"), re.S)
source = work / "readme.c"
source.write_text(program, "utf-8")
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


for language in ([cc, "-std=c99"], [cxx, "-x", "c++", "-std=c++11"], [cxx, "-x", "c++",
                                                                      "-std=c++20"]):
    objects, binary = work / "readme.o", work / "readme"
    subprocess.run([*language, *STRICT, "-c", source, "-o", objects], check=True)
    subprocess.run([cc, objects, build / "libqk_io.a", build / "libqk.a", "-ljansson", "-lpthread",
                    "-lm", "-o", binary], check=True)
    for arguments in ([], [MODEL], [MODEL, "a", "b"]):
        expect(r"usage: \S+ CHECKPOINT LAYER\n", run(binary, 2, *arguments))
    expect(r".*cannot open.*\n", run(binary, 1, work / "missing", "a"))
    expect(r"layer: .*\n", run(binary, 1, MODEL, "missing"))
    expect(r"y\[0\] = -?[0-9.e-]+ of 96\n",
           run(binary, 0, MODEL, "model.layers.0.self_attn.q_proj"))
