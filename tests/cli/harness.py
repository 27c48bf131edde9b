"""Runs the qk command, and reads and writes safetensors with the standard library alone."""
import json
import os
import pathlib
import shlex
import struct
import subprocess
import tempfile
import unittest

COMMAND = shlex.split(os.environ["QK_COMMAND"])
WINDOWS = COMMAND[-1].endswith(".exe")
if WINDOWS:  # Wine's services, which the first command starts, would keep its pipes open
    subprocess.run([*COMMAND, "--version"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL, check=True, timeout=120)
posix = unittest.skipIf(WINDOWS, "POSIX alone: modes, links, limits, names of any bytes")
in_place = unittest.skipIf(WINDOWS, "Wine 8 does not replace the file that is read")
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "data"
LOADABLE = sorted(p.name for p in GOLDEN.iterdir()
                  if (p / "truth.safetensors").exists() and (p / "config.json").exists()
                  and p.name != "dense" and not p.name.endswith(("_refused", "_nan", "_ends")))
EVERY = 3 if int(os.environ.get("QK_SWEEP_EVERY", 1)) > 4 else 1  # sanitized: release has them all
LOADABLE = LOADABLE[::EVERY]
REFUSED = sorted(p.name for p in GOLDEN.iterdir() if p.name.endswith("_refused"))


def pack(header, data=b""):
    """A file of this header (text or object) and these bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def safetensors(tensors, metadata=None):
    """{name: (dtype, shape, bytes)} as the bytes of a file."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    return pack(header, data)


def read(path):
    """All tensors of a file or of a directory's files: {name: (dtype, shape, bytes)}."""
    path = pathlib.Path(path)
    files = sorted(path.glob("model*.safetensors")) if path.is_dir() else [path]
    tensors = {}
    for file in files:
        content = file.read_bytes()
        size, = struct.unpack("<Q", content[:8])
        for name, entry in json.loads(content[8:8 + size]).items():
            if name != "__metadata__":
                begin, end = entry["data_offsets"]
                tensors[name] = (entry["dtype"], entry["shape"],
                                 content[8 + size + begin:8 + size + end])
    return tensors


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def too_large_for_f16(k):
    """A row of weights whose product with qk multiply's x is infinite in f16, but not in double."""
    weights, state = [], 1
    for _ in range(k):  # the x of qk multiply
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        weights.append(6e4 if state >> 57 >= 64 else -6e4)
    return weights


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def run_qk(self, *arguments, code=0, stdout=subprocess.PIPE, environment=None):
        done = subprocess.run([*COMMAND, *map(str, arguments)], stdout=stdout,
                              stderr=subprocess.PIPE, text=True, timeout=120,
                              env={**os.environ, **(environment or {})})
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout} {done.stderr}")
        return done

    def run_json(self, *arguments, code=0):
        done = self.run_qk(*arguments, "--json", code=code)
        self.assertTrue(done.stdout.isascii())
        self.assertEqual(done.stderr, "")
        return json.loads(done.stdout)

    def fails(self, code, *arguments):
        """Fails with this code, one sentence on stderr, nothing on stdout, nothing new on disk."""
        before = sorted(self.folder.rglob("*"))
        done = self.run_qk(*arguments, code=code)
        self.assertEqual(done.stdout, "")
        self.assertRegex(done.stderr, r"\Aqk: [^\n]+\n\Z")
        self.assertEqual(sorted(self.folder.rglob("*")), before)
        return done.stderr

    def write(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return path
