"""Every path that the documentation names exists, every relative link leads to a file and to a
heading of it, every decision stands in the index, a product's way has as few files as
architecture.md says, and a language's guide names all of its examples."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOP = ("bench", "cli", "cmake", "docs", "examples", "ffi", "include", "kernels", "packaging", "src",
       "tests", "tools")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("ffi/*/README.md"),
                ROOT / "packaging/README.md"])
HISTORY = {ROOT / "CHANGELOG.md", ROOT / "docs/decisions.md"}  # name files that are gone
PATH = re.compile(r"`((?:%s)/[\w./*-]+)(?: [^`]*)?`" % "|".join(TOP))
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)]*))?\)")
EXAMPLES = {"docs/guides/c.md": "examples/c/*.c",
            "docs/guides/rust.md": "ffi/rust/qk/examples/*.rs",
            "docs/guides/go.md": "ffi/go/examples/*/main.go"}


def headings(page):
    """The anchors that a page's headings have."""
    text = re.sub(r"(?ms)^```.*?^```", "", page.read_text(encoding="utf-8"))
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        yield re.sub(r"[^\w\- ]", "", words).replace(" ", "-")


def missing(page):
    text = page.read_text(encoding="utf-8")
    for link, anchor in LINK.findall(text):
        target = page.parent / link if link else page
        if not target.exists():
            yield f"link to {link}"
        elif anchor and target.suffix == ".md" and anchor not in headings(target):
            yield f"link to {link}#{anchor}"
    if page in HISTORY:
        return
    for path in PATH.findall(text):
        if not any(ROOT.glob(path.rstrip("./").replace("NAME", "*"))):  # NAME: yours
            yield f"`{path}` is not in the tree"


def ways(text):
    """The lists under "## A product's way": at most 10 files before a kernel, 18 with any one."""
    part = text.split("## A product's way", 1)[-1].split("\n## ", 1)[0]
    backends = part.split("\n### ")[1:]
    if len(backends) < 2:
        yield "a product's way is not told for two backends"
    for backend in backends:
        name, *lists = re.split(r"\n\*\*", backend)
        files = {way.split("**")[0]: set(re.findall(r"^\d+\. `([^`]+)`", way, re.MULTILINE))
                 for way in lists}
        before = files.pop("Before the kernel:", set())
        if not 0 < len(before) <= 10:
            yield f"{name}: {len(before)} files before the kernel"
        for m in ("1", "16", "64", "4096"):
            own = [found for title, found in files.items() if m in re.findall(r"\d+", title)]
            if len(own) != 1 or not 0 < len(own[0] | before) <= 18:
                yield f"{name}, m = {m}: {[len(found | before) for found in own]} files"


def unnamed(guide, examples):
    text = (ROOT / guide).read_text(encoding="utf-8")
    for path in sorted(ROOT.glob(examples)):
        if str(path.relative_to(ROOT)) not in text:
            yield f"{guide}: does not name {path.relative_to(ROOT)}"


def unlisted(text):
    index, body = text.split("\n## 1. ", 1)
    numbers = {1, *map(int, re.findall(r"^## (\d+)\. ", body, re.MULTILINE))}
    listed = {int(number) for number in re.findall(r"\[(\d+)\. [^\]]+\]\(#", index)}
    return [f"decision {number} is in no topic" for number in sorted(numbers - listed)]


failures = [f"{page.relative_to(ROOT)}: {why}" for page in PAGES for why in missing(page)]
failures += unlisted((ROOT / "docs/decisions.md").read_text(encoding="utf-8"))
architecture = ROOT / "docs/architecture.md"
failures += [f"docs/architecture.md: {why}"
             for why in ways(architecture.read_text(encoding="utf-8"))]
failures += [why for guide, examples in EXAMPLES.items() for why in unnamed(guide, examples)]
print("\n".join(failures))
print(f"{len(PAGES)} pages, {len(failures)} failed")
sys.exit(1 if failures else 0)
