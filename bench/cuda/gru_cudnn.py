#!/usr/bin/env python3
"""cuDNN's GRU on this machine: three algorithms, replayed as CUDA graphs, c = h.

    gru_cudnn.py [out.json [type ...]]      types: f16 (where none is given), f32

Needs PyTorch with CUDA and its cuDNN; prints microseconds a step.

PyTorch itself only picks STANDARD; the persistent algorithms are reached through cuDNN's own calls.
Every result is checked against PyTorch's GRU in double without cuDNN.
"""
import ctypes
import glob
import json
import os
import statistics
import sys

import torch

POINTER, INT, SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
ALGORITHMS = {"STANDARD": 0, "PERSIST_STATIC": 1, "PERSIST_DYNAMIC": 2}
TYPES = {"f16": (2, torch.float16, 1), "f32": (0, torch.float32, 3)}  # cuDNN's type, math type
SHAPES = [(500, 1, 256), (500, 1, 512), (500, 1, 1024),  # steps, batch, h
          (100, 64, 256), (100, 64, 512), (100, 64, 1024),
          (1, 1, 256), (1, 1, 512), (1, 1, 1024)]


def load():
    import nvidia.cudnn
    folder = os.path.join(list(nvidia.cudnn.__path__)[0], "lib")
    return ctypes.CDLL(glob.glob(os.path.join(folder, "libcudnn.so.9*"))[0])


def data(tensor):
    return POINTER(tensor.data_ptr())


class Cudnn:
    def __init__(self):
        self.library = load()
        self.handle = self.make("cudnnCreate")

    def call(self, name, *arguments):
        status = getattr(self.library, name)(*arguments)
        if status != 0:
            raise RuntimeError(f"{name} gives {status}")

    def make(self, name):
        made = POINTER()
        self.call(name, ctypes.byref(made))
        return made


