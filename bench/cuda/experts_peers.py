#!/usr/bin/env python3
"""What PyTorch and transformers take for the layers of experts that bench_cuda_experts times.

    experts_peers.py OUT.json [--bitsandbytes LIBRARY] [--models NAME,...] [--tokens T,...]

Needs PyTorch with CUDA; what else is missing is said and left out. Peers, x in bf16: torch's
grouped product of dense bf16 experts between a sort and a sum, written here; transformers' own
"grouped_mm" (its default) and "batched_mm" on the same weights; and the way of a 4-bit checkpoint
whose experts have no kernel there: NF4 dequantized by bitsandbytes' library at each call, all
experts of the layer, then "grouped_mm". (Its kernels for MXFP4 come from a network hub.)

The protocol is that of bench_cuda_experts: 24 calls captured in one CUDA graph, each with a uniform
routing of its own; replayed 11 times, the median. Each peer's result is compared with products in
double first. OUT.json has the fields of bench_cuda_experts, and what is measured already if the run
is stopped: the last peer of the largest model takes as long as all others.
"""
import argparse
import ctypes
import json
import sys
import types

import peers
import torch
import torch.nn.functional as F

try:
    import transformers
except ImportError:
    transformers = None
try:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
except ImportError:
    ALL_EXPERTS_FUNCTIONS = None

CALLS = 24
# Experts, hidden, inner, slots; kModels of experts.cu.
MODELS = {"Qwen3-30B-A3B": (128, 2048, 768, 8), "gpt-oss-120b": (128, 2880, 2880, 4),
          "Mixtral-8x7B": (8, 4096, 14336, 2), "DeepSeek-V3": (256, 7168, 2048, 8)}
CLAMPED = {"gpt-oss-120b"}


def silu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def clamped_swiglu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    gate = gate.clamp(max=7.0)
    return gate * torch.sigmoid(1.702 * gate) * (up.clamp(-7.0, 7.0) + 1)


