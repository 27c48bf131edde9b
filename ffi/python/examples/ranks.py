"""What the examples on several GPUs share: a rank's device, and the time of what it does there."""
import sys

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    sys.exit(f"{error}: pip install torch")


def start():
    """This process as a rank: NCCL and a GPU of its own, else gloo and the CPU."""
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    if not on_gpu:
        return torch.device("cpu")
    device = torch.device("cuda", dist.get_rank())
    torch.cuda.set_device(device)
    return device


def microseconds(call):
    """Of a call in a CUDA graph of 50, which all ranks replay at once."""
    for _ in range(3):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(50):
            call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(11):
        dist.barrier()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / 50)
    return sorted(times)[5]
