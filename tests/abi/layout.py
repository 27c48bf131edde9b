"""The binary interface as data: every constant, and size and offset of every struct and field.

    layout.py --check HEADER LAYOUT.json CC FOLDER [RUNNER...]   compares; exit 1 where they differ
    layout.py --update HEADER LAYOUT.json CC FOLDER              writes the json from the header

symbols*.txt beside layout*.json lists the functions; it is compared and written along.

The names come from the header's text; their values from a C program that is generated, compiled
with CC and run, so they are the compiler's own. Bindings check themselves against the same json.
"""
import json
import pathlib
import re
import subprocess
import sys


def names_of(header):
    """Constants and {struct: [fields]} that a header declares."""
    text = re.sub(r"/\*.*?\*/", " ", header.read_text(), flags=re.S)
    constants = re.findall(r"^#define\s+(Q[A-Z0-9_]+)[ \t]+[^\s{\\]", text, flags=re.M)
    for body in re.findall(r"\benum\s*{(.*?)}", text, flags=re.S):
        constants += [part.split("=")[0].strip() for part in body.split(",") if part.strip()]
    structs = {}
    for body, name in re.findall(r"typedef\s+struct\s+\w+\s*{(.*?)}\s*(\w+)\s*;", text, re.S):
        structs[name] = []
        for member in filter(None, map(str.strip, body.split(";"))):
            function = re.search(r"\(\s*\*\s*(\w+)\s*\)", member)  # the first one is the member
            plain = re.search(r"(\w+)\s*(\[[^]]*\])?$", member)
            structs[name].append((function or plain)[1])
    opened = len(re.findall(r"struct\s+\w+\s*{", text))
    if opened != len(structs):
        sys.exit(f"{header}: {opened} structs have a body, {len(structs)} were understood")
    functions = re.findall(r"QK(?:_IO)?_API\b[^;]*?\b(qk_\w+)\s*\(", text)
    return sorted(set(constants) - {"QK_API", "QK_H"}), structs, sorted(functions)


def measure(header, compiler, folder, runner):
    """What the compiler makes of the names, by running a generated program."""
    constants, structs, functions = names_of(header)
    lines = ["#include <stdio.h>", f'#include "{header.name}"', "int main(void) {"]
    show = '    printf("%s %lld\\n", "{}", (long long)({}));'
    lines += [show.format(f"constant {name}", name) for name in constants]
    for struct, fields in structs.items():
        lines.append(show.format(f"size {struct}", f"sizeof({struct})"))
        for field in fields:
            offset, size = f"offsetof({struct}, {field})", f"sizeof((({struct} *)0)->{field})"
            lines.append(show.format(f"offset {struct} {field}", offset))
            lines.append(show.format(f"width {struct} {field}", size))
    lines += [show.format("pointer", "sizeof(void *)"), "    return 0;", "}", ""]
    source, program = folder / "layout.c", folder / "layout_program"
    folder.mkdir(parents=True, exist_ok=True)
    source.write_text("\n".join(lines))
    subprocess.run([*compiler.split(), "-std=c99", f"-I{header.parent}", source, "-o", program],
                   check=True)
    output = subprocess.run([*runner, program], check=True, capture_output=True, text=True).stdout
    layout = {"pointer_bytes": 0, "constants": {}, "structs": {}, "functions": functions}
    for line in output.splitlines():
        kind, *where, value = line.split()
        if kind == "pointer":
            layout["pointer_bytes"] = int(value)
        elif kind == "constant":
            layout["constants"][where[0]] = int(value)
        elif kind == "size":
            layout["structs"][where[0]] = {"bytes": int(value), "fields": {}}
        else:
            field = layout["structs"][where[0]]["fields"].setdefault(where[1], {})
            field["offset" if kind == "offset" else "bytes"] = int(value)
    return layout


def main(mode, header, expected, compiler, folder, *runner):
    header, expected = pathlib.Path(header), pathlib.Path(expected)
    layout = measure(header, compiler, pathlib.Path(folder), runner)
    text = json.dumps(layout, indent=1) + "\n"
    symbols = expected.with_name(expected.stem.replace("layout", "symbols") + ".txt")
    listed = "\n".join(layout["functions"]) + "\n"
    if mode == "--update":
        expected.write_text(text)
        symbols.write_text(listed)
        return 0
    if text == expected.read_text() and listed == symbols.read_text():
        print(*[f"{len(layout[kind])} {kind}" for kind in ("constants", "structs", "functions")],
              "as pinned")
        return 0
    here, there = text.splitlines(), expected.read_text().splitlines()
    print(*[f"header only: {x}" for x in here if x not in there], sep="\n")
    print(*[f"json only: {x}" for x in there if x not in here], sep="\n")
    print(f"{expected} or {symbols.name} differs. Only additions are allowed; then run "
          "layout.py --update")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
