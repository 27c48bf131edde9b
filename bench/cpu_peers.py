#!/usr/bin/env python3
"""qk's products on the CPU beside those of peers, weights in memory: ONNX Runtime's MatMulNBits and
MatMulBnb4, bitsandbytes' 4-bit product and dequantize, PyTorch's dense bf16 and 4-bit products.
A sample of any is between two of the floor, as qk_bench_cpu_linear takes qk's.

    cpu_peers.py QK_BENCH_CPU_LINEAR [--threads N] [--seconds S] [--shapes 4096x4096,14336x4096]
                 [--m 1,16] [--package qk|onnxruntime|bitsandbytes|torch]

One JSON object a line; the floor is a loop that only reads, or of more rows than one the peak of
f32 multiplications and additions. A package that is missing is named and left out; 77 where all
are.
"""
import argparse
import copy
import itertools
import json
import os
import subprocess
import sys
import time

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

COPIES_BYTES = 3.2e8  # weights rotate through more than the caches hold


def missing(name, error):
    print(f"skipped: {name}: {error}", file=sys.stderr)


def rotation(tensor, size):
    """The next copy of the tensor, of which there are more than the caches hold."""
    copies = itertools.cycle([tensor.clone() for _ in range(copies_of(size))])
    return lambda: next(copies)


def copies_of(size):
    return max(2, int(COPIES_BYTES / size) + 1)