class Dense:
    """bf16 weights of all experts, and the layer by torch's grouped product."""
    name = "torch grouped, bf16"

    def __init__(self, model):
        self.count, hidden, inner, self.slots = MODELS[model]
        self.act = clamped_swiglu if model in CLAMPED else silu
        self.shapes = {"up": (self.count, 2 * inner, hidden), "down": (self.count, hidden, inner)}
        self.make()

    def make(self):
        self.dense = {part: torch.randn(shape, device="cuda", dtype=torch.bfloat16) * 0.02
                      for part, shape in self.shapes.items()}

    def takes(self, _):
        return True

    def expert(self, part, e):
        return self.dense[part][e].double()

    def layer(self, x, ids, weights):
        order = torch.argsort(ids.flatten())
        ends = torch.histc(ids.flatten(), self.count, 0, self.count - 1).cumsum(0).int()
        middle = self.act(torch._grouped_mm(x[order // self.slots],
                                            self.dense["up"].transpose(1, 2), offs=ends))
        z = torch._grouped_mm(middle, self.dense["down"].transpose(1, 2), offs=ends)
        back = torch.empty_like(z)
        back[order] = z
        return (back.unflatten(0, ids.shape) * weights[..., None]).sum(1).to(x.dtype)

    def truth(self, x, ids, weights):
        rows = []
        for t in range(x.shape[0]):
            rows.append(sum(weights[t, j].double() * (self.expert("down", e) @ self.act(
                self.expert("up", e) @ x[t].double())) for j, e in enumerate(ids[t].tolist())))
        return torch.stack(rows)


class Transformers(Dense):
    name = "transformers grouped_mm, bf16"
    way = "grouped_mm"

    def layer(self, x, ids, weights):
        module = types.SimpleNamespace(
            gate_up_proj=self.dense["up"], down_proj=self.dense["down"], num_experts=self.count,
            has_gate=True, has_bias=False, is_transposed=False, _apply_gate=self.act)
        return ALL_EXPERTS_FUNCTIONS[self.way](module, x, ids.long(), weights.to(x.dtype))


class Batched(Transformers):
    name = "transformers batched_mm, bf16"
    way = "batched_mm"

    def takes(self, tokens):  # it copies each slot's weights
        return tokens <= 16


class Nf4(Transformers):
    name = "transformers grouped_mm, NF4 by bitsandbytes"
    library = None

    def make(self):
        self.dense, self.codes, self.scale = {}, {}, {}
        for part, shape in self.shapes.items():
            size = shape[0] * shape[1] * shape[2]
            self.dense[part] = torch.empty(shape, device="cuda", dtype=torch.bfloat16)
            self.codes[part] = torch.randint(0, 256, (shape[0], size // shape[0] // 2),
                                             device="cuda", dtype=torch.uint8)
            self.scale[part] = torch.rand(shape[0], size // shape[0] // 64, device="cuda") * 0.05

    def expert(self, part, e):
        codes, table = self.codes[part][e], torch.tensor(peers.NF4, device="cuda").double()
        values = table[torch.stack((codes >> 4, codes & 15), dim=1).flatten().int()]
        return (values.unflatten(0, (-1, 64)) * self.scale[part][e].double()[:, None]).view(
            self.shapes[part][1:])

    def dequantize(self, part):
        pointer, stream = ctypes.c_void_p, torch.cuda.current_stream().cuda_stream
        at_once = max(1, (1 << 30) // (self.codes[part].shape[1] * 2))  # values are counted in int
        for e in range(0, self.count, at_once):
            last = min(self.count, e + at_once)
            self.library.cdequantize_blockwise_bf16_nf4(
                None, pointer(self.codes[part][e].data_ptr()),
                pointer(self.scale[part][e].data_ptr()), pointer(self.dense[part][e].data_ptr()),
                ctypes.c_int(64), ctypes.c_int((last - e) * self.codes[part].shape[1] * 2),
                pointer(stream))

    def layer(self, x, ids, weights):
        self.dequantize("up")
        self.dequantize("down")
        return super().layer(x, ids, weights)


def routings(model, tokens):
    """Uniform, without an expert twice: CALLS of them, and their weights."""
    count, _, _, slots = MODELS[model]
    for _ in range(CALLS):
        ids = torch.rand(tokens, count, device="cuda").argsort(1)[:, :slots].contiguous()
        yield ids.int(), torch.rand(tokens, slots, device="cuda")


class Report(peers.Report):
    """Written after each line."""

    def __init__(self, out):
        super().__init__()
        self.out = out

    def add(self, *line):
        super().add(*line)
        with open(self.out, "w", encoding="utf-8") as file:
            json.dump(self.lines, file, indent=0)


def run_peer(report, kind, model, tokens):
    peer = kind(model)
    _, hidden, inner, _ = MODELS[model]
    for t in filter(peer.takes, tokens):
        x = torch.randn(t, hidden, device="cuda", dtype=torch.bfloat16)
        calls = [lambda r=r: peer.layer(x, *r) for r in routings(model, t)]
        ids, weights = next(routings(model, t))
        y = peer.layer(x, ids, weights)[:2].double()
        truth = peer.truth(x[:2], ids[:2], weights[:2])
        error = float((y - truth).norm() / truth.norm())
        if not error < 0.03:
            sys.exit(f"{peer.name}, {model}, {t} tokens: error {error}")
        report.add(f"peer: {model} {peer.name}", hidden, inner, t, peers.microseconds(calls), 0,
                   error)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--bitsandbytes", metavar="LIBRARY")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--tokens", default="1,16,64,1024,4096")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("experts_peers.py: PyTorch sees no GPU")
    kinds = [Dense]
    if ALL_EXPERTS_FUNCTIONS is None:
        print("left out: transformers (no version 5 of it)")
    else:
        kinds += [Transformers, Batched]
        if peers.load_bitsandbytes(options.bitsandbytes):
            Nf4.library = peers.Bitsandbytes.library
            kinds.append(Nf4)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "transformers",
          transformers.__version__ if transformers else "-")
    report = Report(options.out)
    torch.manual_seed(1)
    for model in options.models.split(","):
        for kind in kinds:
            try:
                run_peer(report, kind, model, [int(t) for t in options.tokens.split(",")])
            except (RuntimeError, AttributeError) as problem:
                print(f"left out: {kind.name}, {model}: {str(problem).splitlines()[0]}")
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
