"""The binary interface as data: layout.json, which C, Python, Rust and Go check themselves against.

    layout.py --check INCLUDE_FOLDER LAYOUT.json CC FOLDER [RUNNER...]   exit 1 where they differ
    layout.py --update INCLUDE_FOLDER LAYOUT.json CC FOLDER              writes it from the headers
    layout.py --since RELEASED.json LAYOUT.json     exit 1 where a program of then would break now

    pointer_bytes   of the machine that wrote it
    handles         opaque structs, only ever behind a pointer
    types           {"qk_status": "int32_t", ...}: the widths of the codes
    constants       {"QK_OK": 0, ...}
    structs         {name: {"bytes", "fields": {name: {"offset", "bytes", "type"}}}}
    functions       {name: {"header", "returns", "arguments": [[name, type], ...]}}

Names and types come from the headers' text; values, sizes and offsets from a C program that is
generated, compiled with CC and run, so they are the compiler's own; and the same program asserts
that every function and field has the type that is written down. symbols.txt and symbols_io.txt
beside it list the functions of qk.h and qk_io.h for the linker's eyes.
"""
import json
import pathlib
import re
import subprocess
import sys

HEADERS = {"qk.h": "symbols.txt", "qk_io.h": "symbols_io.txt"}
VERSIONS = {"QK_VERSION_MAJOR", "QK_VERSION_MINOR", "QK_VERSION_PATCH"}
# Of what callers pass with a count of their own, and no struct has an array of: it may grow.
COUNTS = {"QK_PLANE_COUNT"}
# The caller says how large its own is: fields may be appended.
GROWING = {"qk_context_options", "qk_context_info", "qk_tensor_desc", "qk_product", "qk_plan",
           "qk_experts", "qk_trace", "qk_gru_model", "qk_gru_config", "qk_checkpoint_options",
           "qk_layer"}
SORTED = {"constants", "types", "functions"}  # handles and structs stay in the headers' order


def squeeze(text):
    """One blank between words, none elsewhere than before a pointer's stars."""
    text = re.sub(r"\s+", " ", text).strip()
    return re.sub(r"\s*(\*+)\s*(?=[^\w]|$)", r" \1", text)


def typed_name(declaration):
    """[name, type] of "const float *w_ih" or "int32_t shift[N]" or "void (*release)(void *p)"."""
    declaration = squeeze(declaration)
    function = re.match(r"(.*?)\(\s*\*\s*(\w+)\s*\)\s*(\(.*\))$", declaration)
    if function:
        return [function[2], f"{squeeze(function[1])} (*){function[3]}"]
    plain = re.match(r"(.*?)(\w+)\s*(\[[^]]*\])?$", declaration)
    return [plain[2], squeeze(plain[1]) + (plain[3] or "")]


def read(header):
    """What one header declares, without numbers."""
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(), flags=re.S)
    constants = re.findall(r"^#define\s+(Q[A-Z0-9_]+)[ \t]+[^\s{\\]", text, flags=re.M)
    for body in re.findall(r"\benum\s*{(.*?)}", text, flags=re.S):
        constants += [part.split("=")[0].strip() for part in body.split(",") if part.strip()]
    structs = {}
    for body, name in re.findall(r"typedef\s+struct\s+\w+\s*{(.*?)}\s*(\w+)\s*;", text, re.S):
        members = filter(None, map(str.strip, body.split(";")))
        structs[name] = dict(typed_name(member) for member in members)
    opened = len(re.findall(r"struct\s+\w+\s*{", text))
    if opened != len(structs):
        sys.exit(f"{header}: {opened} structs have a body, {len(structs)} were understood")
    functions = {}
    for returns, name, inside in re.findall(r"\bQK_API\b([^;()]*?)\b(qk_\w+)\s*\(([^;()]*)\)\s*;",
                                            re.sub(r"^#.*", "", text, flags=re.M)):
        arguments = [] if inside.strip() == "void" else list(map(typed_name, inside.split(",")))
        functions[name] = {"header": header.name, "returns": squeeze(returns),
                           "arguments": arguments}
    declared = len(re.findall(r"^QK_API\b", text, flags=re.M))
    if declared != len(functions):
        sys.exit(f"{header}: {declared} functions, {len(functions)} were understood")
    return {"handles": re.findall(r"typedef\s+struct\s+(\w+)\s+\1\s*;", text),
            "types": {name: base for base, name in
                      re.findall(r"typedef\s+(u?int\d+_t)\s+(\w+)\s*;", text)},
            "constants": dict.fromkeys(set(constants) - {"QK_API", "QK_H", "QK_IO_H"}, 0),
            "structs": structs, "functions": functions}


