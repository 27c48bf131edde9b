"""Models with experts in two dense tensors, and what GGUF files hold."""
import json
import math
import struct
from array import array

from harness import Case, floats, safetensors

EXPERTS = "model.layers.0.mlp.experts"
GATE_UP, DOWN = f"{EXPERTS}.gate_up_proj", f"{EXPERTS}.down_proj"
GPT_OSS = ["--format", "mxfp4", "--dialect", "gpt-oss"]
GGUF_TYPES = {0: ("F32", 1, 4), 2: ("Q4_0", 32, 18), 8: ("Q8_0", 32, 34), 39: ("MXFP4", 32, 17)}
WIDTHS = {"F32": "I", "F16": "H", "BF16": "H"}


def weights(dtype, count, seed):
    """Some that are no multiples of each other, as bytes."""
    some = min(count, 10007)  # a prime: rows and experts differ
    values = [((seed + 7 * i) % 253 - 126) * 2.0 ** (i * 11 % 17 - 12) for i in range(some)]
    words = array("I", floats(values))
    if dtype == "F16":
        words = array("H", struct.pack(f"<{some}e", *values))
    if dtype == "BF16":
        words = array("H", (word >> 16 for word in words))
    return (words * (count // some + 1))[:count].tobytes()


def turned(tensor):
    """[E,k,n] as [E,n,k], or the other way."""
    dtype, (experts, rows, columns), data = tensor
    words = array(WIDTHS[dtype], data)
    size, out = rows * columns, array(WIDTHS[dtype])
    for e in range(experts):
        expert = words[e * size:(e + 1) * size]
        for column in range(columns):
            out += expert[column::columns]
    return dtype, [experts, columns, rows], out.tobytes()


def joined(tensor):
    dtype, (experts, n, k), data = tensor
    return dtype, [experts * n, k], data


def read_gguf(path):
    """{name: (type, shape, bytes)}; of types that are not listed, no bytes."""
    content, at = path.read_bytes(), 24
    count, pairs = struct.unpack_from("<QQ", content, 8)

    def number(form):
        nonlocal at
        value, = struct.unpack_from("<" + form, content, at)
        at += struct.calcsize("<" + form)
        return value

    def text():
        nonlocal at
        size = number("Q")
        at += size
        return content[at - size:at].decode()

    for _ in range(pairs):
        text()
        assert number("I") == 8  # a string
        text()
    found = []
    for _ in range(count):
        name = text()
        shape = [number("Q") for _ in range(number("I"))][::-1]
        found.append((name, shape, number("I"), number("Q")))
    begin, tensors = -(-at // 32) * 32, {}
    for name, shape, kind, offset in found:
        word, codes, size = GGUF_TYPES.get(kind, (str(kind), 1, 0))
        data = content[begin + offset:][:math.prod(shape) // codes * size]
        tensors[name] = (word, shape, data)
    return tensors


class FusedCase(Case):
    def model(self, tensors, model_type="gpt_oss", name="model"):
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        self.write(f"{name}/model.safetensors", safetensors(tensors))
        config = {"model_type": model_type} if model_type else {}
        self.write(f"{name}/config.json", json.dumps(config).encode())
        return folder

    def pair(self, dtype="BF16", experts=3, n=64, k=96):
        """gate_up_proj [E,2n,k] and down_proj [E,k,n]."""
        return {GATE_UP: (dtype, [experts, 2 * n, k], weights(dtype, experts * 2 * n * k, 3)),
                DOWN: (dtype, [experts, k, n], weights(dtype, experts * n * k, 11))}

    def transposed(self, *options, **sizes):
        return {name: turned(tensor) for name, tensor in self.pair(*options, **sizes).items()}

    def as_layers(self, pair):
        """The rows of all experts as a plain layer, under the same name."""
        return {f"{name}.weight": joined(tensor) for name, tensor in pair.items()}

    def singles(self, pair):
        """As layers an expert: halves of gate_up_proj's rows, and down_proj."""
        each = {}
        for part, name, first in (("gate_proj", GATE_UP, 0), ("up_proj", GATE_UP, 1),
                                  ("down_proj", DOWN, 0)):
            dtype, (experts, rows, k), data = pair[name]
            rows //= 2 if name == GATE_UP else 1
            size = rows * k * array(WIDTHS[dtype]).itemsize
            for e in range(experts):
                at = e * len(data) // experts + first * size
                each[f"{EXPERTS}.{e}.{part}.weight"] = (dtype, [rows, k], data[at:at + size])
        return each
