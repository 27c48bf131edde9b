#!/usr/bin/env python3
"""Measures the small language model of the examples with qk: Python's package qk and numpy.

    python measure.py CHECKPOINT [--mode int8_activations] [--stories 250] [--kinds]

The text is make_text.py's with a seed that the training does not use. Says the bits a byte and the
share of bytes that are the likeliest one, both over the answers, and the share of answers that are
right from the first byte to the last. With --kinds that share for each kind of question.
"""
import argparse
import collections
import json
import math
import os
import pathlib

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # the products of numpy here are tiny

import numpy as np  # noqa: E402

import make_text  # noqa: E402
import qk  # noqa: E402

SEED = 7


class Llama:
    """All positions of a text at once: products by qk, the rest in f32 by numpy."""

    def __init__(self, path):
        self.config = json.loads((pathlib.Path(path) / "config.json").read_text("utf-8"))
        self.head = self.config["head_dim"]
        with qk.load(path) as checkpoint:
            self.layers = {layer.name: checkpoint[layer.name].repack()  # as modes want it
                           for layer in checkpoint.layers if layer.dialect != "dense"}
            self.layers |= {layer.name: checkpoint[layer.name]
                            for layer in checkpoint.layers if layer.dialect == "dense"}
            self.norms = {name: np.array(checkpoint.tensor(name), np.float32)
                          for name in checkpoint.tensors if name.endswith("norm.weight")}
            self.embeddings = checkpoint.tensor("model.embed_tokens.weight").astype(np.float32)

    def norm(self, x, name):
        mean = np.square(x).mean(-1, keepdims=True)
        return x / np.sqrt(mean + self.config["rms_norm_eps"]) * self.norms[f"{name}.weight"]

    def heads(self, x, turn=None):
        """[time, heads * head] to [heads, time, head], turned by its place in time."""
        x = x.reshape(len(x), -1, self.head).transpose(1, 0, 2)
        if turn is None:
            return x
        half = self.head // 2
        return x * turn[0] + np.concatenate([-x[..., half:], x[..., :half]], -1) * turn[1]

    def attention(self, x, at, turn):
        q, k, v = (self.layers[f"{at}.{name}_proj"](x) for name in "qkv")
        q, k, v = self.heads(q, turn), self.heads(k, turn), self.heads(v)
        group = len(q) // len(k)
        k, v = k.repeat(group, 0), v.repeat(group, 0)
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(self.head)
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        mixed = (shares @ v).transpose(1, 0, 2).reshape(len(x), -1)
        return self.layers[f"{at}.o_proj"](mixed)

    def mlp(self, x, at):
        gate, up, down = (self.layers[f"{at}.{name}_proj"] for name in ("gate", "up", "down"))
        open_ = gate(x)
        return down(open_ / (1 + np.exp(-open_)) * up(x))

    def __call__(self, tokens):
        """Logits [time, 256] of what follows each byte."""
        angle = self.config["rope_theta"] ** (-np.arange(0, self.head, 2) / self.head)
        angle = np.tile(np.arange(len(tokens))[:, None] * angle, 2)
        turn = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        x = self.embeddings[tokens]
        for i in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{i}"
            x = x + self.attention(self.norm(x, f"{at}.input_layernorm"), f"{at}.self_attn", turn)
            x = x + self.mlp(self.norm(x, f"{at}.post_attention_layernorm"), f"{at}.mlp")
        return self.norm(x, "model.norm") @ self.embeddings.T


def measure(model, stories):
    """(bits a byte, share of right bytes, {kind: [right answers, answers]}) over the answers."""
    bits = right_bytes = count = 0
    kinds = collections.defaultdict(lambda: [0, 0])
    for told, asked in stories:
        tokens = np.frombuffer(make_text.text(told, asked).encode(), np.uint8)
        logits = model(tokens[:-1]).astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        target = tokens[1:]
        lost = np.log2(np.exp(logits).sum(-1)) - logits[np.arange(len(target)), target] / np.log(2)
        likeliest = logits.argmax(-1) == target
        end = len(told) + 1
        for kind, question, answer in asked:
            start = end + len(question) + 1
            end = start + len(answer) + 1  # with the line's end
            here = slice(start - 1, end - 1)  # what follows a byte stands at that byte
            bits, count = bits + lost[here].sum(), count + end - start
            right_bytes += likeliest[here].sum()
            kinds[kind][0] += int(likeliest[here].all())
            kinds[kind][1] += 1
    return bits / count, right_bytes / count, kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint")
    parser.add_argument("--mode", choices=["bf16_products", "int8_activations"])
    parser.add_argument("--stories", type=int, default=250)
    parser.add_argument("--kinds", action="store_true")
    arguments = parser.parse_args()
    with qk.Context(mode=arguments.mode):
        model = Llama(arguments.checkpoint)
        bits, right_bytes, kinds = measure(model, make_text.stories(arguments.stories, SEED))
    right, asked = map(sum, zip(*kinds.values()))
    print(f"{bits:.4f} bits a byte, {100 * right_bytes:.2f}% of the bytes right, "
          f"{right} of {asked} answers right")
    for kind in make_text.KINDS if arguments.kinds else ():
        print(f"  {kind}: {kinds[kind][0]} of {kinds[kind][1]}")


if __name__ == "__main__":
    main()
