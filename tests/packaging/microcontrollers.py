"""The folders for ESP-IDF, Zephyr, Arduino and PlatformIO, as tools/amalgamate fills them: their
metadata say the version and name what is there, and the two files compile alone. Where a platform's
own tool is installed, it makes its package of the folder.

    microcontrollers.py ROOT CXX
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT, CXX = pathlib.Path(sys.argv[1]), sys.argv[2]
VERSION = re.search(r"project\(qk VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
METADATA = {"arduino": "library.properties", "esp-idf": "idf_component.yml",
            "platformio": "library.json", "zephyr": None}  # a module has no version


def fill(name, folder):
    subprocess.run([ROOT / "tools/amalgamate", folder, "--package", name], check=True)
    for file in folder.rglob("*"):
        assert not file.is_file() or "@" + "VERSION@" not in file.read_text(), file
    for file in folder.rglob("CMakeLists.txt"):
        for source in re.findall(r"[\w./]*src/qk_gru\.cpp", file.read_text()):
            assert (file.parent / source).is_file(), (file, source)
    if METADATA[name]:
        assert VERSION in (folder / METADATA[name]).read_text(), name


def check_metadata(folder):
    library = json.loads((folder / "platformio/library.json").read_text())
    assert (library["name"], library["version"]) == ("qk_gru", VERSION)
    assert (folder / "platformio" / library["build"]["srcDir"] / library["headers"]).is_file()
    lines = (folder / "arduino/library.properties").read_text().splitlines()
    properties = dict(line.split("=", 1) for line in lines)
    for key in ("name", "version", "author", "maintainer", "sentence", "paragraph", "category",
                "architectures", "includes"):
        assert properties[key], key
    module = (folder / "zephyr/zephyr/module.yml").read_text()
    for key, place in re.findall(r"(cmake|kconfig): (\S+)", module):
        assert (folder / "zephyr" / place).exists(), key


def check_sources(folder):
    includes = set()
    for file in (folder / "esp-idf/src").iterdir():
        includes.update(re.findall(r"#\s*include (\S+)", file.read_text()))
    assert includes == {"<stddef.h>", "<stdint.h>", '"qk_gru.h"'}, includes
    source = folder / "arduino/src/qk_gru.cpp"
    strict = ["-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wundef", "-Werror",
              "-fsyntax-only"]
    compilers = [[CXX]]
    if shutil.which("arm-none-eabi-g++"):
        compilers += [["arm-none-eabi-g++", "-mthumb", "-mcpu=cortex-" + core]
                      for core in ("m0plus", "m4", "m55")]
    for compiler in compilers:
        for more in ([], ["-DQK_GRU_8_BIT"]):
            subprocess.run([*compiler, "-std=c++17", *strict, *more, source], check=True)
    old = subprocess.run([CXX, "-std=c++11", "-fsyntax-only", source], capture_output=True,
                         text=True)
    assert "compile it with -std=c++17 or newer" in old.stderr, old.stderr
    for language, standard in (("c", "c99"), ("c", "c17"), ("c++", "c++11"), ("c++", "c++20")):
        subprocess.run([CXX, "-x", language, "-std=" + standard, *strict,
                        source.with_suffix(".h")], check=True)


with tempfile.TemporaryDirectory() as place:
    folder = pathlib.Path(place)
    for name in METADATA:
        fill(name, folder / name)
    check_metadata(folder)
    check_sources(folder)
    if shutil.which("compote"):
        subprocess.run(["compote", "component", "pack", "--name", "qk_gru"],
                       cwd=folder / "esp-idf", check=True)
