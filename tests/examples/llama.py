"""examples/c/llama.c against a model computed here, in doubles and plain loops.

    llama.py LLAMA QK WORK [PYTHON TWIN]

Tiny checkpoints of random weights are written, dense and by QK in 4 bits; LLAMA must choose the
tokens that the loops below choose, and refuse what it does not know in one sentence. PYTHON, one
with numpy and the package qk, must say the same with TWIN, ffi/python/examples/llama.py.
"""
import json
import math
import pathlib
import random
import shutil
import struct
import subprocess
import sys

LLAMA, QK, WORK = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
TWIN = sys.argv[4:]
TWINS = ("llama", "qwen2_tied", "qwen3", "rope_llama3", "rope_linear", "BF16", "llama_int4")
BASE = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 96, "vocab_size": 64,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32, "rope_theta": 500.0}


def shapes(config):
    """Linear layers and other tensors of a model, by name."""
    c = config
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    h, wide = c["hidden_size"], c["intermediate_size"]
    linear = {} if c.get("tie_word_embeddings") else {"lm_head": (c["vocab_size"], h)}
    others = {"model.embed_tokens.weight": (c["vocab_size"], h), "model.norm.weight": (h,)}
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        for name, shape in {"self_attn.q_proj": (q, h), "self_attn.k_proj": (kv, h),
                            "self_attn.v_proj": (kv, h), "self_attn.o_proj": (h, q),
                            "mlp.gate_proj": (wide, h), "mlp.up_proj": (wide, h),
                            "mlp.down_proj": (h, wide)}.items():
            linear[at + name] = shape
            if c["model_type"] == "qwen2" and name[10] in "qkv":
                others[at + name + ".bias"] = shape[:1]
        for name in ("input_layernorm", "post_attention_layernorm"):
            others[at + name + ".weight"] = (h,)
        if c["model_type"] == "qwen3":
            for name in "qk":
                others[at + f"self_attn.{name}_norm.weight"] = (c["head_dim"],)
    return {**{name + ".weight": shape for name, shape in linear.items()}, **others}


def encode(values, dtype):
    if dtype == "BF16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{'e' if dtype == 'F16' else 'f'}", *values)


def decode(data, dtype):
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))
    width = 2 if dtype == "F16" else 4
    return struct.unpack(f"<{len(data) // width}{'e' if dtype == 'F16' else 'f'}", data)