def onnx_calls(n, k, m, threads):
    """(name, call that multiplies by the next copy, bytes of a product)"""
    try:
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
    except ImportError as error:
        return missing("onnxruntime", error)
    random = np.random.default_rng(7)

    def node_of(kind):
        if kind == "bnb4":
            inputs = {"B": random.integers(0, 256, n * k // 2, np.uint8),
                      "S": random.random(n * k // 64, np.float32)}
            attributes = {"K": k, "N": n, "block_size": 64, "quant_type": 1}
            operation = "MatMulBnb4"
        else:
            block = 64 if kind == "f32" else 128
            inputs = {"B": random.integers(0, 256, (n, k // block, block // 2), np.uint8),
                      "S": random.random(n * k // block, np.float32)}
            attributes = {"K": k, "N": n, "bits": 4, "block_size": block,
                          "accuracy_level": 1 if kind == "f32" else 4}
            operation = "MatMulNBits"
        tensors = [numpy_helper.from_array(v, name) for name, v in inputs.items()]
        names = ["X"] + [t.name for t in tensors]
        node = helper.make_node(operation, names, ["Y"], domain="com.microsoft",
                                **attributes)
        return node, tensors, sum(v.nbytes for v in inputs.values())

    def session(kind):
        node, tensors, _ = node_of(kind)
        graph = helper.make_graph(
            [node], kind, [helper.make_tensor_value_info("X", TensorProto.FLOAT, [m, k])],
            [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [m, n])], tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17),
                                                        helper.make_opsetid("com.microsoft", 1)])
        model.ir_version = 8
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(model.SerializeToString(), options,
                                            providers=["CPUExecutionProvider"])

    x = {"X": random.standard_normal((m, k)).astype(np.float32)}
    for kind, name in (("f32", "MatMulNBits b64, f32 sums"), ("int8", "MatMulNBits b128, int8"),
                       ("bnb4", "MatMulBnb4 NF4 b64")):
        size = node_of(kind)[2]
        sessions = itertools.cycle([session(kind) for _ in range(copies_of(size))])

        def call(sessions=sessions):
            next(sessions).run(None, x)
        yield f"ONNX Runtime {onnxruntime.__version__}, {name}", call, size


def bitsandbytes_calls(n, k, m, threads):
    try:
        import bitsandbytes
        import torch
        from bitsandbytes import functional
    except ImportError as error:
        return missing("bitsandbytes", error)
    torch.set_num_threads(threads)
    dense = torch.randn(n, k)
    size = n * k // 2 + n * k // 64 * 4
    x = torch.randn(m, k, dtype=torch.bfloat16)
    for kind in ("nf4", "fp4"):
        code, state = functional.quantize_4bit(dense, blocksize=64, quant_type=kind)
        version = f"bitsandbytes {bitsandbytes.__version__}"
        state.dtype = torch.bfloat16
        next_code = rotation(code, size)
        yield (f"{version}, matmul_4bit {kind}, bf16",
               lambda: bitsandbytes.matmul_4bit(x, next_code().t(), quant_state=state), size)
        if m == 1:
            yield (f"{version}, dequantize {kind} to bf16",
                   lambda: functional.dequantize_4bit(next_code(), state), size)
        if not functional.has_avx512bf16():
            missing(f"{version}, packed {kind}", "no AVX-512 BF16")
            continue
        # As Linear4bit does before its first product.
        packed, packed_state = functional._convert_weight_packed_for_cpu(code, copy.copy(state))
        next_packed = rotation(packed, size)
        yield (f"{version}, matmul_4bit {kind} packed, AVX-512 BF16",
               lambda: bitsandbytes.matmul_4bit(x, next_packed(), quant_state=packed_state),
               size - n * k // 64 * 2)  # its scales are bf16


def torch_calls(n, k, m, threads):
    try:
        import torch
    except ImportError as error:
        return missing("torch", error)
    if not hasattr(torch.ops.aten, "_convert_weight_to_int4pack_for_cpu"):
        return missing("torch", "too old for 4-bit products")
    torch.set_num_threads(threads)
    version = f"PyTorch {torch.__version__.split('+')[0]}"
    x = torch.randn(m, k, dtype=torch.bfloat16)
    dense = torch.randn(n, k, dtype=torch.bfloat16)
    next_dense = rotation(dense, dense.nbytes)
    yield f"{version}, dense bf16", lambda: x @ next_dense().t(), dense.nbytes
    group = 128
    codes = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
        torch.randint(0, 16, (n, k), dtype=torch.int32), 1)
    scales = torch.randn(k // group, n, 2, dtype=torch.bfloat16)
    size = codes.nbytes + scales.nbytes
    next_codes = rotation(codes, size)
    yield (f"{version}, int4 b{group}, bf16",
           lambda: torch.ops.aten._weight_int4pack_mm_for_cpu(x, next_codes(), group, scales), size)


SOURCES = {"onnxruntime": onnx_calls, "bitsandbytes": bitsandbytes_calls, "torch": torch_calls}
QK_CASES = (("nf4 b64 f32", "exact"), ("nf4 b64 f32", "int8"), ("u4 g128 f16", "exact"),
            ("u4 g128 f16", "bf16"), ("u4 g128 f16", "int8"))


class Floor:
    """The floor's rate of now, by the program that measures qk."""
    def __init__(self, m, options):
        self.threads = options.threads
        self.process = subprocess.Popen([options.bench, "--floor", *floor_of(m, options)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.communicate()

    def rate(self):
        if self.threads > 1:
            time.sleep(0.005)  # a peer's threads spin for a while
        try:
            print(file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass  # it has left; so it has no answer
        line = self.process.stdout.readline()
        return float(line) if line else sys.exit(
            f"{self.process.args[0]} --floor has left: exit code {self.process.wait()}")


def floor_of(m, options):
    return ["--against", "read" if m == 1 else "peak", "--threads", str(options.threads)]


def measured(call, work, calls, floor, options):
    """Medians of a call's rate, the floor's around it, and their ratio."""
    clock = time.thread_time if options.threads == 1 else time.perf_counter

    def rate_of(count):
        before = clock()
        for _ in range(count):
            call()
        return count * work / (clock() - before) * 1e-9

    call()
    calls = max(1, min(calls, int(0.1 * rate_of(1) * 1e9 / work)))
    rates, floors, ratios = [], [], []
    start, before = time.perf_counter(), floor.rate()
    while len(rates) < 5 or time.perf_counter() - start < options.seconds:
        rate, after = rate_of(calls), floor.rate()
        rates.append(rate)
        floors.append((before + after) / 2)
        ratios.append(rate / floors[-1])
        before = after
    return tuple(float(np.median(values)) for values in (rates, floors, ratios))


def qk_line(shape, m, options, case, mode):
    """What qk_bench_cpu_linear prints for the case."""
    lines = subprocess.run([options.bench, "--filter", case, "--shape", shape, "--mode", mode,
                            "--m", str(m), *floor_of(m, options), "--seconds",
                            str(options.seconds)],
                           check=True, capture_output=True, text=True).stdout.splitlines()
    line = next((line for line in map(json.loads, lines) if line["case"] == case), None)
    return line or sys.exit(f"{options.bench} has no {case} of shape {shape}")


def unit_of(m):
    """Of rates: a product of one row of x is bound by what it reads."""
    return "GB/s" if m == 1 else "GFLOP/s"


def line_of(peer, shape, m, threads, rate, floor, ratio):
    n, k = map(int, shape.split("x"))
    unit = unit_of(m)
    return {"bench": "peer", "peer": peer, "n": n, "k": k, "m": m, "threads": threads,
            unit: round(rate, 2), f"floor {unit}": round(floor, 2), "ratio": round(ratio, 3)}


def peer_lines(source, shape, m, options):
    n, k = map(int, shape.split("x"))
    for name, call, size in source(n, k, m, options.threads) or ():
        work = size if m == 1 else 2 * n * k * m
        with Floor(m, options) as floor:
            numbers = measured(call, work, 1 if m >= 64 else copies_of(size), floor, options)
        yield line_of(name, shape, m, options.threads, *numbers)


def qk_lines(shape, m, options):
    unit = unit_of(m)
    for case, mode in QK_CASES:
        line = qk_line(shape, m, options, case, mode)
        yield line_of(f"qk, {case}, {mode}", shape, m, options.threads, line[unit],
                      line[f"floor {unit}"], line["ratio"])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--shapes", default="4096x4096")
    parser.add_argument("--m", default="1", help="rows of x: 1,16,512")
    parser.add_argument("--package", choices=["qk", *SOURCES], help="only this one's")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    found = False
    for shape, m in itertools.product(options.shapes.split(","), map(int, options.m.split(","))):
        for package in [options.package] if options.package else ["qk", *SOURCES]:
            lines = (qk_lines(shape, m, options) if package == "qk" else
                     peer_lines(SOURCES[package], shape, m, options))
            for line in lines:
                found = True
                print(json.dumps(line), flush=True)
    if not found:
        sys.exit(77)


if __name__ == "__main__":
    main()
