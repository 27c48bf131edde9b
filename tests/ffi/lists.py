"""The lists of names through which Rust and Go check themselves, made from tests/abi/layout.json:
neither language can walk the constants and functions of C by itself.

    lists.py --check SOURCE_DIR     exit 1 where a committed list is not what layout.json gives
    lists.py --update SOURCE_DIR    writes them
"""
import json
import pathlib
import re
import sys

RUST, GO = "ffi/rust/qk-sys/tests/pinned/lists.rs", "ffi/go/internal/abi/abi.go"


def wrapped(names, indent):
    """Names and commas in lines of at most 98 columns."""
    lines, line = [], indent
    for name in names:
        if len(line) + len(name) + 1 > 98:
            lines.append(line.rstrip())
            line = indent
        line += name + ", "
    return "\n".join([*lines, line.rstrip()])


def rust(layout, io_header):
    """Two functions, so that the feature `io` can leave the second out."""
    in_io = lambda name: name in io_header
    text = "// Made by tests/ffi/lists.py from tests/abi/layout.json; do not edit.\n"
    for function, io in ("core_facts", False), ("io_facts", True):
        text += '#[cfg(feature = "io")]\n' if io else ""
        text += f"fn {function}(facts: &mut Facts) {{\n    pinned! {{ facts,\n"
        for kind in "constants", "functions":
            names = [name for name in layout[kind] if in_io(name) == io]
            text += f"        {kind} {{\n{wrapped(names, ' ' * 12)}\n        }}\n"
        for name, struct in layout["structs"].items():
            if in_io(name) == io:
                fields = wrapped(struct["fields"], " " * 12)
                text += f"        struct {name} {{\n{fields}\n        }}\n"
        text += "    }\n}\n"
    return text


def go(layout):
    text = """// Made by tests/ffi/lists.py from tests/abi/layout.json; do not edit.

// Package abi is what cgo makes of the headers, for the test beside it.
package abi

/*
#cgo pkg-config: --static qk_io
#include <qk_io.h>
*/
import "C"

import (
	"reflect"
	"unsafe"
)
"""
    for what, type_name, kind, value in [
            ("Constants by name.", "int64", "constants", "C.{0}"),
            ("Structs by name; reflection knows their fields.", "reflect.Type", "structs",
             "reflect.TypeOf(C.{0}{{}})"),
            ("Functions by name: the address of each, so that each is linked.", "unsafe.Pointer",
             "functions", "unsafe.Pointer(C.{0})")]:
        text += f"\n// {what}\nvar {kind.capitalize()} = map[string]{type_name}{{\n"
        widest = max(map(len, layout[kind]))
        for name in layout[kind]:
            blanks = " " * (widest - len(name) + 1)
            text += f'\t"{name}":{blanks}{value.format(name)},\n'
        text += "}\n"
    return text


def main(mode, source):
    source = pathlib.Path(source)
    layout = json.loads((source / "tests/abi/layout.json").read_text())
    words = lambda header: set(re.findall(r"\w+", (source / "include" / header).read_text()))
    io_header = words("qk_io.h") - words("qk.h")
    status = 0
    for name, text in (RUST, rust(layout, io_header)), (GO, go(layout)):
        path = source / name
        if mode == "--update":
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            print(f"{name} is not what layout.json gives: run tests/ffi/lists.py --update .")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
