"""bench/take_results.py turns what the benches write into the rows that the pages show."""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def line(what, n, k, m, us, share=0.0):
    return {"what": what, "n": n, "k": k, "m": m, "us": us, "bytes": 1.0, "share": share}


CUDA = {
    "bench.json": [line("floor: read nf4 b64 f32", 4096, 4096, 1, 3.7, 1),
                   line("dequantize nf4 b64 f32 to f16", 4096, 4096, 0, 13.2, 0.89),
                   line("dequantize nf4 b64 f32 to bf16", 4096, 4096, 0, 13.3, 0.88),
                   line("quantize f16 to nf4 b64 nested", 8192, 8192, 0, 86.81, 0.49),
                   line("packed nf4 b64 f32 to f16", 8192, 8192, 0, 44.6, 0.99),
                   line("packed nf4 b64 f32 to f32", 8192, 8192, 0, 80.8, 0.97),
                   line("packed nf4 b64 f32 to f16 [k,n]", 8192, 8192, 0, 48.0, 0.9),
                   line("repack ROW to GPTQ", 8192, 8192, 0, 22.0, 0.86),
                   line("repack ROW to GPTQ", 4096, 4096, 0, 7.0, 0.8),
                   line("linear nf4 b64 f32 x f16", 4096, 4096, 1, 5.13, 0.731),
                   line("linear nf4 b64 f32 x f32", 4096, 4096, 1, 6.71, 0.56),
                   line("linear nf4 b64 f32 x f16 overlapped", 4096, 4096, 1, 3.9, 0.9),
                   line("linear nf4 b64 f32 x f16", 4096, 4096, 16, 6.7, 0.5),
                   line("linear u4 g128 f16 x f16", 8192, 8192, 1, 10.9, 0.85),
                   line("linear u4 g128 f16 x f16", 4096, 4096, 1, 4.7, 0.76),
                   line("layout u4 g128 GPTQ x f32", 4096, 4096, 1, 20.0, 0.2),
                   line("transposed dense f16 cuBLASLt", 4096, 4096, 512, 24.5, 1),
                   line("transposed u4 g128 f16", 4096, 4096, 512, 28.5, 0.86),
                   line("bytes s8 g128 f32 x bf16", 4096, 4096, 1, 8.8, 0.62)],
    "rows.json": [line("dense f16 cuBLASLt", 4096, 4096, 64, 12.0),
                  line("nf4 b64 nested packed", 4096, 4096, 64, 6.0),
                  line("u4 g128 AWQ_GEMM", 4096, 4096, 64, 15.0),
                  line("s8 g128 ROW", 4096, 4096, 64, 8.0),
                  line("s8 g128 ROW", 4096, 4096, 16, 7.0)],
    "bench-80.json": [line("linear nf4 b64 f32 x f16", 4096, 4096, 1, 7.4),
                      line("linear nf4 b64 f32 x f16 overlapped", 4096, 4096, 1, 7.0),
                      line("linear nf4 b64 f32 x bf16", 4096, 4096, 1, 7.5),
                      line("linear nf4 b64 f32 x f16", 8192, 8192, 1, 17.25)],
    "rows-89.json": [line("dense f16 cuBLASLt", 4096, 4096, 64, 12.0),
                     line("nf4 b64 nested packed", 4096, 4096, 64, 10.0),
                     line("u4 g128 AWQ_GEMM", 4096, 4096, 64, 15.0)],
    "chain.json": [line("chain u4 g128 f16", 4096, 4096, 1, 3.22, 0.586),
                   line("chain u4 g128 f16 as stored", 4096, 4096, 1, 8.1, 0.2),
                   line("layer 70b u4 g128 f16", 0, 0, 1, 109.93, 0.876),
                   line("layer 8b u4 g128 f16", 0, 0, 1, 33.26, 0.738),
                   line("layer 8b u4 g128 f16", 0, 0, 4, 39.7, 0.6),
                   line("layer 8b u4 g128 f16, alone", 0, 0, 1, 38.38, 0.64),
                   line("layer 8b u4 g128 f16, list", 0, 0, 1, 33.2, 0.74),
                   line("layer 8b nf4 b64 nested", 0, 0, 1, 35.61, 0.685),
                   line("backwards 8b u4 g128 f16", 0, 0, 1, 33.5, 0.73)],
    "experts.json": [line("Mixtral-8x7B u4 g128 f16 layer", 4096, 14336, 1, 54.48, 0.73),
                     line("Mixtral-8x7B u4 g128 f16 down", 4096, 14336, 1, 20.0, 0.6),
                     line("gpt-oss-120b mxfp4 layer", 2880, 2880, 16, 291.0, 0.514)],
    "peers.json": [line("peer: torch int4 g128 bf16", 4096, 4096, 4, 9.14)]}
