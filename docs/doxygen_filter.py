#!/usr/bin/env python3
"""Shows a header's plain comments to Doxygen: its comments need no markup of their own.

A comment above a declaration becomes /** ... */, one behind code becomes /**< ... */, a ruled line
(/* ---- title ---- */) opens a group, and the file's first comment is left to the page around it.
A type of fixed width and the enum of its values are shown as one; values without a type as macros.
"""
import re
import sys

COMMENT = re.compile(r"/\*.*?\*/", re.S)
RULE = re.compile(r"/\* -{2,} (.*?) -{2,}(?:\n.*?)?\s*\*/", re.S)
TYPED = re.compile(r"typedef int32_t (\w+);[ \t]*((?:/\*(?:(?!\*/).)*\*/)?)\s*\nenum \{", re.S)
UNTYPED = re.compile(r"^enum \{([^}\n]*)\};$", re.M)
VALUE = re.compile(r"(\w+) = (\S+)( /\*.*?\*/)?,?")
SPECIAL = re.compile(r"([\\@<>#%&$])")


def group(title, name):
    title = title.split(":")[0].strip()
    label = f"{name}_{re.sub(r'[^a-z0-9]+', '_', title.lower()).strip('_')}"
    return f"/** @defgroup {label} {title}\n@{{ */"


def main():
    path = sys.argv[1]
    name = path.rsplit("/", 1)[-1].removesuffix(".h")
    text = open(path, encoding="utf-8").read()
    text = COMMENT.sub("", text, count=1)  # what the page says in full
    text = TYPED.sub(r"\2\nenum \1 {", text)
    text = UNTYPED.sub(lambda match: VALUE.sub(r"#define \1 \2\3\n", match[1]), text)
    out, at = group("library", name), 0
    for match in COMMENT.finditer(text):
        out += text[at : match.start()]
        at = match.end()
        rule = RULE.match(match.group())
        if rule:
            out += "/** @} */ " + group(rule.group(1), name)
            continue
        body = SPECIAL.sub(r"\\\1", match.group()[2:-2])
        line = out.rfind("\n") + 1
        before = out[line:]
        if before.rstrip().endswith("{"):  # a struct's or enum's own comment
            out = out[:line] + f"/**{body}*/ {before}"
        else:
            out += ("/**<" if before.strip() else "/**") + body + "*/"
    out += text[at:]
    end = out.rfind("#ifdef __cplusplus")  # the closing brace of extern "C"
    sys.stdout.write(out[:end] + "/** @} */\n" + out[end:])


main()
