#!/usr/bin/env python3
"""qk's int8 mode beside ggml's own kernels for the same types of GGUF files, on one thread.

    cpu_ggml.py QK_BENCH_CPU_LINEAR FOLDER [--m 1,16] [--shapes 4096x4096] [--types q4_0,q8_0]
                [--rounds N] [--exact]

FOLDER has a build of ggml: libggml-base.so and libggml-cpu.so. Its products run from the buffer in
which ggml rearranges weights for them, where it has one for the type, weights rotating through
memory. One JSON object a line: microseconds of a product, the shorter of a sample's and of rounds
in turns; the relative error (L2) of ggml against the product of its own dequantized weights in
double, and of int8 mode as docs/formats.md defines it, with the same weights and x.
"""
import argparse
import ctypes
import json
import pathlib
import subprocess
import sys
import time

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

COPIES_BYTES = 3.2e8  # weights rotate through more than the caches hold
TYPES = {"q4_0": (2, 32), "q4_1": (3, 32), "q8_0": (8, 32), "q4_k": (12, 32), "q5_k": (13, 32),
         "q6_k": (14, 16), "iq4_nl": (20, 32), "mxfp4": (39, 32)}  # number, codes of a group
F32 = 0


class InitParams(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("bare", ctypes.c_bool)]


class Traits(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("block", ctypes.c_int64),
                ("interleave", ctypes.c_int64), ("bytes", ctypes.c_size_t),
                ("quantized", ctypes.c_bool), ("to_float", ctypes.CFUNCTYPE(
                    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64))]


class Ggml:
    """The functions that are called, all of whose pointers are void."""

    def __init__(self, folder):
        self.base = ctypes.CDLL(str(folder / "libggml-base.so"), ctypes.RTLD_GLOBAL)
        self.cpu = ctypes.CDLL(str(folder / "libggml-cpu.so"), ctypes.RTLD_GLOBAL)
        pointer, number = ctypes.c_void_p, ctypes.c_int64

        def declare(library, result, name, *arguments):
            function = getattr(library, "ggml_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        base, cpu = self.base, self.cpu
        declare(base, pointer, "init", InitParams)
        declare(base, None, "free", pointer)
        declare(base, pointer, "new_tensor_2d", pointer, ctypes.c_int, number, number)
        declare(base, pointer, "mul_mat", pointer, pointer, pointer)
        declare(base, pointer, "new_graph", pointer)
        declare(base, None, "build_forward_expand", pointer, pointer)
        declare(base, ctypes.c_size_t, "quantize_chunk", ctypes.c_int, pointer, pointer, number,
                number, number, pointer)
        declare(base, ctypes.POINTER(Traits), "get_type_traits", ctypes.c_int)
        declare(base, pointer, "backend_alloc_ctx_tensors", pointer, pointer)
        declare(base, pointer, "backend_alloc_ctx_tensors_from_buft", pointer, pointer)
        declare(base, None, "backend_buffer_free", pointer)
        declare(base, None, "backend_tensor_set", pointer, pointer, ctypes.c_size_t,
                ctypes.c_size_t)
        declare(base, None, "backend_tensor_get", pointer, pointer, ctypes.c_size_t,
                ctypes.c_size_t)
        declare(base, ctypes.c_int, "backend_graph_compute", pointer, pointer)
        declare(base, pointer, "backend_reg_get_proc_address", pointer, ctypes.c_char_p)
        declare(base, pointer, "backend_reg_dev_get", pointer, ctypes.c_size_t)
        declare(base, ctypes.c_bool, "backend_dev_supports_op", pointer, pointer)
        declare(cpu, pointer, "backend_cpu_init")
        declare(cpu, None, "backend_cpu_set_n_threads", pointer, ctypes.c_int)
        declare(cpu, pointer, "backend_cpu_reg")
        declare(base, None, "log_set", pointer, pointer)
        self.quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, pointer)(
            lambda level, text, user: None)
        self.log_set(ctypes.cast(self.quiet, pointer), None)
        self.backend = self.backend_cpu_init()
        self.backend_cpu_set_n_threads(self.backend, 1)
        registry = self.backend_cpu_reg()
        self.device = self.backend_reg_dev_get(registry, 0)
        address = self.backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        list_of = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), pointer)(address)
        self.rearranging = []  # kinds of buffers
        kinds = list_of(self.device)
        while kinds[len(self.rearranging)]:
            self.rearranging.append(kinds[len(self.rearranging)])

    def context(self):
        return self.init(InitParams(1 << 22, None, True))