WANTED_CUDA = {
    "cuda/dequantize": ['"NF4 b64, f32 scales",4096x4096,13.2,0.89'],
    "cuda/quantize": ['"NF4 b64, nested",8192x8192,86.8,0.49'],
    "cuda/packed": ['"NF4 b64, f32 scales",8192x8192,44.6,0.99',
                    '"NF4 b64, f32 scales, to [k,n]",8192x8192,48.0,0.90'],
    "cuda/layouts": ["ROW,GPTQ,22.0,0.86"],
    "cuda/layouts_4096": ["ROW,GPTQ,7.0,0.80"],
    "cuda/linear_1": ['"NF4 b64, f32 scales",4096x4096,5.1,0.73',
                      '"NF4 b64, f32 scales, f32 x",4096x4096,6.7,0.56',
                      "U4 g128,4096x4096,4.7,0.76", "U4 g128,8192x8192,10.9,0.85"],
    "cuda/linear_16": ["NF4 b64,1,4096x4096,5.1", "NF4 b64,16,4096x4096,6.7",
                       "U4 g128,1,4096x4096,4.7", "U4 g128,1,8192x8192,10.9"],
    "cuda/transposed": ['"dense f16, cuBLASLt",512,4096x4096,24.5,',
                        "U4 g128,512,4096x4096,28.5,0.86"],
    "cuda/checkpoint_16": ['"U4 g128, GPTQ",f32,1,4096x4096,20.0,0.20'],
    "cuda/bytes_16": ['"S8 g128, bf16 x",1,4096x4096,8.8,0.62'],
    "cuda/linear_4096": ['"dense f16, cuBLASLt",64,4096x4096,12.0,',
                         '"NF4 b64, nested",64,4096x4096,6.0,2.00'],
    "cuda/checkpoint_4096": ['"U4 g128, AWQ_GEMM",64,4096x4096,15.0,0.80'],
    "cuda/bytes_4096": ["S8 g128,64,4096x4096,8.0,1.50"],
    "cuda/older_16": ["sm_80,NF4 b64,1,4096x4096,7.4,0.50", "sm_80,NF4 b64,1,8192x8192,17.2,"],
    "cuda/older_256": ['sm_89,"dense f16, cuBLASLt",64,4096x4096,12.0,',
                       'sm_89,"NF4 b64, nested",64,4096x4096,10.0,1.20'],
    "cuda/chain": ["U4 g128,4096x4096,3.2,0.59"],
    "cuda/layers": ['Llama-3-8B,"33.3, 74%","35.6, 68%"', "backwards,33.5,", "alone,38.4,",
                    'Llama-3-70B,"109.9, 88%",'],
    "cuda/experts": ["Mixtral-8x7B,U4 g128,1 token,54.5,0.73",
                     "gpt-oss-120b,MXFP4,16 tokens,291.0,0.51"],
    "peers/cuda_torch": ["torch int4 g128 bf16,4,4096x4096,9.1"]}

PRODUCT = {"bench": "linear", "case": "nf4 b64 f32", "mode": "exact", "m": 1, "n": 4096, "k": 4096,
           "place": "dram", "layout": "packed", "threads": 1, "ratio": 0.904, "GB/s": 31.4,
           "GFLOP/s": 99.7}
PEER = {"bench": "peer", "peer": "A peer, int8", "n": 4096, "k": 4096, "m": 1, "threads": 1,
        "GB/s": 20.0, "ratio": 0.5}
