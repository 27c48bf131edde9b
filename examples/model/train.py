#!/usr/bin/env python3
"""Trains the small language model of the examples: bytes in, bytes out, laid out as Llama's.

    pip install -r requirements.txt && python train.py FOLDER [--round N --start FOLDER] [--steps N]

The text is make_text.py's; everything follows from fixed seeds. Three rounds of 6 to 9 minutes each
on one CPU core.
Writes what transformers would write for a LlamaForCausalLM:

    FOLDER/config.json         a vocabulary of 256: a token is a byte; a line's end ends an answer
    FOLDER/model.safetensors   f16, embeddings tied
"""
import argparse
import json
import math
import pathlib
import time

import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

import make_text

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 256,
    "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu",
    "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
    "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True,
    "bos_token_id": None, "eos_token_id": 10, "torch_dtype": "float16",
}
SEED, BATCH, RATE = 20251101, 16, 5e-3
STEPS = {1: 1200, 2: 1000, 3: 900}  # of each round; the third asks hard questions twice as often
OTHERS = 0.1  # weight of the bytes that are no answer: what is asked and told is chance


class Model(torch.nn.Module):
    """transformers' LlamaForCausalLM in few lines; parameters have its names."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        head = config["head_dim"]
        keys = config["num_key_value_heads"] * head

        def linear(n, k):
            return torch.nn.Parameter(torch.randn(n, k) / math.sqrt(k))

        weights = {"model.embed_tokens.weight": linear(config["vocab_size"], hidden),
                   "model.norm.weight": torch.nn.Parameter(torch.ones(hidden))}
        for i in range(config["num_hidden_layers"]):
            at = f"model.layers.{i}"
            for norm in ("input_layernorm", "post_attention_layernorm"):
                weights[f"{at}.{norm}.weight"] = torch.nn.Parameter(torch.ones(hidden))
            for name, n, k in (
                    ("self_attn.q_proj", hidden, hidden), ("self_attn.k_proj", keys, hidden),
                    ("self_attn.v_proj", keys, hidden), ("self_attn.o_proj", hidden, hidden),
                    ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden),
                    ("mlp.down_proj", hidden, inner)):
                weights[f"{at}.{name}.weight"] = linear(n, k)
        self.weights = weights
        for name, value in weights.items():
            self.register_parameter(name.replace(".", "/"), value)
        angle = config["rope_theta"] ** (-torch.arange(0, head, 2) / head)
        angle = torch.arange(config["max_position_embeddings"])[:, None] * angle
        self.cos, self.sin = (torch.cat([f(angle)] * 2, 1) for f in (torch.cos, torch.sin))

    def norm(self, x, name):
        return F.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"],
                          self.config["rms_norm_eps"])

    def linear(self, x, name):
        return F.linear(x, self.weights[f"{name}.weight"])

    def heads(self, x, name, rotate=True):
        """[batch, heads, time, head], turned by its place in time."""
        x = self.linear(x, name).unflatten(-1, (-1, self.config["head_dim"])).transpose(1, 2)
        if not rotate:
            return x
        first, second = x.chunk(2, -1)
        time_ = x.shape[2]
        return x * self.cos[:time_] + torch.cat([-second, first], -1) * self.sin[:time_]

    def forward(self, tokens):
        x = self.weights["model.embed_tokens.weight"][tokens]
        for i in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{i}"
            h = self.norm(x, f"{at}.input_layernorm")
            mixed = F.scaled_dot_product_attention(
                self.heads(h, f"{at}.self_attn.q_proj"), self.heads(h, f"{at}.self_attn.k_proj"),
                self.heads(h, f"{at}.self_attn.v_proj", False), is_causal=True, enable_gqa=True)
            x = x + self.linear(mixed.transpose(1, 2).flatten(2), f"{at}.self_attn.o_proj")
            h = self.norm(x, f"{at}.post_attention_layernorm")
            gate = F.silu(self.linear(h, f"{at}.mlp.gate_proj"))
            x = x + self.linear(gate * self.linear(h, f"{at}.mlp.up_proj"), f"{at}.mlp.down_proj")
        return F.linear(self.norm(x, "model.norm"), self.weights["model.embed_tokens.weight"])


def batch(dice, more):
    """Tokens [BATCH, time] with zeros behind, and the weight of each as a target."""
    rows = []
    for _ in range(BATCH):
        told, asked = make_text.story(dice, more)
        row, weight = told + " ", [OTHERS] * (len(told) + 1)
        for _, question, answer in asked:
            row += f"{question} {answer}\n"
            weight += [OTHERS] * (len(question) + 1) + [1.0] * (len(answer) + 1)
        rows.append((row.encode(), weight))
    longest = max(len(row) for row, _ in rows)
    tokens, weights = torch.zeros(BATCH, longest, dtype=torch.long), torch.zeros(BATCH, longest)
    for i, (row, weight) in enumerate(rows):
        tokens[i, :len(row)] = torch.tensor(list(row))
        weights[i, :len(row)] = torch.tensor(weight)
    return tokens, weights


def rate(step, steps):
    warm = min(1, (step + 1) / 60)
    return RATE * warm * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


def train(round_, steps, start):
    torch.set_num_threads(1)  # sums in one order
    torch.manual_seed(SEED)
    dice = make_text.Dice(SEED + round_ - 1)
    more = make_text.HARD if round_ == 3 else ()
    model = Model(CONFIG)
    if start is not None:
        with torch.no_grad():
            for name, value in load_file(start / "model.safetensors").items():
                model.weights[name].copy_(value)
    layers = {name: p for name, p in model.weights.items() if name.endswith("proj.weight")}
    optimizers = [
        torch.optim.Muon(layers.values(), weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW([p for name, p in model.weights.items() if name not in layers],
                          betas=(0.9, 0.98), weight_decay=0)]
    began = time.process_time()
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate(step, steps)
            optimizer.zero_grad()
        tokens, weights = batch(dice, more)
        logits = model(tokens[:, :-1])
        losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        weights = weights[:, 1:].flatten()
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if step % 25 == 24 or step == steps - 1:
            answers = weights == 1
            right = (logits.flatten(0, 1).argmax(1) == tokens[:, 1:].flatten())[answers]
            print(f"step {step + 1}: {losses[answers].mean().item() / math.log(2):.3f} bits a byte "
                  f"of an answer, {100 * right.float().mean().item():.1f}% right, "
                  f"{time.process_time() - began:.0f} s of processor time", flush=True)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--round", type=int, choices=STEPS, default=1)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--start", type=pathlib.Path, metavar="FOLDER",
                        help="go on with the model of the round before")
    arguments = parser.parse_args()
    if (arguments.round > 1) != (arguments.start is not None):
        parser.error("the rounds after the first, and they alone, have a --start")
    model = train(arguments.round, arguments.steps or STEPS[arguments.round], arguments.start)
    arguments.folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.detach().half().contiguous() for name, value in model.weights.items()},
              arguments.folder / "model.safetensors", {"format": "pt"})
    (arguments.folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")


if __name__ == "__main__":
    main()
