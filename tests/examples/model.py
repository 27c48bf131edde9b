"""The small model of examples/model: its files, its text and its answers.

    model.py files|text|answers|training|accuracy REPOSITORY WORK

QK_COMMAND and QK_LLAMA name the programs. training needs PyTorch, accuracy numpy and qk's package.
"""
import hashlib
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

repository, work = map(pathlib.Path, sys.argv[2:4])
example = repository / "examples" / "model"
sys.path.insert(0, str(example))
import make_text  # noqa: E402
work.mkdir(parents=True, exist_ok=True)

STORY = "Mira is in the garden. Tam has 4 red pens. Luna has 3 blue hats."
ANSWERS = {
    "Where is Mira?": "Mira is in the garden.",
    "Who is in the garden?": "Mira is in the garden.",
    "What does Tam have?": "Tam has 4 red pens.",
    "Who has the hats?": "Luna has the hats.",
    "How many pens does Tam have?": "Tam has 4 pens.",
    "Which color are the pens?": "The pens are red.",
    "How many things do Tam and Luna have?": "4 + 3 = 7.",
    "Where is Zora?": "I do not know.",
}


def run(*arguments, code=0, **options):
    done = subprocess.run([str(a) for a in arguments], capture_output=True, text=True, **options)
    if done.returncode != code:
        sys.exit(f"{arguments}: exit {done.returncode}, not {code}: {done.stdout}{done.stderr}")
    return done.stdout


def expect(what, found, wanted):
    if found != wanted:
        sys.exit(f"{what}: {found!r}, not {wanted!r}")


def with_module(name):
    return importlib.util.find_spec(name) is not None


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def files():
    """Sound, small, and the 4-bit files are what the command in README makes of the f16 ones."""
    qk = os.environ["QK_COMMAND"]
    for folder in ("f16", "int4"):
        size = sum(file.stat().st_size for file in (example / folder).iterdir())
        if size >= 1_000_000:
            sys.exit(f"{folder}: {size} bytes")
        expect(folder, json.loads(run(qk, "verify", example / folder, "--json"))["sound"], True)
    command, = re.findall(r"^    (qk quantize f16 int4 .*)$",
                          (example / "README.md").read_text("utf-8"), re.M)
    run(qk, *command.split()[1:2], example / "f16", work / "int4", *command.split()[4:], "--force")
    for name in ("model.safetensors", "config.json"):
        expect(f"int4/{name} of {command}", (work / "int4" / name).read_bytes() ==
               (example / "int4" / name).read_bytes(), True)


def text():
    """The same text from every Python, and every answer follows from the facts."""
    stories = make_text.stories(1000, 1)
    digest = hashlib.sha256("".join(make_text.text(*s) for s in stories).encode()).hexdigest()
    expect("1000 stories", digest, DIGEST)
    expect("the command's", run(sys.executable, example / "make_text.py", 5, 3),
           "".join(make_text.text(*s) + "\n" for s in make_text.stories(5, 3)))
    seen = set()
    for told, asked in stories:
        for kind, question, answer in asked:
            seen.add(kind)
            if kind == "unknown":
                expect(told + question, any(word in told for word in question[:-1].split()
                                            if word[0].isupper() and word not in
                                            ("Where", "What")), False)
            elif kind == "sum":
                one, two = (int(number) for number in re.findall(r"has (\d)", told))
                expect(told + question, answer, f"{one} + {two} = {one + two}.")
            else:
                words = answer[:-1].replace("The ", "").replace(" the ", " ").split()
                missing = [w for w in words if w not in re.split(r"[ .]", told) and w != "are"]
                expect(told + question, missing, [])
    expect("kinds of questions", seen, set(make_text.KINDS))


def answers():
    """examples/c/llama.c, greedy: exact text from each file, in each mode."""
    qk, llama = os.environ["QK_COMMAND"], os.environ["QK_LLAMA"]
    run(qk, "quantize", example / "f16", work / "nf4", "--format", "nf4", "--force")
    run(qk, "convert", example / "int4", work / "awq", "--to", "awq", "--force")
    for model, options in ((example / "f16", []), (example / "int4", []), (work / "nf4", []),
                           (work / "awq", []),
                           (example / "int4", ["--int8"]), (example / "int4", ["--bf16"])):
        for question, answer in ANSWERS.items():
            expect(f"{model} {options} {question}",
                   run(llama, model, "--prompt", f"{STORY} {question}", *options), f" {answer}\n")


def training():
    """A few steps: the loss falls, the files load, and the same seed writes the same bytes."""
    if not with_module("torch") or not with_module("safetensors"):
        skip("PyTorch or safetensors is not installed")
    printed = [run(sys.executable, example / "train.py", work / folder, "--steps", "50")
               for folder in ("one", "two")]
    bits = [float(b) for b in re.findall(r"([\d.]+) bits a byte", printed[0])]
    expect(f"falling: {bits}", bits[-1] < bits[0] < 8, True)
    expect("the same bytes", (work / "one" / "model.safetensors").read_bytes() ==
           (work / "two" / "model.safetensors").read_bytes(), True)
    run(os.environ["QK_COMMAND"], "verify", work / "one")


def accuracy():
    """README's table, measured again."""
    if not with_module("numpy"):
        skip("numpy is not installed")
    run(os.environ["QK_COMMAND"], "quantize", example / "f16", work / "nf4", "--format", "nf4",
        "--force")
    rows = re.findall(r"^\| (\w+)(?:, (\w+) mode)? \| .* \| ([\d.]+) \| ([\d.]+)% \| "
                      r"(\d+) of (\d+) \|$", (example / "README.md").read_text("utf-8"), re.M)
    expect("rows", [row[:2] for row in rows],
           [("f16", ""), ("int4", ""), ("int4", "int8"), ("nf4", "")])
    for folder, mode, *wanted in rows:
        path = work / "nf4" if folder == "nf4" else example / folder
        printed = run(sys.executable, example / "measure.py", path,
                      *(["--mode", "int8_activations"] if mode else []))
        found = re.fullmatch(r"([\d.]+) bits a byte, ([\d.]+)% of the bytes right, "
                             r"(\d+) of (\d+) answers right\n", printed).groups()
        near = [abs(float(f) - float(w)) for f, w in zip(found, wanted)]
        if near[0] > 0.0005 or near[1] > 0.05 or near[2] > 1 or near[3]:
            sys.exit(f"{folder} {mode}: README says {wanted}, measured {found}")


DIGEST = "eaf71eedf7523d03e39f40ce3804b583b378ca0999751b892c4506b46d3a8499"
{"files": files, "text": text, "answers": answers, "training": training,
 "accuracy": accuracy}[sys.argv[1]]()