def write(name, config, dtype="F32", seed=1, without=(), change=None):
    """A checkpoint of random weights; returns its folder. change: a tensor's first value."""
    rng = random.Random(seed)
    folder = WORK / name
    folder.mkdir(parents=True, exist_ok=True)
    header, body = {}, b""
    for tensor, shape in shapes(config).items():
        if tensor in without:
            continue
        middle, spread = (1, 0.2) if "norm" in tensor else (0, 0.25)
        values = [rng.gauss(middle, spread) for _ in range(math.prod(shape))]
        values[0] = (change or {}).get(tensor, values[0])
        data = encode(values, dtype)
        header[tensor] = {"dtype": dtype, "shape": shape,
                          "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + body)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Model:
    """The forward pass as its papers have it: no batches, no cleverness."""

    def __init__(self, folder):
        data = (folder / "model.safetensors").read_bytes()
        size, = struct.unpack("<Q", data[:8])
        self.c = json.loads((folder / "config.json").read_text())
        self.t = {}
        for name, entry in json.loads(data[8:8 + size]).items():
            if name == "__metadata__":
                continue
            start, end = (8 + size + at for at in entry["data_offsets"])
            values = decode(data[start:end], entry["dtype"])
            width = entry["shape"][-1]
            self.t[name] = (values if len(entry["shape"]) == 1 else
                            [values[i:i + width] for i in range(0, len(values), width)])
        self.cache = [([], []) for _ in range(self.c["num_hidden_layers"])]

    def linear(self, name, x):
        bias = self.t.get(name + ".bias", [0] * len(self.t[name + ".weight"]))
        return [sum(map(float.__mul__, row, x)) + b
                for row, b in zip(self.t[name + ".weight"], bias)]

    def norm(self, name, x):
        scale = 1 / math.sqrt(sum(v * v for v in x) / len(x) + self.c["rms_norm_eps"])
        return [v * scale * w for v, w in zip(x, self.t[name + ".weight"])]

    def angle(self, position, pair):
        rope = self.c.get("rope_parameters") or self.c.get("rope_scaling") or {}
        theta = rope.get("rope_theta", self.c.get("rope_theta"))
        frequency = theta ** (-2 * pair / self.c["head_dim"])
        if rope.get("rope_type", rope.get("type")) == "linear":
            frequency /= rope["factor"]
        if rope.get("rope_type") == "llama3":
            wave = 2 * math.pi / frequency
            old, low, high = (rope[key] for key in ("original_max_position_embeddings",
                                                    "low_freq_factor", "high_freq_factor"))
            if wave > old / low:
                frequency /= rope["factor"]
            elif wave > old / high:
                smooth = (old / wave - low) / (high - low)
                frequency *= (1 - smooth) / rope["factor"] + smooth
        return position * frequency

    def rotate(self, head, position):
        half = len(head) // 2
        out = list(head)
        for i in range(half):
            sine, cosine = math.sin(self.angle(position, i)), math.cos(self.angle(position, i))
            out[i] = head[i] * cosine - head[i + half] * sine
            out[i + half] = head[i + half] * cosine + head[i] * sine
        return out

    def heads(self, at, name, x, position):
        """The heads of queries or keys, normalized where the model does that, and rotated."""
        flat, dim = self.linear(f"{at}{name}_proj", x), self.c["head_dim"]
        heads = [flat[i:i + dim] for i in range(0, len(flat), dim)]
        if f"{at}{name}_norm.weight" in self.t:
            heads = [self.norm(f"{at}{name}_norm", head) for head in heads]
        return [self.rotate(head, position) for head in heads]

    def attend(self, layer, x, position):
        at, dim = f"model.layers.{layer}.self_attn.", self.c["head_dim"]
        keys, values = self.cache[layer]
        keys.append(self.heads(at, "k", x, position))
        values.append(self.linear(at + "v_proj", x))
        mix = []
        queries = self.heads(at, "q", x, position)
        for h, q in enumerate(queries):
            shared = h * self.c["num_key_value_heads"] // len(queries)
            scores = [sum(map(float.__mul__, q, k[shared])) / math.sqrt(dim) for k in keys]
            weights = [math.exp(score - max(scores)) for score in scores]
            for d in range(shared * dim, shared * dim + dim):
                mix.append(sum(w * v[d] for w, v in zip(weights, values)) / sum(weights))
        return self.linear(at + "o_proj", mix)

    def logits(self, token, position):
        x = list(self.t["model.embed_tokens.weight"][token])
        for i in range(self.c["num_hidden_layers"]):
            at = f"model.layers.{i}."
            mixed = self.attend(i, self.norm(at + "input_layernorm", x), position)
            x = [a + b for a, b in zip(x, mixed)]
            y = self.norm(at + "post_attention_layernorm", x)
            gated = [g / (1 + math.exp(-g)) * u for g, u in zip(
                self.linear(at + "mlp.gate_proj", y), self.linear(at + "mlp.up_proj", y))]
            x = [a + b for a, b in zip(x, self.linear(at + "mlp.down_proj", gated))]
        head = "lm_head" if "lm_head.weight" in self.t else "model.embed_tokens"
        return self.linear(head, self.norm("model.norm", x))


def greedy(logits):
    best, second = sorted(logits, reverse=True)[:2]
    assert best - second > 1e-3, f"{best} and {second}: too close to tell, take another seed"
    return logits.index(best)


class Drawn:
    """What --temperature, --top-p and --seed choose."""

    def __init__(self, temperature, share, seed):
        self.temperature, self.share, self.state = temperature, share, seed

    def random(self):
        mask = (1 << 64) - 1
        self.state = z = (self.state + 0x9e3779b97f4a7c15) & mask
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9 & mask
        z = (z ^ z >> 27) * 0x94d049bb133111eb & mask
        return ((z ^ z >> 31) >> 11) / 2 ** 53

    def __call__(self, logits):
        weights = [math.exp((v - max(logits)) / self.temperature) for v in logits]
        order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
        kept, count = 0, 0
        while count == 0 or (count < len(order) and kept < self.share * sum(weights)):
            kept += weights[order[count]]
            count += 1
        at = self.random() * kept
        for token in order[:count]:
            at -= weights[token]
            if at < 0:
                return token
        return order[count - 1]


def reference(folder, prompt, count, choose=greedy):
    model, tokens = Model(folder), list(prompt)
    for position in range(len(prompt) + count - 1):
        logits = model.logits(tokens[position], position)
        if position >= len(prompt) - 1:
            tokens.append(choose(logits))
    return tokens[len(prompt):]


def run(*arguments, code=0):
    done = subprocess.run([LLAMA, *map(str, arguments)], capture_output=True)
    if done.returncode != code:
        sys.exit(f"{arguments}: exit {done.returncode}, not {code}\n{done.stderr.decode()}")
    return done.stdout if code == 0 else done.stderr.decode()


def ids(tokens):
    return ",".join(map(str, tokens))


def expect(what, got, wanted):
    if got != wanted:
        sys.exit(f"{what}: {got!r}, not {wanted!r}")


def same_tokens(name, folder, prompt=(5, 9, 60, 17, 33, 4), count=12, twin=None):
    wanted = ids(reference(twin or folder, prompt, count)).encode() + b"\n"
    expect(name, run(folder, "--ids", ids(prompt), "--tokens", count), wanted)
    if TWIN and name in TWINS:
        said = subprocess.run([*TWIN, folder, ids(prompt), str(count)], stdout=subprocess.PIPE)
        expect(f"{name} in Python", (said.returncode, said.stdout), (0, wanted))


def refuses(sentence, *arguments, code=1):
    said = run(*arguments, code=code)
    if sentence not in said or not said.startswith("llama: "):
        sys.exit(f"{arguments}: {said!r} does not say {sentence!r}")


def check_models():
    models = {
        "llama": BASE,
        "qwen2_tied": {**BASE, "model_type": "qwen2", "tie_word_embeddings": True},
        "qwen3": {**BASE, "model_type": "qwen3"},
        "mistral_one_key": {**BASE, "model_type": "mistral", "num_key_value_heads": 1},
        "rope_llama3": {**BASE, "rope_parameters": LLAMA3},
        "rope_llama3_older": {**BASE, "rope_scaling": LLAMA3},
        "rope_linear": {**BASE, "rope_scaling": {"type": "linear", "factor": 4.0}}}
    for name, config in models.items():
        same_tokens(name, write(name, config))
    for dtype in ("F16", "BF16"):
        same_tokens(dtype, write(dtype, BASE, dtype))
    rng = random.Random(3)
    longer = [rng.randrange(64) for _ in range(260)]  # past one chunk of the prompt
    same_tokens("long prompt", WORK / "rope_llama3", longer, 3)
    for name in ("qwen2_tied", "llama"):
        for form in (["nf4", "--group", "32"], ["int4", "--group", "32"]):
            packed, twin = WORK / f"{name}_{form[0]}", WORK / f"{name}_{form[0]}_dense"
            subprocess.run([QK, "quantize", WORK / name, packed, "--format", *form, "--force",
                            "--quiet"], check=True)
            subprocess.run([QK, "dequantize", packed, twin, "--dtype", "f32", "--force",
                            "--quiet"], check=True)
            same_tokens(packed.name, packed, twin=twin)
            for mode in ("--int8", "--bf16"):
                run(packed, "--ids", "1,2,3", "--tokens", 4, mode)


def check_choosing():
    folder = WORK / "llama"
    for temperature, share, seed in ((0.7, 1, 0), (1.5, 0.8, 7), (3, 0.5, 123456789), (1, 0, 5)):
        wanted = reference(folder, [1, 2], 20, Drawn(temperature, share, seed))
        options = ("--temperature", temperature, "--top-p", share, "--seed", seed, "--tokens", 20)
        for threads in (1, 2):
            got = run(folder, "--ids", "1,2", *options, "--threads", threads, "--ignore-end")
            expect(options, got, ids(wanted).encode() + b"\n")


def check_ends_and_text():
    tokens = reference(WORK / "llama", [1, 2], 8)
    stop = tokens.index(tokens[4])
    for name, end in (("end", tokens[4]), ("ends", [999, tokens[4]])):
        folder = write(name, {**BASE, "eos_token_id": end})
        expect(name, run(folder, "--ids", "1,2", "--tokens", 8),
               ids(tokens[:stop]).encode() + b"\n")
        expect(name, run(folder, "--ids", "1,2", "--tokens", 8, "--ignore-end"),
               ids(tokens).encode() + b"\n")
    folder = write("bytes", {**BASE, "vocab_size": 256})
    wanted = bytes(reference(folder, b"Once", 10)) + b"\n"
    expect("bytes", run(folder, "--prompt", "Once", "--tokens", 10), wanted)
    expect("nothing", run(folder, "--prompt", "Once", "--tokens", 0), b"\n")


def check_command_line():
    folder = WORK / "llama"
    for arguments in ((), (folder,), ("--ids", "1"), (folder, "--ids", "1", "--prompt", "a")):
        refuses("usage: llama MODEL", *arguments, code=2)
    refuses("--idz: no option", folder, "--idz", "1", code=2)
    refuses("other: no option, and not the only MODEL", folder, "other", "--ids", "1", code=2)
    refuses("--tokens: its value is missing", folder, "--ids", "1", "--tokens", code=2)
    for option, value in (("--tokens", "x"), ("--tokens", "-1"), ("--tokens", "1.5"),
                          ("--top-p", "1.1"), ("--temperature", "nan"), ("--temperature", "-1"),
                          ("--seed", "1e30"), ("--threads", "1025"), ("--threads", "")):
        refuses(f"{option} {value}: accepted are", folder, "--ids", "1", option, value, code=2)
    refuses("--int8 and --bf16: not both", folder, "--ids", "1", "--int8", "--bf16", code=2)
    for wrong in ("64", "-1", "1,x", "1;2", ",1", "99999999999999999999"):
        refuses("tokens are 0 to 63", folder, "--ids", wrong, code=2)
    refuses("the prompt is empty", folder, "--ids", "", code=2)
    refuses("tokens are 0 to 63", folder, "--prompt", "Once", code=2)
    refuses("the context holds 512", folder, "--ids", "1,2", "--tokens", 511, code=2)
    refuses("the context holds 512", folder, "--ids", ids([1] * 513), code=2)
    expect("all of the context", len(run(folder, "--ids", ids([1] * 508)).split(b",")), 4)
    wide = write("wide", {**BASE, "vocab_size": 300})
    refuses("give --ids", wide, "--prompt", "Once", code=2)


def check_refusals():
    refuses("cannot open", WORK / "missing", "--ids", "1")
    for change, sentence in (
            ({"model_type": "mixtral"}, '"model_type" is "mixtral"; known are llama'),
            ({"model_type": None}, 'config.json has no "model_type"'),
            ({"hidden_act": "gelu"}, '"hidden_act" is "gelu"'),
            ({"rope_scaling": {"rope_type": "longrope"}}, '"rope_scaling.rope_type" is "longrope"'),
            ({"rope_parameters": {"rope_type": "yarn"}}, "known are default dynamic linear llama3"),
            ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is not 1"),
            ({"hidden_size": None}, '"hidden_size"'), ({"hidden_size": "64"}, "is a text"),
            ({"hidden_size": 64.5}, "accepted are 1 to"), ({"vocab_size": 0}, "accepted are 1 to"),
            ({"num_key_value_heads": 3}, "do not share 3 keys evenly"),
            # 2^32 + 64 values together: 64, were they counted in 32 bits
            ({"num_attention_heads": 13421773, "num_key_value_heads": 1, "head_dim": 320},
             "heads too wide"),
            ({"sliding_window": 8}, "sliding_window is 8")):
        config = {**BASE, **change}
        (WORK / "llama" / "config.json").write_text(json.dumps(config))
        refuses(sentence, WORK / "llama", "--ids", "1,2,3", "--tokens", "8")
    for change in ({"sliding_window": 11}, {"sliding_window": 4, "use_sliding_window": False}):
        (WORK / "llama" / "config.json").write_text(json.dumps({**BASE, **change}))
        run(WORK / "llama", "--ids", "1,2,3", "--tokens", "8")
    for change in ({"intermediate_size": 64}, {"vocab_size": 63}, {"num_hidden_layers": 3}):
        (WORK / "llama" / "config.json").write_text(json.dumps({**BASE, **change}))
        refuses("model.", WORK / "llama", "--ids", "1")
    (WORK / "llama" / "config.json").write_text(json.dumps(BASE))
    for tensor in ("model.norm.weight", "model.embed_tokens.weight",
                   "model.layers.1.mlp.up_proj.weight"):
        refuses(tensor[:-7], write("without", BASE, without=(tensor,)), "--ids", "1")
    alone = WORK / "alone"
    alone.mkdir(exist_ok=True)
    shutil.copy(WORK / "llama" / "model.safetensors", alone)
    refuses("there is no config.json", alone, "--ids", "1")
    for value in (math.nan, math.inf):
        spoiled = write("spoiled", BASE, change={"model.norm.weight": value})
        for choice in ((), ("--temperature", "1")):
            refuses("the logits are not all finite", spoiled, "--ids", "1", *choice)
    with open("/dev/full", "wb") as full:
        done = subprocess.run([LLAMA, WORK / "llama", "--ids", "1", "--tokens", "2"], stdout=full,
                              capture_output=False, stderr=subprocess.PIPE)
    expect("a full disk", (done.returncode, done.stderr), (1, b"llama: cannot write to stdout\n"))


check_models()
check_choosing()
check_ends_and_text()
check_command_line()
check_refusals()
