#!/usr/bin/env python3
"""bitsandbytes' own tests on its own kernels and on qk's: fails where qk fails what those pass.

    bitsandbytes_own_tests.py [SOURCE] [-- PYTEST ARGUMENTS]

SOURCE: bitsandbytes' source at the installed version, whose folder tests/ is run; without it
QK_BITSANDBYTES_SOURCE, else the source distribution, where pip finds one. Needs PyTorch,
bitsandbytes and pytest. BNB_TEST_DEVICE says on which device ("cpu" by default, "cuda"). Half an
hour on two cores.
"""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections import Counter
from importlib.metadata import PackageNotFoundError, entry_points, version
from pathlib import Path

FILES = ["test_ops", "test_functional", "test_linear4bit", "test_autograd", "test_parametrize",
         "test_modules"]
PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def source_folder(given, wanted, work):
    """A folder that has tests/ of the installed version."""
    given = given or os.environ.get("QK_BITSANDBYTES_SOURCE")
    if given:
        if not (Path(given) / "tests" / "test_ops.py").is_file():
            sys.exit(f"{given}: has no tests/test_ops.py, must be bitsandbytes' source")
        found = re.search(r'__version__ = "(.*?)"',
                          (Path(given) / "bitsandbytes" / "__init__.py").read_text())[1]
        if found.split(".dev")[0] != wanted:
            print(f"note: {given} is {found}, installed is {wanted}")
        return Path(given)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:",
         "--dest", str(work), f"bitsandbytes=={wanted}"], capture_output=True, text=True)
    archives = list(Path(work).glob("bitsandbytes-*.tar.gz"))
    if done.returncode or not archives:
        skip(f"there is no source distribution of bitsandbytes {wanted}; clone its repository at "
             f"the tag {wanted} and give the folder, or set QK_BITSANDBYTES_SOURCE to it")
    shutil.unpack_archive(archives[0], work)
    return source_folder(next(Path(work).glob("bitsandbytes-*/")), wanted, work)


def entry_point(work):
    """A folder for PYTHONPATH that announces qk as an installed wheel does, where none is."""
    if any(point.name == "qk" for point in entry_points(group="bitsandbytes.backends")):
        return []
    group = re.search(r'entry-points."bitsandbytes.backends"\]\nqk = "(.*?)"',
                      PYPROJECT.read_text())
    folder = Path(work) / "installed" / "qk-0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: qk\nVersion: 0\n")
    (folder / "entry_points.txt").write_text(f"[bitsandbytes.backends]\nqk = {group[1]}\n")
    return [str(folder.parent)]


def results(name, work, path, arguments, **environment):
    """{test: "passed", "failed" or "skipped"} of one run."""
    report, log = Path(work) / f"{name}.xml", Path(work) / f"{name}.log"
    path = os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")])
    with open(log, "w") as out:
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "log_cli=false",
             "-o", "addopts=-m 'not slow and not benchmark and not deprecated'", "-W", "ignore",
             f"--junitxml={report}", *(arguments or [f"tests/{file}.py" for file in FILES])],
            cwd=Path(work) / "run", stdout=out, stderr=out,
            env={"BNB_TEST_DEVICE": "cpu", **os.environ, "PYTHONPATH": path,
                 "PYTHONDONTWRITEBYTECODE": "1", **environment})
    if not report.is_file():
        sys.exit(f"{name}: pytest did not run\n{log.read_text()[-3000:]}")
    found = {}
    for case in xml.parse(report).iter("testcase"):
        parts = {part.tag for part in case}
        state = "failed" if parts & {"failure", "error"} else \
            "skipped" if "skipped" in parts else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = state
    if "passed" not in found.values():
        sys.exit(f"{name}: no test passed\n{log.read_text()[-3000:]}")
    print(f"{name}: " + ", ".join(f"{count} {state}" for state, count in
                                  sorted(Counter(found.values()).items())), flush=True)
    return found


def main():
    end = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    given, arguments = sys.argv[1:end], sys.argv[end + 1:]
    try:
        wanted = version("bitsandbytes")
    except PackageNotFoundError:
        skip("bitsandbytes is not installed")
    for package in ("torch", "pytest"):
        if importlib.util.find_spec(package) is None:
            skip(f"{package} is not installed")
    with tempfile.TemporaryDirectory() as work:
        source = source_folder(given[0] if given else None, wanted, work)
        shutil.copytree(source / "tests", Path(work) / "run" / "tests")
        shutil.copy(source / "pyproject.toml", Path(work) / "run")
        path = entry_point(work)
        stock = results("bitsandbytes", work, path, arguments, QK_BITSANDBYTES="off")
        qks = results("with qk", work, path, arguments)
        taken = results("with qk, AVX512-BF16 kernels replaced", work, path,
                        arguments or ["tests/test_ops.py", "tests/test_functional.py",
                                      "tests/test_linear4bit.py", "-k", "4bit or 4Bit"],
                        QK_BITSANDBYTES_AVX512_BF16="qk")
        worse = sorted({name for run in (qks, taken) for name, state in run.items()
                        if state == "failed" and stock.get(name) != "failed"})
        for name in worse:
            print(f"FAILED with qk alone: {name}")
        for name in sorted(name for name, state in stock.items() if state == "failed"):
            print(f"failed without qk: {name}")
        sys.exit(bool(worse))


if __name__ == "__main__":
    main()
