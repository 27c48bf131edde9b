"""The MLP of a Llama on several GPUs: gate and up by rows, down by columns, one all-reduce.

    torchrun --nproc-per-node 2 tensor_parallel.py [8b|70b] [MODEL]

Rank r takes its slice of each weight, of MODEL (a checkpoint; its first MLP) or of random ones.
NCCL on GPUs, where a layer is captured in one CUDA graph and timed; else gloo, and widths of a
sixteenth. Each rank holds its result against the whole layer's.
"""
import sys

try:
    import torch
    import torch.distributed as dist
    import qk.torch
except ImportError as error:
    sys.exit(f"{error}: pip install torch ./ffi/python, in a clone of qk")
from ranks import microseconds, start

WIDTHS = {"8b": (4096, 14336), "70b": (8192, 28672)}
NAMES = ("gate_proj", "up_proj", "down_proj")
GROUP = 64


def share(size, step=GROUP):
    """This rank's part of a dimension: whole groups, of which the first ranks have the rest."""
    groups, rank, count = -(-size // step), dist.get_rank(), dist.get_world_size()
    ends = [min(size, step * (groups * i // count)) for i in (rank, rank + 1)]
    return ends[0], size if rank + 1 == count else ends[1]


class ParallelMlp(torch.nn.Module):
    """down(silu(gate(x)) * up(x)), the inner width cut into a share for each rank."""

    def __init__(self, layers, device):
        super().__init__()
        begin, end = share(layers["down_proj"].shape[1])
        self.gate, self.up, self.down = (
            qk.torch.Linear.from_tensor(layers[name].slice(int(name == "down_proj"), begin, end))
            .to(device).requires_grad_(False) for name in NAMES)

    def forward(self, x):
        y = self.down(torch.nn.functional.silu(self.gate(x)) * self.up(x))
        dist.all_reduce(y)  # the sum of what the ranks' columns give
        return y


def layers_of(path, width, inner):
    """Weights of a file, which are read when a rank slices them, or the same random ones."""
    if path is None:
        numbers = torch.Generator().manual_seed(5)
        shapes = dict.fromkeys(NAMES[:2], (inner, width)) | {NAMES[2]: (width, inner)}
        return {name: qk.Layer(qk.quantize(torch.randn(shape, generator=numbers) / 64, "nf4",
                                           group_size=GROUP, nested=True))
                for name, shape in shapes.items()}
    file = qk.load(path, in_place=True)
    first = next(name for name in file if name.endswith(".mlp.gate_proj"))
    return {name: file[first.replace("gate_proj", name)] for name in NAMES}


def whole(layers, x):
    """What one rank alone would compute, on the CPU in f32."""
    x = x.float().cpu()
    inner = torch.nn.functional.silu(layers["gate_proj"](x)) * layers["up_proj"](x)
    return layers["down_proj"](inner)


def main():
    names = [name for name in sys.argv[1:2] if name in WIDTHS]
    paths = sys.argv[1 + len(names):]
    if len(paths) > 1:
        sys.exit(f"usage: {sys.argv[0]} [8b|70b] [MODEL]")
    device = start()
    on_gpu = device.type == "cuda"
    rank, count = dist.get_rank(), dist.get_world_size()
    size = 1 if on_gpu else 16
    layers = layers_of(paths[0] if paths else None,
                       *(width // size for width in WIDTHS[names[0] if names else "8b"]))
    width = layers["gate_proj"].shape[1]
    mlp = ParallelMlp(layers, device)
    x = torch.randn(1, width, generator=torch.Generator().manual_seed(6)).to(device)
    x = x.half() if on_gpu else x
    with torch.no_grad():
        expected, y = whole(layers, x), mlp(x)
        error = float((y.float().cpu() - expected).abs().max() / expected.abs().max())
        share_bytes = sum(plane.nbytes for layer in (mlp.gate, mlp.up, mlp.down)
                          for plane in layer.planes)
        print(f"rank {rank} of {count}: {share_bytes} bytes, inner columns "
              f"{share(layers['down_proj'].shape[1])}, error {error:.1e}", flush=True)
        if on_gpu:
            layer, reduce = microseconds(lambda: mlp(x)), microseconds(lambda: dist.all_reduce(y))
            if rank == 0:
                print(f"a layer {layer:.1f} us, of it the all-reduce of {y.nbytes} bytes alone "
                      f"{reduce:.1f} us; {share_bytes / layer / 1e6:.2f} TB/s a GPU")
    dist.destroy_process_group()
    return int(error > (5e-3 if on_gpu else 1e-5))


if __name__ == "__main__":
    sys.exit(main())
