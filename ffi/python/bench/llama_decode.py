"""Tokens a second of a transformers Llama with random weights: qk beside others, in one run.

    llama_decode.py [--device cpu|cuda] [--layers 32] [--width 4096] [--inner 14336] [--tokens 64]
                    [--sides dense,qk,bitsandbytes,torch_int4]

Shapes of Llama-3-8B. The output head stays dense on every side. Greedy decoding of one sequence
with a static cache: each step eager, and on a GPU the same step replayed from a CUDA graph. Sides
are NF4 in groups of 64 but torch_int4, torch's own 4-bit product (groups of 128), on a GPU alone.
"""
import argparse
import gc
import time

import torch
import transformers

SIDES = "dense,qk,bitsandbytes,torch_int4"


def with_qk(model):
    import qk.torch
    qk.torch.replace_linear(model, "nf4")


def replaced(model, make):
    for name, layer in list(model.named_modules()):
        if type(layer) is torch.nn.Linear and name != "lm_head":
            model.set_submodule(name, make(layer))


def with_bitsandbytes(model):
    import bitsandbytes

    def make(dense):
        layer = bitsandbytes.nn.Linear4bit(
            dense.in_features, dense.out_features, bias=False, quant_type="nf4",
            compute_dtype=dense.weight.dtype, compress_statistics=False)
        layer.weight = bitsandbytes.nn.Params4bit(dense.weight.data.cpu(), requires_grad=False,
                                                  compress_statistics=False, quant_type="nf4")
        return layer.to(dense.weight.device)

    replaced(model, make)


class TorchInt4(torch.nn.Module):
    def __init__(self, dense):
        super().__init__()
        n, k = dense.weight.shape
        codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=dense.weight.device)
        self.packed = torch._convert_weight_to_int4pack(codes, 8)
        self.scales = torch.full((k // 128, n, 2), 0.01, dtype=torch.bfloat16,
                                 device=dense.weight.device)

    def forward(self, x):
        y = torch._weight_int4pack_mm(x.reshape(-1, x.shape[-1]), self.packed, 128, self.scales)
        return y.reshape(*x.shape[:-1], -1)


def with_torch_int4(model):
    if not model.lm_head.weight.is_cuda:
        raise RuntimeError("torch's 4-bit product of this layout is for GPUs")
    replaced(model, TorchInt4)


class Decoder:
    """One step: the token in `token` gives the next one, in place."""

    def __init__(self, model, most):
        device = model.lm_head.weight.device
        self.model, self.token = model, torch.ones(1, 1, dtype=torch.long, device=device)
        self.position = torch.zeros(1, 1, dtype=torch.long, device=device)
        self.cache = transformers.StaticCache(config=model.config, max_cache_len=most)

    def __call__(self):
        logits = self.model(input_ids=self.token, position_ids=self.position,
                            past_key_values=self.cache, use_cache=True).logits
        self.token.copy_(logits[:, -1:].argmax(-1))
        self.position.add_(1)


def per_second(step, count, on_gpu):
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    wait()
    begin = time.perf_counter()
    for _ in range(count):
        step()
    wait()
    return count / (time.perf_counter() - begin)


def measure(side, given):
    torch.manual_seed(3)
    on_gpu = given.device == "cuda"
    config = transformers.LlamaConfig(
        hidden_size=given.width, intermediate_size=given.inner, num_hidden_layers=given.layers,
        num_attention_heads=given.width // 128, num_key_value_heads=max(1, given.width // 512),
        vocab_size=128256 if given.width >= 4096 else 4096, dtype="bfloat16")
    with torch.device(given.device):
        model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    model.requires_grad_(False)
    if side != "dense":
        globals()[f"with_{side}"](model)
    step = Decoder(model, 4 * given.tokens + 64)
    for _ in range(8):
        step()
    found = {"eager": per_second(step, given.tokens, on_gpu)}
    if on_gpu:
        warm = torch.cuda.Stream()
        with torch.cuda.stream(warm):
            step()
        warm.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
        graph.replay()
        found["graph"] = per_second(graph.replay, given.tokens, on_gpu)
    return found


@torch.no_grad()
def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options.add_argument("--sides", default=SIDES)
    for name, default in (("width", 4096), ("inner", 14336), ("layers", 32), ("tokens", 64)):
        options.add_argument(f"--{name}", type=int, default=default)
    given = options.parse_args()
    for side in given.sides.split(","):
        try:
            found = measure(side, given)
        except (ImportError, RuntimeError) as error:
            found = {}
            print(f"{side:14} left out: {str(error).splitlines()[0]}", flush=True)
        if found:
            print(f"{side:14} " + ", ".join(f"{how} {rate:.1f} tokens/s"
                                            for how, rate in found.items()), flush=True)
        gc.collect()
        if given.device == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
