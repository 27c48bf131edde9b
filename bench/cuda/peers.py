#!/usr/bin/env python3
"""What others take for the same products and dequantizations on this GPU.

    peers.py OUT.json [--bitsandbytes LIBRARY] [--shapes NxK,...] [--rows M,...]

Needs PyTorch with CUDA. Peers: dense f16 (torch's linear), torch's int4 op (bf16, groups of 128),
bitsandbytes' shared library by dlopen (its fused NF4 product, and its dequantize followed by the
dense product), torch-only dequantize + dense product. LIBRARY: libbitsandbytes_cuda*.so; without
it, the one of the installed package, if there is one. What is missing is said and left out.

The protocol is that of bench_cuda: calls captured in one CUDA graph that rotates over copies of the
weights (400 MB or more), replayed 11 times, the median; each peer's result is compared with a
product in higher precision first, and the error is printed. OUT.json has bench_cuda's fields.
"""
import argparse
import ctypes
import glob
import importlib.util
import json
import os
import statistics
import sys

import torch
import torch.nn.functional as F

SHAPES = "4096x4096,6144x4096,4096x14336,8192x8192,28672x4096,8192x28672,57344x8192"
ROWS = "1,2,4,8,16,32,64,128,256,512,1024,2048,4096"
NF4 = [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0]


