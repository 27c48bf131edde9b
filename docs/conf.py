"""Sphinx: the C reference from the headers (Doxygen's XML) and the guides beside it."""
import pathlib
import re

root = pathlib.Path(__file__).parent.parent
project = "qk"
author = "the qk authors"
release = re.search(r"project\(qk VERSION ([0-9.]+)", (root / "CMakeLists.txt").read_text()).group(1)
extensions = ["breathe", "myst_parser"]
breathe_projects = {"qk": str(root / "build/docs/xml")}
breathe_default_project = "qk"
breathe_domain_by_extension = {"h": "c"}
breathe_show_define_initializer = True
breathe_show_enumvalue_initializer = True
myst_heading_anchors = 4
exclude_patterns = ["requirements.txt"]
html_theme = "furo"
html_title = f"qk {release}"
nitpicky = True
# What C itself and the system's headers declare.
nitpick_ignore_regex = [("c:identifier", r"u?int\d+_t|size_t|DLManagedTensorVersioned")]


def opening(header):
    """The comment that opens a header as Markdown: its rules become a list."""
    comment = re.match(r"/\*(.*?)\*/", (root / "include" / header).read_text(), re.S)[1]
    for line in comment.split("\n")[1:]:
        line = re.sub(r"([*_\[<])", r"\\\1", line[3:])
        line = re.sub(r"^  (\w+) +", r"- **\1.** ", line)
        yield re.sub(r"^   +", "  ", line)


def setup(app):
    def fill(app, name, source):
        source[0] = re.sub(r"\{opening of (\S+)\}", lambda match: "\n".join(opening(match[1])),
                           source[0])
    app.connect("source-read", fill)