class Product:
    """y = x . transpose(w), by one of ggml's kinds of buffers or, for None, its plain one."""

    def __init__(self, ggml, kind, number, data, x, n):
        self.ggml, m, k = ggml, x.shape[0], x.shape[1]
        self.contexts = [ggml.context(), ggml.context()]
        weights, rest = self.contexts
        copies = max(2, int(COPIES_BYTES / data.nbytes) + 1)
        w = [ggml.new_tensor_2d(weights, number, k, n) for _ in range(copies)]
        of_x = ggml.new_tensor_2d(rest, F32, k, m)
        self.buffers = [
            ggml.backend_alloc_ctx_tensors(weights, ggml.backend) if kind is None else
            ggml.backend_alloc_ctx_tensors_from_buft(weights, kind)]
        self.y = [ggml.mul_mat(rest, tensor, of_x) for tensor in w]
        self.takes = ggml.backend_dev_supports_op(ggml.device, self.y[0])
        if not self.takes:
            return
        self.buffers.append(ggml.backend_alloc_ctx_tensors(rest, ggml.backend))
        for tensor in w:
            ggml.backend_tensor_set(tensor, data.ctypes.data, 0, data.nbytes)
        ggml.backend_tensor_set(of_x, x.ctypes.data, 0, x.nbytes)
        self.graphs = []
        for y in self.y:
            context = ggml.context()
            graph = ggml.new_graph(context)
            ggml.build_forward_expand(graph, y)
            self.contexts.append(context)
            self.graphs.append(graph)
        self.shape = (m, n)

    def run(self):
        """Microseconds of the fastest of three passes over all copies, a product."""
        times = []
        for _ in range(3):
            start = time.thread_time()
            for graph in self.graphs:
                self.ggml.backend_graph_compute(self.ggml.backend, graph)
            times.append((time.thread_time() - start) / len(self.graphs) * 1e6)
        return min(times)

    def result(self):
        y = np.empty(self.shape, np.float32)
        self.ggml.backend_tensor_get(self.y[0], y.ctypes.data, 0, y.nbytes)
        return y

    def free(self):
        for buffer in self.buffers:
            self.ggml.backend_buffer_free(buffer)
        for context in self.contexts:
            self.ggml.free(context)


def error_of(y, exact):
    return float(np.linalg.norm(y - exact) / np.linalg.norm(exact))


def rounded_x(x, group):
    """x as int8 mode takes it: integers of a block of columns times the block's scale."""
    blocks = x.reshape(-1, group)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    integers = np.rint(blocks * (np.float32(127) / largest))
    return (integers.astype(np.float64) * (largest / np.float32(127))).reshape(x.shape)


def qk_us(o, kind, m, n, k):
    command = [o.bench, "--filter", kind, "--shape", f"{n}x{k}", "--m", str(m), "--seconds", "0.3",
               "--mode", "exact" if o.exact else "int8"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rate = next(line for line in map(json.loads, lines) if line["case"] == kind)["GFLOP/s"]
    return 2 * m * n * k / rate * 1e-3


def compare(ggml, o, kind, m, n, k):
    number, group = TYPES[kind]
    random = np.random.default_rng(7)
    dense = random.standard_normal((n, k), np.float32)
    x = random.standard_normal((m, k), np.float32)
    traits = ggml.get_type_traits(number).contents
    data = np.empty(n * k // traits.block * traits.bytes, np.uint8)
    ggml.quantize_chunk(number, dense.ctypes.data, data.ctypes.data, 0, n, k, None)
    traits.to_float(data.ctypes.data, dense.ctypes.data, n * k)  # what the codes stand for
    exact = x.astype(np.float64) @ dense.T.astype(np.float64)
    made = [Product(ggml, buffer, number, data, x, n) for buffer in [*ggml.rearranging, None]]
    products = [product for product in made if product.takes]
    qk, peer = [], []
    for _ in range(o.rounds):
        qk.append(qk_us(o, kind, m, n, k))
        peer.append(min(product.run() for product in products))
    rounded = rounded_x(x, group) @ dense.T.astype(np.float64)
    line = {"bench": "ggml", "type": kind, "m": m, "n": n, "k": k,
            "mode": "exact" if o.exact else "int8", "qk us": round(min(qk), 1),
            "ggml us": round(min(peer), 1), "times as fast": round(min(peer) / min(qk), 2),
            "ggml error": f"{error_of(products[0].result(), exact):.1e}"}
    if not o.exact:
        line["qk error"] = f"{error_of(rounded, exact):.1e}"
    print(json.dumps(line), flush=True)
    for product in made:
        product.free()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bench")
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--m", default="1")
    parser.add_argument("--shapes", default="4096x4096")
    parser.add_argument("--types", default="q4_0,q8_0,q4_k,q6_k,iq4_nl,mxfp4")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--exact", action="store_true", help="qk's exact products instead")
    o = parser.parse_args()
    ggml = Ggml(o.folder)
    for shape in o.shapes.split(","):
        for m in map(int, o.m.split(",")):
            for kind in o.types.split(","):
                compare(ggml, o, kind, m, *map(int, shape.split("x")))


if __name__ == "__main__":
    main()