class Layer:
    """One GRU with given weights, ready to run x [t,b,c]."""

    def __init__(self, cudnn, algorithm, type_name, module, x, h0):
        self.cudnn = cudnn
        steps, batch, c = x.shape
        h = h0.shape[2]
        code, dtype, math = TYPES[type_name]
        self.x, self.h0 = x.to(dtype).contiguous(), h0.to(dtype).contiguous()
        self.y = torch.full((steps, batch, h), float("nan"), dtype=dtype, device="cuda")
        self.h_last = torch.empty_like(self.h0)
        self.lengths = torch.full((batch,), steps, dtype=torch.int32, device="cuda")
        dropout = cudnn.make("cudnnCreateDropoutDescriptor")
        room = SIZE()
        cudnn.call("cudnnDropoutGetStatesSize", cudnn.handle, ctypes.byref(room))
        self.dropout_states = torch.zeros(max(1, room.value), dtype=torch.uint8, device="cuda")
        cudnn.call("cudnnSetDropoutDescriptor", dropout, cudnn.handle, ctypes.c_float(0),
                   data(self.dropout_states), room, ctypes.c_ulonglong(1))
        self.rnn = cudnn.make("cudnnCreateRNNDescriptor")
        gru, double_bias, one_direction, linear_input = 3, 2, 0, 0
        cudnn.call("cudnnSetRNNDescriptor_v8", self.rnn, ALGORITHMS[algorithm], gru, double_bias,
                   one_direction, linear_input, code, 0, math, c, h, h, 1, dropout,
                   ctypes.c_uint(0))
        if algorithm == "PERSIST_DYNAMIC":
            cudnn.call("cudnnBuildRNNDynamic", cudnn.handle, self.rnn, batch)
        self.x_desc, self.y_desc = self.sequence(code, x.shape), self.sequence(code, self.y.shape)
        self.h_desc = cudnn.make("cudnnCreateTensorDescriptor")
        cudnn.call("cudnnSetTensorNdDescriptor", self.h_desc, code, 3,
                   (INT * 3)(1, batch, h), (INT * 3)(batch * h, h, 1))
        self.weights = self.pack(module, h, dtype)
        room, reserve = SIZE(), SIZE()
        cudnn.call("cudnnGetRNNTempSpaceSizes", cudnn.handle, self.rnn, 0, self.x_desc,
                   ctypes.byref(room), ctypes.byref(reserve))
        self.work = torch.zeros(max(16, room.value), dtype=torch.uint8, device="cuda")
        self.work_bytes = room

    def sequence(self, code, shape):
        steps, batch, columns = shape
        described = self.cudnn.make("cudnnCreateRNNDataDescriptor")
        self.cudnn.call("cudnnSetRNNDataDescriptor", described, code, 1, steps, batch, columns,
                        (INT * batch)(*[steps] * batch), ctypes.byref(ctypes.c_float(0)))
        return described

    def pack(self, module, h, dtype):
        cudnn = self.cudnn
        self.weight_bytes = SIZE()
        cudnn.call("cudnnGetRNNWeightSpaceSize", cudnn.handle, self.rnn,
                   ctypes.byref(self.weight_bytes))
        space = torch.zeros(self.weight_bytes.value, dtype=torch.uint8, device="cuda")
        matrix = cudnn.make("cudnnCreateTensorDescriptor")
        bias = cudnn.make("cudnnCreateTensorDescriptor")
        for part in range(6):  # W of r, z, n, then R
            matrix_at, bias_at = POINTER(), POINTER()
            cudnn.call("cudnnGetRNNWeightParams", cudnn.handle, self.rnn, 0, self.weight_bytes,
                       data(space), part, matrix, ctypes.byref(matrix_at), bias,
                       ctypes.byref(bias_at))
            side, rows = "ih" if part < 3 else "hh", slice(part % 3 * h, (part % 3 + 1) * h)
            for at, name in ((matrix_at, "weight"), (bias_at, "bias")):
                values = getattr(module, f"{name}_{side}_l0").detach()[rows].to(dtype).contiguous()
                raw = values.view(-1).view(torch.uint8)
                first = at.value - space.data_ptr()
                space[first:first + raw.numel()] = raw
        return space

    def run(self):
        cudnn = self.cudnn
        cudnn.call("cudnnSetStream", cudnn.handle, POINTER(torch.cuda.current_stream().cuda_stream))
        cudnn.call("cudnnRNNForward", cudnn.handle, self.rnn, 0, data(self.lengths), self.x_desc,
                   data(self.x), self.y_desc, data(self.y), self.h_desc, data(self.h0),
                   data(self.h_last), self.h_desc, None, None, self.weight_bytes,
                   data(self.weights), self.work_bytes, data(self.work), SIZE(0), None)


def microseconds(run, repeats):
    """The median of replays of a graph that holds `repeats` runs, a run."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(repeats):
                run()
        times = []
        for _ in range(15 if repeats > 1 else 201):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times) / repeats


def main():
    cudnn, rows = Cudnn(), []
    nothing = torch.zeros(1, device="cuda")
    print(f"a graph of one small kernel: {microseconds(lambda: nothing.add_(1), 1):.3f} us")
    for steps, batch, h in SHAPES:
        torch.manual_seed(1)
        module = torch.nn.GRU(h, h).double().cuda().eval()
        x = torch.randn(steps, batch, h, dtype=torch.float64, device="cuda")
        h0 = torch.randn(1, batch, h, dtype=torch.float64, device="cuda") * 0.5
        with torch.no_grad(), torch.backends.cudnn.flags(enabled=False):
            expected = module(x, h0)[0]
        for type_name in sys.argv[2:] or ["f16"]:
            for algorithm in ALGORITHMS:
                row = {"algorithm": algorithm, "type": type_name, "steps": steps, "batch": batch,
                       "h": h}
                try:
                    layer = Layer(cudnn, algorithm, type_name, module, x, h0)
                    layer.run()
                    error = (layer.y.double() - expected).norm() / expected.norm()
                    row["error"] = error.item()
                    row["us_step"] = microseconds(layer.run, 1 if steps == 1 else 2) / steps
                except RuntimeError as reason:
                    row["refused"] = str(reason)[:80]
                rows.append(row)
                print(row, flush=True)
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
