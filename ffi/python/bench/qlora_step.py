"""A QLoRA step, qk's layers beside bitsandbytes': NF4 nested, adapters of rank 16 on every layer.

    qlora_step.py [--device cpu|cuda] [--width 4096] [--inner 14336] [--blocks 4] [--tokens 2048]
                  [--dtype bfloat16|float32] [--mode bf16_products] [--rounds 7]
                  [--processor-time]

A stack of attention and MLP blocks of Llama's shapes (without its attention itself, which is the
same for both) over 1 x TOKENS; forward, backward and AdamW on the adapters. Both sides begin with
the same weights and adapters and run in turns; the median step counts. How far apart the adapters'
gradients of the first step are is printed, of float32 beside those of a dense twin.
--processor-time counts what the process used, for one thread of a CPU that others use too.
"""
import argparse
import copy
import statistics
import time

import bitsandbytes
import torch

import qk
import qk.torch


class Adapted(torch.nn.Module):
    def __init__(self, layer, rank=16):
        super().__init__()
        n, k = layer.out_features, layer.in_features
        device, dtype = layer.weight.device, layer.weight.dtype
        self.base = layer
        self.a = torch.nn.Parameter(torch.randn(k, rank, device=device, dtype=dtype) / k ** 0.5)
        self.b = torch.nn.Parameter(torch.randn(rank, n, device=device, dtype=dtype) / rank ** 0.5)

    def forward(self, x):
        return self.base(x) + x @ self.a @ self.b


class Block(torch.nn.Module):
    def __init__(self, width, inner):
        super().__init__()

        def layer(n, k):
            return Adapted(torch.nn.Linear(k, n, bias=False).requires_grad_(False))

        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in range(2))
        self.norms.requires_grad_(False)
        self.q, self.o = layer(width, width), layer(width, width)
        self.k, self.v = layer(width // 4, width), layer(width // 4, width)
        self.gate, self.up, self.down = layer(inner, width), layer(inner, width), \
            layer(width, inner)

    def forward(self, x):
        y = self.norms[0](x)
        mixed = self.q(y) * torch.cat([self.k(y) + self.v(y)] * 4, -1).tanh()
        x = x + self.o(mixed)
        y = self.norms[1](x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def with_bitsandbytes(model, dtype):
    for block in model:
        for adapted in (module for module in block.modules() if isinstance(module, Adapted)):
            dense = adapted.base
            layer = bitsandbytes.nn.Linear4bit(
                dense.in_features, dense.out_features, bias=False, compute_dtype=dtype,
                compress_statistics=True, quant_type="nf4")
            layer.weight = bitsandbytes.nn.Params4bit(
                dense.weight.data.cpu(), requires_grad=False, compress_statistics=True,
                quant_type="nf4")
            adapted.base = layer.to(dense.weight.device)
    return model


def with_qk(model, _dtype):
    qk.torch.replace_linear(model, "nf4", nested=True)
    return model


class Run:
    def __init__(self, model, x, clock):
        self.model, self.x, self.clock, self.times = model, x, clock, []
        self.adapters = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.adapters, lr=1e-4)

    def step(self):
        wait = torch.cuda.synchronize if self.x.is_cuda else lambda: None
        wait()
        begin = self.clock()
        self.optimizer.zero_grad()
        y = self.model(self.x)
        y.float().square().mean().backward()
        self.optimizer.step()
        wait()
        self.times.append(self.clock() - begin)

    def gradients(self):
        self.step()
        self.times.clear()
        return [p.grad.double() for p in self.adapters]


def apart(ones, others):
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ones, others))


def dense_twin(model):
    twin = copy.deepcopy(model)
    qk.torch.dequantize_linear(twin)
    return twin


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    options.add_argument("--mode", help="of qk's context, on the CPU")
    options.add_argument("--processor-time", action="store_true")
    for name, default in (("width", 4096), ("inner", 14336), ("blocks", 4), ("tokens", 2048),
                          ("rounds", 7)):
        options.add_argument(f"--{name}", type=int, default=default)
    given = options.parse_args()
    with qk.Context(mode=given.mode, threads=torch.get_num_threads()):
        compare(given)


def compare(given):
    dtype = getattr(torch, given.dtype)
    torch.manual_seed(9)
    with torch.device(given.device):
        dense = torch.nn.Sequential(*(Block(given.width, given.inner)
                                      for _ in range(given.blocks))).to(dtype)
        x = torch.randn(1, given.tokens, given.width, dtype=dtype)
    x.requires_grad_()  # as what an embedding's adapter gives: every layer has a gradient of x
    models = {"qk": with_qk(copy.deepcopy(dense), dtype),
              "bitsandbytes": with_bitsandbytes(dense, dtype)}
    twin = dense_twin(models["qk"]) if dtype == torch.float32 else None
    clock = time.process_time if given.processor_time else time.perf_counter
    runs = {name: Run(model, x, clock) for name, model in models.items()}
    first = {name: run.gradients() for name, run in runs.items()}
    print(f"gradients: qk's and bitsandbytes' are {apart(*first.values()):.1e} apart")
    if twin is not None:
        exact = Run(twin, x, clock).gradients()
        for name, found in first.items():
            print(f"gradients: {name}'s and a dense twin's are {apart(found, exact):.1e} apart")
    for _ in range(given.rounds):
        for run in runs.values():
            run.step()
    medians = {name: statistics.median(run.times) * 1e3 for name, run in runs.items()}
    for name, milliseconds in medians.items():
        print(f"{name:14} {milliseconds:10.2f} ms a step, least {min(runs[name].times) * 1e3:.2f}")
    print(f"qk is {medians['bitsandbytes'] / medians['qk']:.2f} times as fast")


if __name__ == "__main__":
    main()