CPU = {
    "exact_4096x4096_1.jsonl": [PRODUCT, {**PRODUCT, "case": "u4 g128 f16 f16 x", "ratio": 0.86}],
    "exact_4096x14336_1.jsonl": [{**PRODUCT, "k": 14336, "ratio": 0.89}],
    "exact_4096x4096_2.jsonl": [{**PRODUCT, "threads": 2, "ratio": 0.95}],
    "int8_4096x4096_1.jsonl": [{**PRODUCT, "case": "nf4 b64 nested", "mode": "int8",
                                  "ratio": 0.96}],
    "m16_exact.jsonl": [{**PRODUCT, "m": 16, "place": "l3"}],
    "m512_exact.jsonl": [{**PRODUCT, "m": 512, "place": "l3", "GFLOP/s": 230.4}],
    "m16_int8.jsonl": [{**PRODUCT, "m": 16, "place": "l3", "mode": "int8", "case": "mxfp4"}],
    "l2_bf16.jsonl": [{**PRODUCT, "place": "l2", "mode": "bf16", "case": "nvfp4 divided"}],
    "avx2_exact_4096x4096.jsonl": [PRODUCT],
    "avx2_exact_4096x14336.jsonl": [{**PRODUCT, "k": 14336, "ratio": 0.89}],
    "experts_int8_2.jsonl": [{"bench": "experts", "mode": "int8", "tokens": 4, "threads": 2,
                              "us": 2513.3}],
    "peers_m1_a_4096x4096_1.jsonl": [PEER],
    "peers_m16_a_4096x4096_1.jsonl": [{**PEER, "m": 16, "GFLOP/s": 123.4}],
    "layout_gptq.jsonl": [{**PRODUCT, "case": "u4 g128 f16", "layout": "gptq", "ratio": 0.6}],
    "dequantize.jsonl": [{"bench": "dequantize", "case": "nf4 b64 row_high", "to": "f32",
                          "written GB/s": 33.3, "ratio": 0.95}]}
WANTED_CPU = {
    "cpu/linear_1": ['exact,"NF4, groups of 64, f32 scales","0.90, 0.89","0.95, -"',
                     'exact,"U4, groups of 128, f16 x","0.86, -",',
                     'int8,"NF4, groups of 64, nested scales","0.96, -",'],
    "cpu/many_rows": ['"NF4, groups of 64, f32 scales",100,,230', "MXFP4,,100,"],
    "cpu/l2": ['"NVFP4, divided",31'],
    "cpu/avx2": ['"NF4, groups of 64, f32 scales","0.90, 0.89"'],
    "cpu/layouts": ['"U4, groups of 128",0.60'],
    "cpu/experts": ["int8,2 threads,2.51"],
    "cpu/peers": ['"A peer, int8",0.50,123'],
    "cpu/dequantize": ["nf4 b64 row_high,f32,33.3,0.95"]}


def taken(backend, files, machine, *more):
    """{result: its rows} after taking a made-up folder of results."""
    with tempfile.TemporaryDirectory() as name:
        results, data = pathlib.Path(name, "results"), pathlib.Path(name, "data")
        results.mkdir()
        (results / "machine.txt").write_text(machine, encoding="utf-8")
        for file, lines in files.items():
            text = (json.dumps(lines) if file.endswith(".json") else
                    "\n".join(json.dumps(found) for found in lines))
            (results / file).write_text(text, encoding="utf-8")
        subprocess.run([sys.executable, ROOT / "bench/take_results.py", backend, results, "--data",
                        data, *more], check=True, stdout=subprocess.DEVNULL)
        return {str(path.relative_to(data).with_suffix("")): path.read_text(encoding="utf-8")
                for path in data.glob("*/*.csv")}


def compare(found, wanted, machine):
    for name in sorted(set(found) | set(wanted)):
        about = [text for text in found.get(name, "").splitlines() if text.startswith("# ")]
        rows = found.get(name, "").splitlines()[len(about) + 1:]
        if rows != wanted.get(name):
            yield f"{name}: {rows}\n  wanted: {wanted.get(name)}"
        if not any(machine in text for text in about):
            yield f"{name}: says no machine: {about}"


CPU_MACHINE = json.dumps({"cpu": "A processor", "cores": 2, "load": 0.1, "commit": "0123456789",
                          "time": "2026-01-02T"})
failures = [*compare(taken("cuda", CUDA, "2026-01-02T03:04:05Z\n0123456789abcdef\nA card, 1, 2\n"),
                     WANTED_CUDA, "A card"),
            *compare(taken("cpu", CPU, CPU_MACHINE), WANTED_CPU, "A processor, 2 cores"),
            *compare(taken("cpu", CPU, CPU_MACHINE, "--prefix", "other_"),
                     {name.replace("/", "/other_"): rows for name, rows in WANTED_CPU.items()},
                     "A processor, 2 cores")]
print("\n".join(failures))
print(f"{len(WANTED_CUDA) + 2 * len(WANTED_CPU)} results, {len(failures)} failed")
sys.exit(1 if failures else 0)
