#!/usr/bin/env python3
"""Peers of qk_linear and qk_dequantize on the CPU, one row of x, weights in memory: ONNX Runtime's
MatMulNBits and MatMulBnb4, bitsandbytes' 4-bit product and dequantize. Between their samples runs
qk_bench_cpu_linear's case of the same shape, so that ratios to its floor are of one run.

    cpu_peers.py QK_BENCH_CPU_LINEAR [--threads N] [--seconds S] [--shapes 4096x4096,14336x4096]
                 [--package onnxruntime|bitsandbytes]

One JSON object a line. A package that is missing is named and left out; 77 where all are.
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


def onnx_calls(n, k, threads):
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
            [node], kind, [helper.make_tensor_value_info("X", TensorProto.FLOAT, [1, k])],
            [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [1, n])], tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17),
                                                        helper.make_opsetid("com.microsoft", 1)])
        model.ir_version = 8
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        return onnxruntime.InferenceSession(model.SerializeToString(), options,
                                            providers=["CPUExecutionProvider"])

    x = {"X": random.standard_normal((1, k)).astype(np.float32)}
    for kind, name in (("f32", "MatMulNBits b64, f32 sums"), ("int8", "MatMulNBits b128, int8"),
                       ("bnb4", "MatMulBnb4 NF4 b64")):
        size = node_of(kind)[2]
        sessions = [session(kind) for _ in range(max(2, int(COPIES_BYTES / size) + 1))]
        state = {"at": 0}

        def call(sessions=sessions, state=state):
            state["at"] = (state["at"] + 1) % len(sessions)
            sessions[state["at"]].run(None, x)
        yield f"ONNX Runtime {onnxruntime.__version__}, {name}", call, size


def bitsandbytes_calls(n, k, threads):
    try:
        import bitsandbytes
        import torch
        from bitsandbytes import functional
    except ImportError as error:
        return missing("bitsandbytes", error)
    torch.set_num_threads(threads)
    dense = torch.randn(n, k)
    size = n * k // 2 + n * k // 64 * 4
    count = max(2, int(COPIES_BYTES / size) + 1)
    x = torch.randn(1, k, dtype=torch.bfloat16)
    for kind in ("nf4", "fp4"):
        code, state = functional.quantize_4bit(dense, blocksize=64, quant_type=kind)

        def rotation(tensor):
            copies = itertools.cycle([tensor.clone() for _ in range(count)])
            return lambda: next(copies)
        version = f"bitsandbytes {bitsandbytes.__version__}"
        state.dtype = torch.bfloat16
        next_code = rotation(code)
        yield (f"{version}, matmul_4bit {kind}, bf16",
               lambda: bitsandbytes.matmul_4bit(x, next_code().t(), quant_state=state), size)
        yield (f"{version}, dequantize {kind} to bf16",
               lambda: functional.dequantize_4bit(next_code(), state), size)
        if not functional.has_avx512bf16():
            missing(f"{version}, packed {kind}", "no AVX-512 BF16")
            continue
        # As Linear4bit does before its first product.
        packed, packed_state = functional._convert_weight_packed_for_cpu(code, copy.copy(state))
        next_packed = rotation(packed)
        yield (f"{version}, matmul_4bit {kind} packed, AVX-512 BF16",
               lambda: bitsandbytes.matmul_4bit(x, next_packed(), quant_state=packed_state),
               size - n * k // 64 * 2)  # its scales are bf16


SOURCES = {"onnxruntime": onnx_calls, "bitsandbytes": bitsandbytes_calls}


def sample(call, seconds, threads):
    clock = time.thread_time if threads == 1 else time.perf_counter
    call()
    times = []
    start = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < seconds:
        before = clock()
        call()
        times.append(clock() - before)
    return times


def qk_line(bench, n, k, arguments):
    lines = subprocess.run([bench, "--filter", "nf4 b64 f32", "--shape", f"{n}x{k}", "--threads",
                            str(arguments.threads), "--seconds", "0.2"],
                           check=True, capture_output=True, text=True).stdout
    if not lines:
        sys.exit(f"{bench} has no shape {n}x{k}")
    return json.loads(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--shapes", default="4096x4096")
    parser.add_argument("--package", choices=SOURCES, help="only this one's")
    arguments = parser.parse_args()
    sources = [SOURCES[arguments.package]] if arguments.package else SOURCES.values()
    os.environ["OMP_NUM_THREADS"] = str(arguments.threads)
    found = False
    for shape in arguments.shapes.split(","):
        n, k = map(int, shape.split("x"))
        for source in sources:
            for name, call, size in source(n, k, arguments.threads) or ():
                found = True
                floors, rates = [], []
                for _ in range(3):
                    floors.append(qk_line(arguments.bench, n, k, arguments)["floor GB/s"])
                    times = sample(call, arguments.seconds / 3, arguments.threads)
                    rates.append(size / float(np.median(times)) * 1e-9)
                rate, floor = float(np.median(rates)), float(np.median(floors))
                print(json.dumps({"bench": "peer", "peer": name, "n": n, "k": k,
                                  "threads": arguments.threads, "GB/s": round(rate, 2),
                                  "floor GB/s": round(floor, 2),
                                  "ratio": round(rate / floor, 3)}), flush=True)
    if not found:
        sys.exit(77)


if __name__ == "__main__":
    main()
