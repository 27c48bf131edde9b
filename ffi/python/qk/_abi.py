"""qk's C interface by ctypes: constants, structs and functions, all from the pinned layout.json.

Nothing here is written by hand twice: argument and result types of every function, the fields of
every struct and the value of every constant come from the file that C, Rust and Go check
themselves against. A struct whose size or offsets ctypes sees differently stops the import.
"""
from __future__ import annotations

import ctypes
import json
import os
import re
from pathlib import Path
from typing import Any

_HERE = Path(__file__).resolve().parent
_SCALARS: dict[str, Any] = {
    "int8_t": ctypes.c_int8, "int32_t": ctypes.c_int32, "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "size_t": ctypes.c_size_t,
    "float": ctypes.c_float, "double": ctypes.c_double, "char": ctypes.c_char,
}


def _read_layout() -> dict[str, Any]:
    """The packaged file, or the repository's own where the package is not installed."""
    places = [_HERE / "layout.json", _HERE.parent.parent.parent / "tests" / "abi" / "layout.json"]
    for path in places:
        if path.is_file():
            return json.loads(path.read_text())  # type: ignore[no-any-return]
    raise ImportError(f"qk: layout.json is neither {places[0]} nor {places[1]}")


LAYOUT = _read_layout()
CONSTANTS: dict[str, int] = LAYOUT["constants"]
STRUCTS: dict[str, Any] = {}


def _type_of(text: str) -> Any:
    """ctypes' type for a type of C as layout.json spells it."""
    array = re.match(r"(.*)\[(\w+)\]$", text)
    if array and "(" not in text:
        count = int(array[2]) if array[2].isdigit() else CONSTANTS[array[2]]
        return _type_of(array[1]) * count
    if text == "void":
        return None
    if text == "const char *":
        return ctypes.c_char_p
    if "*" in text:  # handles, structs, arrays and callbacks: an address, never an int
        return ctypes.c_void_p
    if text in STRUCTS:
        return STRUCTS[text]
    return _SCALARS[LAYOUT["types"].get(text, text)]


def _make_structs() -> None:
    if ctypes.sizeof(ctypes.c_void_p) != LAYOUT["pointer_bytes"]:
        raise ImportError("qk: layout.json is of a machine with another size of pointers")
    for name, pinned in LAYOUT["structs"].items():
        fields = [(field, _type_of(where["type"])) for field, where in pinned["fields"].items()]
        struct = type(name, (ctypes.Structure,), {"_fields_": fields})
        for field, where in pinned["fields"].items():
            seen = getattr(struct, field)
            if (seen.offset, seen.size) != (where["offset"], where["bytes"]):
                raise ImportError(f"qk: {name}.{field} lies elsewhere for this Python")
        if ctypes.sizeof(struct) != pinned["bytes"]:
            raise ImportError(f"qk: {name} has another size for this Python")
        STRUCTS[name] = struct


def _open(name: str) -> ctypes.CDLL:
    """The folder in QK_LIBRARY_DIR, else the wheel's own library, else the system's."""
    file = f"{name}.so.{CONSTANTS['QK_ABI_VERSION']}"
    folder = os.environ.get("QK_LIBRARY_DIR")
    if folder:
        return ctypes.CDLL(os.path.join(folder, file))
    packaged = _HERE / file
    return ctypes.CDLL(str(packaged) if packaged.is_file() else file)


class Library:
    """Every function of the headers as an attribute, with its types set."""

    def __init__(self) -> None:
        libraries = {"qk.h": _open("libqk"), "qk_io.h": _open("libqk_io")}
        for name, pinned in LAYOUT["functions"].items():
            function = getattr(libraries[pinned["header"]], name)
            function.restype = _type_of(pinned["returns"])
            function.argtypes = [_type_of(kind) for _, kind in pinned["arguments"]]
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"qk.h and qk_io.h have no {name}")


def brief(function: Any) -> Any:
    """The same function without the turn that ctypes gives to other threads of Python, which takes
    longer than wrapping memory does."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    return ctypes.PYFUNCTYPE(function.restype, *function.argtypes)(address)


def names(prefix: str) -> dict[str, int]:
    """{"nf4": 17, ...} of the constants QK_<prefix>_*."""
    start = f"QK_{prefix}_"
    return {name[len(start):].lower(): value for name, value in CONSTANTS.items()
            if name.startswith(start)}


def _enumerators(prefix: str, *not_values: str) -> dict[str, int]:
    return {name: value for name, value in names(prefix).items() if name not in not_values}


_make_structs()
lib: Any = Library()
FORMATS = _enumerators("FORMAT")
LAYOUTS = _enumerators("LAYOUT")
GROUPINGS = _enumerators("GROUPING")
PLANES = _enumerators("PLANE", "count")
DIALECTS = _enumerators("DIALECT")
DTYPES = _enumerators("DTYPE")
FORMAT_NAMES = {value: name for name, value in FORMATS.items()}
LAYOUT_NAMES = {value: name for name, value in LAYOUTS.items()}
