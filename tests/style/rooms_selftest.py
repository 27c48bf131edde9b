"""tools/check_rooms catches every kind of planted violation, and accepts what the rules allow."""
import pathlib
import runpy
import sys
import tempfile

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_rooms"
problems = runpy.run_path(str(CHECK))["problems"]
HEADERS = ["include/qk.h", "include/qk_io.h", "src/base/b.hpp", "src/gru/g.hpp",
           "src/format/f.hpp", "src/backend/k.hpp", "src/object/o.hpp", "src/op/p.hpp",
           "src/api/a.hpp", "src/io/i.hpp", "kernels/cpu/shared.hpp", "kernels/cpu/linear/w.hpp",
           "kernels/cpu/x86_avx2/v.hpp",
           "kernels/cpu/arm_neon/n.hpp", "kernels/cuda/prim/c.cuh", "cli/table.hpp",
           "examples/c/e.h", "tests/reference/r.hpp", "tests/harness/h.hpp"]
ALLOWED = [("src/api/x.cpp", "op/p.hpp"), ("src/api/x.cpp", "base/b.hpp"),
           ("src/op/x.cpp", "object/o.hpp"), ("src/backend/x.cpp", "format/f.hpp"),
           ("src/base/x.cpp", "qk.h"), ("kernels/cpu/generic/x.cpp", "cpu/shared.hpp"),
           ("kernels/cpu/x86_avx2/x.cpp", "cpu/x86_avx2/v.hpp"),
           ("kernels/cpu/x86_avx2/x.cpp", "cpu/linear/w.hpp"),
           ("kernels/cpu/generic/x.cpp", "backend/k.hpp"), ("kernels/cuda/x.cu", "cuda/prim/c.cuh"),
           ("src/io/x.cpp", "qk_io.h"), ("src/io/x.cpp", "i.hpp"), ("cli/x.cpp", "table.hpp"),
           ("cli/x.cpp", "qk.h"), ("tests/reference/x.cpp", "r.hpp"),
           ("tests/kernel/x.cpp", "backend/k.hpp"), ("tests/kernel/x.cpp", "reference/r.hpp")]
FORBIDDEN = [("src/base/x.cpp", "format/f.hpp"), ("src/format/x.cpp", "gru/g.hpp"),
             ("src/gru/x.cpp", "format/f.hpp"), ("src/backend/x.cpp", "object/o.hpp"),
             ("src/object/x.cpp", "op/p.hpp"), ("src/op/x.cpp", "api/a.hpp"),
             ("src/op/x.cpp", "cpu/shared.hpp"), ("src/api/x.cpp", "cpu/shared.hpp"),
             ("src/backend/x.cpp", "qk_io.h"), ("src/object/x.cpp", "io/i.hpp"),
             ("kernels/cpu/generic/x.cpp", "object/o.hpp"),
             ("kernels/cpu/generic/x.cpp", "cuda/prim/c.cuh"),
             ("kernels/cpu/generic/x.cpp", "cpu/x86_avx2/v.hpp"),
             ("kernels/cpu/linear/x.hpp", "cpu/x86_avx2/v.hpp"),
             ("kernels/cpu/x86_avx2/x.cpp", "../arm_neon/n.hpp"),
             ("kernels/cuda/x.cu", "cpu/shared.hpp"), ("src/io/x.cpp", "base/b.hpp"),
             ("cli/x.cpp", "format/f.hpp"), ("cli/x.cpp", "io/i.hpp"),
             ("examples/c/x.c", "base/b.hpp"), ("ffi/go/x.c", "backend/k.hpp"),
             ("tests/reference/x.cpp", "qk.h"), ("tests/reference/x.cpp", "format/f.hpp"),
             ("tests/reference/x.cpp", "harness/h.hpp")]


def complaints(path, text):
    """What the checker says of a small tree with one more file."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in HEADERS:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("#pragma once\n")
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
        return "\n".join(problems(root.resolve()))


failures = []
for path, name in ALLOWED:
    if complaints(path, f'#include "{name}"\n'):
        failures.append(f"{path} -> {name}: refused, but allowed")
for path, name in FORBIDDEN:
    if path not in complaints(path, f'#include "{name}"\n'):
        failures.append(f"{path} -> {name}: accepted, but forbidden")
    if not name.startswith("..") and path not in complaints(path, f"#  include <{name}>\n"):
        failures.append(f"{path} -> <{name}>: accepted, but forbidden")
for text, wanted in [("x\n" * 400, ""), ("x\n" * 401, "lines"),
                     ("x" * 100 + "\n", ""), ("x" * 101 + "\n", "columns")]:
    said = complaints("src/base/x.hpp", text)
    if (wanted not in said) if wanted else said:
        failures.append(f"limit on {wanted or 'nothing'}: said {said!r}")
for path, refused in [("src/base/os/x.cpp", False), ("src/base/x.cpp", True), ("cli/x.cpp", True),
                      ("src/io/os_x.cpp", False), ("kernels/cpu/x.hpp", True)]:
    for line in ["#if defined(_WIN32)\n", "#include <sys/mman.h>\n"]:
        if bool(complaints(path, line)) != refused:
            failures.append(f"{path}: {line.strip()}: {'accepted' if refused else 'refused'}")
print("\n".join(failures))
print(f"{len(ALLOWED)} allowed, {len(FORBIDDEN)} forbidden, {len(failures)} failed")
sys.exit(1 if failures else 0)
