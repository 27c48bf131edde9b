#!/usr/bin/env python3
"""ONNX Runtime's f32 GRU (one thread, batch 1, c = h, linear_before_reset = 1) in the shapes of
qk_bench_cpu_gru. One JSON object a line; says so and leaves with 77 where a package is missing.

    gru_onnxruntime.py [--h 64,128,256,512,1024] [--steps 256] [--seconds 1]
"""
import argparse
import json
import sys
import time

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def random_weights(h):
    random = np.random.default_rng(7)
    reach = 1 / np.sqrt(h)

    def uniform(*shape):
        return random.uniform(-reach, reach, shape).astype(np.float32)

    return {"W": uniform(1, 3 * h, h), "R": uniform(1, 3 * h, h), "B": uniform(1, 6 * h)}


def session_of(h, steps, batch, weights):
    """weights: W, R and B as ONNX has them, gates z, r, n."""
    node = helper.make_node("GRU", ["X", "W", "R", "B", "", "H0"], ["Y", "H"], hidden_size=h,
                            linear_before_reset=1)
    graph = helper.make_graph(
        [node], "gru",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [steps, batch, h]),
         helper.make_tensor_value_info("H0", TensorProto.FLOAT, [1, batch, h])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, [steps, 1, batch, h]),
         helper.make_tensor_value_info("H", TensorProto.FLOAT, [1, batch, h])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)])
    model.ir_version = 8
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options,
                                        providers=["CPUExecutionProvider"])


def microseconds(h, steps, seconds):
    """Median, 10th and 90th percentile of a step."""
    session = session_of(h, steps, 1, random_weights(h))
    inputs = {"X": np.random.default_rng(1).standard_normal((steps, 1, h)).astype(np.float32),
              "H0": np.zeros((1, 1, h), np.float32)}
    session.run(None, inputs)
    times = []
    start = time.perf_counter()
    while len(times) < 15 or time.perf_counter() - start < seconds:
        before = time.thread_time()
        session.run(None, inputs)
        times.append((time.thread_time() - before) * 1e6 / steps)
    return [float(np.percentile(times, q)) for q in (50, 10, 90)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--h", default="64,128,256,512,1024")
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=1)
    args = parser.parse_args()
    for h in map(int, args.h.split(",")):
        for steps in (args.steps, 1):
            median, low, high = microseconds(h, steps, args.seconds)
            print(json.dumps({"bench": "gru", "peer": f"onnxruntime {onnxruntime.__version__} f32",
                              "h": h, "steps": steps, "us": round(median, 3),
                              "p10": round(low, 3), "p90": round(high, 3)}), flush=True)


if __name__ == "__main__":
    main()