def program(layout):
    """The C program that prints every number and asserts every type."""
    lines = ["#include <stdio.h>", *(f'#include "{name}"' for name in HEADERS)]
    same = "_Static_assert(__builtin_types_compatible_p(__typeof__({}), {}), \"type of {}\");"
    for name, function in layout["functions"].items():
        types = ", ".join(kind for _, kind in function["arguments"]) or "void"
        lines.append(same.format("&" + name, f"{function['returns']} (*)({types})", name))
    for name, base in layout["types"].items():
        lines.append(same.format(f"({name})0", base, name))
    lines.append("int main(void) {")
    show = '    printf("%s %lld\\n", "{}", (long long)({}));'
    lines += [show.format(f"constants {name}", name) for name in layout["constants"]]
    for struct, fields in layout["structs"].items():
        lines.append(show.format(f"structs {struct}", f"sizeof({struct})"))
        for field, kind in fields.items():
            member = f"(({struct} *)0)->{field}"
            lines.append("    " + same.format(member, kind, f"{struct}.{field}"))
            lines.append(show.format(f"offset {struct} {field}", f"offsetof({struct}, {field})"))
            lines.append(show.format(f"bytes {struct} {field}", f"sizeof({member})"))
    return "\n".join([*lines, show.format("pointer", "sizeof(void *)"), "    return 0;", "}", ""])


def measure(include, compiler, folder, runner):
    layout = {"pointer_bytes": 0, "handles": [], "types": {}, "constants": {}, "structs": {},
              "functions": {}}
    for header in HEADERS:
        for kind, found in read(include / header).items():
            layout[kind] = layout[kind] + found if kind == "handles" else layout[kind] | found
    for kind in SORTED:
        layout[kind] = dict(sorted(layout[kind].items()))
    source, binary = folder / "layout.c", folder / "layout_program"
    folder.mkdir(parents=True, exist_ok=True)
    source.write_text(program(layout))
    subprocess.run([*compiler.split(), "-std=c11", f"-I{include}", source, "-o", binary],
                   check=True)
    output = subprocess.run([*runner, binary], check=True, capture_output=True, text=True).stdout
    layout["structs"] = {
        struct: {"bytes": 0, "fields": {field: {"offset": 0, "bytes": 0, "type": kind}
                                        for field, kind in fields.items()}}
        for struct, fields in layout["structs"].items()}
    for line in output.splitlines():
        kind, *where, value = line.split()
        if kind == "pointer":
            layout["pointer_bytes"] = int(value)
        elif kind == "constants":
            layout["constants"][where[0]] = int(value)
        elif kind == "structs":
            layout["structs"][where[0]]["bytes"] = int(value)
        else:
            layout["structs"][where[0]]["fields"][where[1]][kind] = int(value)
    return layout


def as_text(value, depth=0):
    """JSON with one constant, field or function a line: differences read well."""
    if depth < 4 and isinstance(value, dict) and "offset" not in value and "returns" not in value:
        inside = (f"{' ' * (depth + 1)}{json.dumps(key)}: {as_text(item, depth + 1)}"
                  for key, item in value.items())
        return "{\n" + ",\n".join(inside) + "\n" + " " * depth + "}"
    return json.dumps(value)


def broken(old, new):
    """What a program built against `old` relies on and `new` does not keep."""
    for kind in ("constants", "types", "functions"):
        for name, value in old[kind].items():
            now = new[kind].get(name)
            grown = name in COUNTS and now is not None and now > value
            if now != value and name not in VERSIONS and not grown:
                yield f"{name} was {value}, is {now}"
    for name, then in old["structs"].items():
        now = new["structs"].get(name, {"bytes": 0, "fields": {}})
        if now["bytes"] != then["bytes"] and not (name in GROWING and now["bytes"] > then["bytes"]):
            yield f"{name} had {then['bytes']} bytes, has {now['bytes']}"
        last = list(then["fields"])[-1] if then["fields"] else None
        for field, where in then["fields"].items():
            found = now["fields"].get(field)
            # A growing struct at the end of one that says how large the caller's is.
            if field == last and name in GROWING and where["type"] in GROWING and found is not None:
                found = {**found, "bytes": min(found["bytes"], where["bytes"])}
            if found != where:
                yield f"{name}.{field} was {where}, is {found}"


def compare(released, current):
    faults = list(broken(*(json.loads(pathlib.Path(path).read_text())
                           for path in (released, current))))
    print(*faults, sep="\n", end="\n" if faults else "")
    return 1 if faults else 0


def main(mode, include, expected, *rest):
    return compare(include, expected) if mode == "--since" else pin(mode, include, expected, *rest)


def pin(mode, include, expected, compiler, folder, *runner):
    include, expected = pathlib.Path(include), pathlib.Path(expected)
    layout = measure(include, compiler, pathlib.Path(folder), runner)
    files = {expected: as_text(layout) + "\n"}
    for header, symbols in HEADERS.items():
        files[expected.with_name(symbols)] = "".join(
            f"{name}\n" for name in layout["functions"]
            if layout["functions"][name]["header"] == header)
    if mode == "--update":
        for path, text in files.items():
            path.write_text(text)
        return 0
    different = [path for path, text in files.items() if text != path.read_text()]
    for path in different:
        here, there = files[path].splitlines(), path.read_text().splitlines()
        print(*[f"headers only: {x}" for x in here if x not in there], sep="\n")
        print(*[f"{path.name} only: {x}" for x in there if x not in here], sep="\n")
    if different:
        print("Only additions are allowed; then run layout.py --update")
        return 1
    print(*[f"{len(layout[kind])} {kind}" for kind in ("constants", "structs", "functions")],
          "as pinned")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
