"""bitsandbytes' 4-bit products, its own kernels beside qk's: microseconds a call, m rows of x.

    export QK_LIBRARY_DIR=build/release PYTHONPATH=ffi/python
    python3 ffi/python/bench/bitsandbytes_decode.py

Needs PyTorch and bitsandbytes. Each side runs in a process of its own, three times in turn; the
best counts. "gemm" is the operator over weights as they are saved; "layer" is a Linear4bit in eval
mode, which on processors with AVX512-BF16 has a layout and a kernel of its own
(docs/bitsandbytes.md).
"""
import json
import os
import subprocess
import sys
import time

SHAPES, ROWS = ((64, 64), (1024, 1024), (4096, 4096)), (1, 4, 16, 128)


def best_us(call, seconds=0.2):
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def measure():
    import bitsandbytes
    import torch
    if os.environ["QK_BITSANDBYTES"] == "on":
        import qk.bitsandbytes
        qk.bitsandbytes.load()
    found = {}
    for n, k in SHAPES:
        for dtype in (torch.bfloat16, torch.float32):
            codes, state = bitsandbytes.functional.quantize_4bit(torch.randn(n, k),
                                                                 quant_type="nf4")
            layer = bitsandbytes.nn.Linear4bit(k, n, bias=False, compute_dtype=dtype,
                                               quant_type="nf4").to("cpu").eval()
            for m in ROWS:
                x = torch.randn(m, k, dtype=dtype)
                case = f"{n} x {k}, {str(dtype)[6:]}, m = {m}"
                with torch.no_grad():
                    found[f"gemm {case}"] = best_us(lambda: torch.ops.bitsandbytes.gemm_4bit(
                        x, codes, (n, k), state.absmax, state.blocksize, "nf4"))
                    found[f"layer {case}"] = best_us(lambda: layer(x))
    print(json.dumps(found))


def main():
    sides = {"off": {}, "on": {}}
    for _ in range(3):
        for side, best in sides.items():
            done = subprocess.run([sys.executable, __file__, "--measure"], check=True, text=True,
                                  capture_output=True,
                                  env={**os.environ, "QK_BITSANDBYTES": side})
            for case, us in json.loads(done.stdout.splitlines()[-1]).items():
                best[case] = min(us, best.get(case, us))
    print(f"{'':42}{'bitsandbytes':>14}{'qk':>12}")
    for case, us in sides["off"].items():
        print(f"{case:42}{us:14.1f}{sides['on'][case]:12.1f}")


if __name__ == "__main__":
    measure() if "--measure" in sys.argv else main()