def copies(byte_count):
    return max(2, min(64, -(-400_000_000 // byte_count)))


def microseconds(calls):
    """Median time of one call, the calls replayed from a graph one after another."""
    for call in calls:
        call()
    torch.cuda.synchronize()

    def captured(count):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(count):
                calls[i % len(calls)]()
        return graph

    def replay(graph):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    count = len(calls)
    graph = captured(count)
    replay(graph)
    once = min(replay(graph), replay(graph))
    if once < 2000:
        count *= min(64, max(1, round(2000 / once)))
        graph = captured(count)
        replay(graph)
    return statistics.median(replay(graph) for _ in range(11)) / count


class Dense:
    name = "peer: dense f16 torch"

    def __init__(self, n, k):
        self.bytes = 2 * n * k
        self.w = [torch.randn(n, k, device="cuda", dtype=torch.float16) * 0.02
                  for _ in range(copies(self.bytes))]

    def x(self, x):
        return x

    def calls(self, x):
        return [lambda w=w: F.linear(x, w) for w in self.w]

    def truth(self):
        return self.w[0]


class TorchInt4:
    """bf16, scale and zero for each group of 128."""
    name = "peer: torch int4 g128 bf16"

    def __init__(self, n, k):
        self.bytes = n * k // 2 + n * k // 128 * 4
        self.codes = torch.randint(0, 16, (n, k), device="cuda", dtype=torch.int32)
        pair = (self.codes[:, ::2] << 4 | self.codes[:, 1::2]).to(torch.uint8)
        packed = torch.ops.aten._convert_weight_to_int4pack(pair, 8)
        shape = (k // 128, n)
        self.scale = (torch.rand(shape, device="cuda") * 0.01 + 0.001).to(torch.bfloat16)
        self.shift = ((torch.rand(shape, device="cuda") - 0.5) * 0.01).to(torch.bfloat16)
        table = torch.stack((self.scale, self.shift), dim=2).contiguous()
        self.w = [(packed.clone(), table.clone()) for _ in range(copies(self.bytes))]

    def x(self, x):
        return x.to(torch.bfloat16)

    def calls(self, x):
        op = torch.ops.aten._weight_int4pack_mm
        return [lambda w=w: op(x, w[0], 128, w[1]) for w in self.w]

    def truth(self):
        groups = (self.codes - 8).float().unflatten(1, (-1, 128))
        return (groups * self.scale.float().t()[..., None]
                + self.shift.float().t()[..., None]).flatten(1)


class TorchNf4:
    """A table look-up and a dense product by torch alone: what a program without a kernel does."""
    name = "peer: torch NF4 dequantize + dense f16"

    def __init__(self, n, k):
        self.bytes = n * k // 2 + n * k // 64 * 4
        self.shape = (n, k)
        self.table = torch.tensor(NF4, device="cuda", dtype=torch.float16)
        self.codes = torch.randint(0, 256, (n * k // 2,), device="cuda", dtype=torch.uint8)
        self.scale = torch.rand(n * k // 64, device="cuda") * 0.05 + 0.01

    def x(self, x):
        return x

    def dequantized(self):
        nibbles = torch.stack((self.codes >> 4, self.codes & 15), dim=1).flatten().int()
        return (self.table[nibbles].unflatten(0, (-1, 64)) *
                self.scale.half()[:, None]).reshape(self.shape)

    def calls(self, x):
        return [lambda: F.linear(x, self.dequantized())]

    def truth(self):
        return self.dequantized()


class Bitsandbytes:
    """NF4, blocks of 64, f32 scales: the fused product, or dequantize and the dense product."""
    library = None

    def __init__(self, n, k):
        self.n, self.k = n, k
        self.bytes = n * k // 2 + n * k // 64 * 4
        self.table = torch.tensor(NF4, device="cuda")
        self.w = [(torch.randint(0, 256, (n * k // 2,), device="cuda", dtype=torch.uint8),
                   torch.rand(n * k // 64, device="cuda") * 0.05 + 0.01)
                  for _ in range(copies(self.bytes))]

    def x(self, x):
        return x

    def truth(self):
        codes, scale = self.w[0]
        nibbles = torch.stack((codes >> 4, codes & 15), dim=1).flatten().int()
        return (self.table[nibbles].unflatten(0, (-1, 64)) * scale[:, None]).reshape(self.n, self.k)

    def dequantize(self, codes, scale, out):
        pointer, stream = ctypes.c_void_p, torch.cuda.current_stream().cuda_stream
        self.library.cdequantize_blockwise_fp16_nf4(
            None, pointer(codes.data_ptr()), pointer(scale.data_ptr()), pointer(out.data_ptr()),
            ctypes.c_int(64), ctypes.c_int(self.n * self.k), pointer(stream))


class BitsandbytesFused(Bitsandbytes):
    name = "peer: bitsandbytes NF4 fused f16"

    def calls(self, x):
        y = torch.empty(x.shape[0], self.n, device="cuda", dtype=torch.float16)

        def call(codes, scale):
            pointer = ctypes.c_void_p
            self.library.cgemm_4bit_fp16(
                pointer(x.data_ptr()), pointer(codes.data_ptr()), pointer(scale.data_ptr()), None,
                None, None, pointer(y.data_ptr()), None, *map(ctypes.c_int, (
                    x.shape[0], self.n, self.k, 64, 2)),
                pointer(torch.cuda.current_stream().cuda_stream))
            return y
        return [lambda w=w: call(*w) for w in self.w]


class BitsandbytesDense(Bitsandbytes):
    name = "peer: bitsandbytes NF4 dequantize + dense f16"

    def calls(self, x):
        dense = torch.empty(self.n, self.k, device="cuda", dtype=torch.float16)

        def call(codes, scale):
            self.dequantize(codes, scale, dense)
            return F.linear(x, dense)
        return [lambda w=w: call(*w) for w in self.w]


class BitsandbytesDequantize(Bitsandbytes):
    name = "peer: bitsandbytes NF4 dequantize f16"

    def calls(self, _):
        # Two copies in turn: at 4096 x 4096 they are 64 MB, more than the L2 cache holds.
        outs = [torch.empty(self.n, self.k, device="cuda", dtype=torch.float16) for _ in range(8)]

        def call(codes, scale, out):
            self.dequantize(codes, scale, out)
            return out
        return [lambda w=w, out=outs[i % 8]: call(*w, out) for i, w in enumerate(self.w)]


def error_of(peer, x, y):
    """Relative, in the 2-norm, over some rows of y."""
    truth = x[:4].double() @ peer.truth().double().t()
    return float((y[:4].double() - truth).norm() / truth.norm())


def load_bitsandbytes(path):
    if path is None:
        spec = importlib.util.find_spec("bitsandbytes")
        found = sorted(glob.glob(os.path.join(os.path.dirname(spec.origin),
                                              "libbitsandbytes_cuda*.so"))) if spec else []
        wanted = "cuda" + torch.version.cuda.replace(".", "") + ".so"
        path = next((name for name in found if name.endswith(wanted)), None)
    if path is None:
        print("left out: bitsandbytes (no libbitsandbytes_cuda*.so)")
        return False
    Bitsandbytes.library = ctypes.CDLL(path)
    return True


class Report:
    def __init__(self):
        self.lines = []

    def add(self, what, n, k, m, us, byte_count, error=None):
        tail = "" if error is None else f"  error {error:.1e}"
        print(f"{what:48s} {n:6d} x {k:<6d} m {m:<4d} {us:9.2f} us{tail}", flush=True)
        self.lines.append({"what": what, "n": n, "k": k, "m": m, "us": us, "bytes": byte_count,
                           "error": error})


def run_peer(report, kind, n, k, rows):
    peer = kind(n, k)
    if kind is BitsandbytesDequantize:
        x = torch.empty(0, device="cuda")
        us = microseconds(peer.calls(x))
        dense = peer.calls(x)[0]()
        truth = peer.truth().double()
        error = float((dense.double() - truth).norm() / truth.norm())
        return report.add(peer.name, n, k, 0, us, peer.bytes + 2 * n * k, error)
    for m in rows:
        if kind is BitsandbytesFused and m > 512 or kind is TorchInt4 and m > 1024:
            continue  # meant for small batches: many times the dense product's time
        x = peer.x(torch.randn(m, k, device="cuda", dtype=torch.float16))
        calls = peer.calls(x)
        error = error_of(peer, x, calls[0]())
        report.add(peer.name, n, k, m, microseconds(calls), peer.bytes, error)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--bitsandbytes", metavar="LIBRARY")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rows", default=ROWS)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("peers.py: PyTorch sees no GPU")
    kinds = [Dense, TorchInt4, TorchNf4]
    if load_bitsandbytes(options.bitsandbytes):
        kinds += [BitsandbytesFused, BitsandbytesDense, BitsandbytesDequantize]
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    report = Report()
    torch.manual_seed(1)
    for shape in options.shapes.split(","):
        n, k = map(int, shape.split("x"))
        for kind in kinds:
            try:
                run_peer(report, kind, n, k, [int(m) for m in options.rows.split(",")])
            except (RuntimeError, AttributeError) as problem:
                print(f"left out: {kind.name} at {shape}: {str(problem).splitlines()[0]}")
            torch.cuda.empty_cache()
    with open(options.out, "w", encoding="utf-8") as file:
        json.dump(report.lines, file, indent=0)


if __name__ == "__main__":
    main()
