"""A layer of experts on several GPUs: each has some experts, and one all-reduce adds them up.

    torchrun --nproc-per-node 2 expert_parallel.py [qwen3|mixtral] [TOKENS]

Ids of other ranks' experts are negative for a rank, which skips those slots: nothing is sorted,
padded or sent to where its expert is. Added up before the all-reduce, slots of a token have the
order of the ranks; one all-reduce of all slots keeps the order of one process, for top_k times the
bytes: its bits as well, on GPUs while there are fewer slots, rows times top_k, than a rank has
experts (a rank has fewer experts than one process, so it leaves the kernels for few rows sooner).
NCCL on GPUs, where a layer is captured in one CUDA graph and timed; else gloo, and widths of a
sixteenth. Each rank holds both results against the whole layer's.
"""
import sys

try:
    import torch
    import torch.distributed as dist
    import qk
except ImportError as error:
    sys.exit(f"{error}: pip install torch ./ffi/python, in a clone of qk")
from ranks import microseconds, start

SHAPES = {"qwen3": (128, 2048, 768, 8), "mixtral": (8, 4096, 14336, 2)}  # experts, k, inner, top_k


def dense(expert, rows, columns):
    """The same random weights on every rank."""
    numbers = torch.Generator().manual_seed(expert * 2 + (rows > columns))
    return torch.randn(rows, columns, generator=numbers) / columns ** 0.5


class Experts:
    """Experts first .. last of a layer, 4 bits a weight."""

    def __init__(self, first, last, width, inner, device):
        self.first, self.last = first, last
        self.gate_up, self.down = (
            qk.quantize(torch.stack([dense(e, *shape) for e in range(first, last)]).to(device),
                        "nf4", group_size=64).repack()
            for shape in ((2 * inner, width), (width, inner)))

    def __call__(self, x, expert, weight, ordered):
        here = (expert >= self.first) & (expert < self.last)
        expert = torch.where(here, expert - self.first, -1)
        joined = qk.experts(x, self.gate_up, expert, activation="silu")
        if not ordered:
            y = qk.experts(joined, self.down, expert, weight=weight)
            dist.all_reduce(y)
            return y
        slots = qk.experts(joined, self.down, expert)  # zeros where another rank has the expert
        dist.all_reduce(slots)
        return added_up(slots, weight)


def added_up(slots, weight):
    y = torch.zeros_like(slots[:, 0], dtype=torch.float32)
    for j in range(slots.shape[1]):
        y += weight[:, j, None] * slots[:, j]
    return y.to(slots.dtype)


def alone(layer, x, expert, weight):
    """What one process computes that has all experts."""
    joined = qk.experts(x, layer.gate_up, expert, activation="silu")
    return qk.experts(joined, layer.down, expert, weight=weight), added_up(
        qk.experts(joined, layer.down, expert), weight)


def main():
    names = [name for name in sys.argv[1:2] if name in SHAPES]
    rest = sys.argv[1 + len(names):]
    if len(rest) > 1 or not all(text.isdigit() and int(text) > 0 for text in rest):
        sys.exit(f"usage: {sys.argv[0]} [qwen3|mixtral] [TOKENS]")
    device = start()
    on_gpu = device.type == "cuda"
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count, width, inner, top_k = SHAPES[names[0] if names else "qwen3"]
    if not on_gpu:
        width, inner = width // 16, inner // 16 // 64 * 64 + 64
    numbers = torch.Generator().manual_seed(6)
    tokens = int(rest[0]) if rest else 4
    x = torch.randn(tokens, width, generator=numbers).to(device)
    x = x.half() if on_gpu else x
    chances = torch.randn(tokens, count, generator=numbers).softmax(1)
    weight, expert = (of.to(device) for of in chances.topk(top_k))

    first, last = (count * i // ranks for i in (rank, rank + 1))
    mine = Experts(first, last, width, inner, device)
    y, exact = mine(x, expert, weight, False), mine(x, expert, weight, True)
    near, equal = alone(Experts(0, count, width, inner, device), x, expert, weight)
    error = float((y - near).abs().max() / near.abs().max())
    same = torch.equal(exact, equal)
    print(f"rank {rank} of {ranks}: experts {first} to {last - 1}, error {error:.1e}, slots "
          f"{'have the bits' if same else 'do not have the bits'} of one process", flush=True)
    if on_gpu:
        times = [microseconds(lambda ordered=ordered: mine(x, expert, weight, ordered))
                 for ordered in (False, True)]
        reduce = microseconds(lambda: dist.all_reduce(y))
        if rank == 0:
            print(f"a layer {times[0]:.1f} us, of it the all-reduce of {y.nbytes} bytes alone "
                  f"{reduce:.1f} us; with all slots {times[1]:.1f} us")
    dist.destroy_process_group()
    few = not on_gpu or tokens * top_k < count // ranks
    return int((few and not same) or error > (5e-3 if on_gpu else 1e-6))


if __name__ == "__main__":
    sys.exit(main())
