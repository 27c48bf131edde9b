#!/usr/bin/env python3
"""Objects built for one instruction set may lend the linker nothing: no weak or COMDAT symbol
(the linker keeps one copy for all, perhaps the one older machines cannot run), and no global
function that another object could call without asking what the machine can do.

    check_isa.py NM OBJECT...
"""
import subprocess
import sys


def violations(nm, path):
    """Lines of `nm` that break the rule: anything global but the kernels' tables."""
    listing = subprocess.run([nm, "--demangle", "--defined-only", path], check=True,
                             capture_output=True, text=True).stdout
    for line in listing.splitlines():
        kind, name = line.split(maxsplit=2)[1:]
        if kind in "WwVvu" or (kind == "T" and not name.startswith("_GLOBAL_")):
            yield f"{path}: {kind} {name}"


def main():
    nm, objects = sys.argv[1], sys.argv[2:]
    if not objects:
        sys.exit("check_isa: no objects given")
    found = [text for path in objects for text in violations(nm, path)]
    print("\n".join(found) if found else f"{len(objects)} objects keep to themselves")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
