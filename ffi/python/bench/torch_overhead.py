"""What a call of qk.torch.Linear costs on a tiny shape: n = k = 16, m = 1, eager, CPU, in us.

    QK_LIBRARY_DIR=build/release PYTHONPATH=ffi/python python3 ffi/python/bench/torch_overhead.py

Beside it bitsandbytes' Linear4bit where it is installed, torch's own Linear, and what torch takes
for a module's call, for a new tensor and for an operator of torch.library in Python that only makes
one. Best of several rounds, one thread. Exit 1 where the module costs more than the goal.
"""
import sys
import timeit

import torch

import qk
import qk.torch

GOAL_US = 8.0


def best_us(call, count=200, rounds=400):
    return min(timeit.repeat(call, number=count, repeat=rounds)) / count * 1e6


def empty_operator():
    """The floor of an operator whose kernel is Python: it makes y, and nothing else."""
    library = torch.library.Library("qk_floor", "DEF")
    library.define("linear(Tensor x, Tensor[] planes, str weight, Tensor? bias=None) -> Tensor")
    library.impl("linear", lambda x, planes, weight, bias=None: x.new_empty((1, 16)), "CPU")
    return library, torch.ops.qk_floor.linear.default


def ways():
    dense = torch.nn.Linear(16, 16).requires_grad_(False)
    layer, x = qk.torch.Linear.from_linear(dense, group_size=16), torch.ones(1, 16)
    library, floor = empty_operator()
    identity = torch.nn.Identity()
    yield "torch, a new tensor", lambda: x.new_empty((1, 16))
    yield "torch, torch.nn.Identity()(x)", lambda: identity(x)
    yield "torch, an operator in Python", lambda: floor(x, layer.planes, layer.form)
    yield "torch.nn.Linear, dense", lambda: dense(x)
    yield "torch.ops.qk.linear", lambda: torch.ops.qk.linear(x, layer.planes, layer.form)
    yield "qk.torch.Linear", lambda: layer(x)
    try:
        import bitsandbytes
    except ImportError:
        return
    theirs = bitsandbytes.nn.Linear4bit(64, 64, bias=True, compute_dtype=torch.float32)
    theirs.load_state_dict(torch.nn.Linear(64, 64).state_dict())
    theirs, wide = theirs.to("cpu").requires_grad_(False), torch.ones(1, 64)
    yield "bitsandbytes, Linear4bit 64 x 64", lambda: theirs(wide)
    del library


def main():
    torch.set_num_threads(1)
    times = {}
    with torch.no_grad(), qk.Context(threads=1):
        for name, call in ways():
            call()
            times[name] = best_us(call)
            print(f"{name:34} {times[name]:7.2f} us", flush=True)
    ours = times["qk.torch.Linear"]
    print(f"qk.torch.Linear: {ours:.2f} us, goal {GOAL_US}")
    return 0 if ours <= GOAL_US else 1


if __name__ == "__main__":
    sys.exit(main())
