"""A language model: the tokens of examples/c/llama.c. llama.py MODEL 1,15043,29892 [TOKENS]"""
import json
import sys

try:
    import numpy as np
    import qk
except ImportError as error:
    sys.exit(f"{error}: pip install ./ffi/python, in a clone of qk")


class Model:
    def __init__(self, folder):
        self.c = json.loads(open(f"{folder}/config.json", encoding="utf-8").read())
        if self.c["model_type"] not in ("llama", "mistral", "qwen2", "qwen3"):
            sys.exit(f"the model is {self.c['model_type']}; known are llama, mistral, qwen2, qwen3")
        self.file = qk.load(folder, in_place=True)
        self.layers = {name: self.file[name] for name in self.file}
        self.norms = {name[:-7]: self.floats(name) for name in self.file.tensors if "norm" in name}
        self.heads, self.cache = self.c["num_attention_heads"], {}
        self.dim = self.c.get("head_dim") or self.c["hidden_size"] // self.heads
        self.turns = self.read_turns()

    def floats(self, name, rows=...):
        bits = self.file.tensor(name)[rows]  # of bf16 they are the upper half of an f32's
        return (bits.astype("u4") << 16).view("f4") if bits.dtype == "u2" else bits.astype("f4")

    def read_turns(self):
        rope = self.c.get("rope_parameters") or self.c.get("rope_scaling") or {}
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind not in ("default", "dynamic", "linear", "llama3"):
            sys.exit(f"rope_type {kind} is not known")
        theta = rope.get("rope_theta", self.c.get("rope_theta", 10000.0))
        turns, kept = theta ** (-np.arange(0, self.dim, 2) / self.dim), float(kind != "linear")
        if kind == "llama3":  # short waves stay, long ones are stretched, with a ramp between
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            waves = rope["original_max_position_embeddings"] * turns / (2 * np.pi)
            kept = np.clip((waves - low) / (high - low), 0, 1)
        return (turns * (kept + (1 - kept) / rope.get("factor", 1))).astype(np.float32)

    def norm(self, name, x):
        mean = np.mean(np.square(x), -1, keepdims=True)
        return x / np.sqrt(mean + np.float32(self.c["rms_norm_eps"])) * self.norms[name]

    def attend(self, at, x, start):
        positions = np.arange(start, start + len(x))
        q, k, v = (self.layers[f"{at}{n}_proj"](x).reshape(len(x), -1, self.dim) for n in "qkv")
        angles = positions[:, None, None].astype(np.float32) * self.turns
        for name, y in (("q", q), ("k", k)):
            if at + name + "_norm" in self.norms:
                y[:] = self.norm(at + name + "_norm", y)
            a, b, cos, sin = *np.split(y, 2, axis=-1), np.cos(angles), np.sin(angles)
            y[:] = np.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)
        past = self.cache.get(at, (k[:0], v[:0]))
        self.cache[at] = k, v = [np.concatenate(y) for y in zip(past, (k, v))]
        k, v = (np.repeat(y, self.heads // y.shape[1], axis=1) for y in (k, v))
        scores = np.einsum("mhd,thd->hmt", q, k) / np.sqrt(np.float32(self.dim))
        scores[:, np.arange(len(k)) > positions[:, None]] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mix = np.einsum("hmt,thd->mhd", weights / weights.sum(-1, keepdims=True), v)
        return self.layers[at + "o_proj"](mix.reshape(len(x), -1))

    def logits(self, tokens, start):
        x = self.floats("model.embed_tokens.weight", tokens)
        for at in (f"model.layers.{i}." for i in range(self.c["num_hidden_layers"])):
            x = x + self.attend(at + "self_attn.", self.norm(at + "input_layernorm", x), start)
            y = self.norm(at + "post_attention_layernorm", x)
            gate, up = (self.layers[f"{at}mlp.{name}_proj"](y) for name in ("gate", "up"))
            x = x + self.layers[at + "mlp.down_proj"](gate / (1 + np.exp(-gate)) * up)
        head = self.layers.get("lm_head", self.layers["model.embed_tokens"])
        return head(self.norm("model.norm", x[-1:]))[0]


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit(f"usage: {sys.argv[0]} MODEL 1,2,3 [TOKENS]")
    model, new, start = Model(sys.argv[1]), [int(token) for token in sys.argv[2].split(",")], 0
    for left in range(int((sys.argv + [64])[3]), 0, -1):
        start, new = start + len(new), [int(model.logits(new, start).argmax())]
        print(new[0], end="," if left > 1 else "\n", flush=True)
