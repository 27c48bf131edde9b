"""Memory of each command: it must succeed with a limit on what is not a mapping of a file.

RLIMIT_DATA counts private writable memory: heap, stacks and anonymous mappings, touched or not.
Checkpoints are sparse files: holes read as zeros and take no disk.

    test_memory.py small    layers of 64 M weights and 96 MiB; quantize: 256 M and 224 MiB
    test_memory.py large    checkpoints of 6 GB in bf16 and 512 MiB (release tier)
"""
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile

from harness import COMMAND

NF4_TABLE = struct.pack("<16I", 0xBF800000, 0xBF3239B1, 0xBF066B30, 0xBECA32A0, 0xBE91A24D,
                        0xBE3D353F, 0xBDBA7871, 0, 0x3DA2FAFF, 0x3E24CAE3, 0x3E7C04DD, 0x3EAD033A,
                        0x3EE1A4B8, 0x3F1007AB, 0x3F3913B3, 0x3F800000)


def sparse(path, tensors):
    """{name: (dtype, shape, bytes or their number)}: what has a number is a hole."""
    header, at = {}, 0
    for name, (dtype, shape, content) in tensors.items():
        size = content if isinstance(content, int) else len(content)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, (_, _, content) in tensors.items():
            if isinstance(content, bytes):
                file.seek(8 + len(text) + header[name]["data_offsets"][0])
                file.write(content)
        file.truncate(8 + len(text) + at)


def dense(name, n, k):
    return {f"{name}.weight": ("BF16", [n, k], 2 * n * k)}


def nf4(name, n, k, nested):
    scales = n * k // 64
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [n, k]}
    tensors = {"": ("U8", [n * k // 2, 1], n * k // 2), ".quant_map": ("F32", [16], NF4_TABLE)}
    if nested:
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}
        tensors[".absmax"] = ("U8", [scales], scales)
        tensors[".nested_absmax"] = ("F32", [scales // 256], scales // 64)
        tensors[".nested_quant_map"] = ("F32", [256], 1024)
    else:
        tensors[".absmax"] = ("F32", [scales], 4 * scales)
    text = json.dumps(state).encode()
    tensors[".quant_state.bitsandbytes__nf4"] = ("U8", [len(text)], text)
    return {f"{name}.weight{suffix}": tensor for suffix, tensor in tensors.items()}


def awq(name, n, k):
    return {f"{name}.qweight": ("I32", [k, n // 8], n * k // 2),
            f"{name}.qzeros": ("I32", [k // 128, n // 8], n * k // 256),
            f"{name}.scales": ("F16", [k // 128, n], n * k // 64)}


AWQ = {"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128,
                               "version": "gemm", "zero_point": True}}


def run(mebibytes, *arguments):
    def limit():
        resource.setrlimit(resource.RLIMIT_DATA, (mebibytes << 20, mebibytes << 20))

    threads = [] if arguments[0] == "inspect" else ["--threads", "2"]
    done = subprocess.run([*COMMAND, *arguments, *threads], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, preexec_fn=limit)
    if done.returncode != 0:
        sys.exit(f"{arguments} within {mebibytes} MiB: exit {done.returncode}: {done.stdout}")
    print(" ".join(arguments), "fits", mebibytes, "MiB", flush=True)


def written(folder, mebibytes, *arguments):
    out = f"{folder}/out.safetensors"
    run(mebibytes, arguments[0], arguments[1], out, *arguments[2:], "--force")
    os.unlink(out)


def model(folder, name, layer, large, small_count, small, *more):
    """A directory with a layer "large" of the size [n,k], and some small ones."""
    tensors = layer("large", *large, *more)
    for i in range(small_count):
        tensors |= layer(f"layers.{i}", *small, *more)
    os.makedirs(f"{folder}/{name}")
    sparse(f"{folder}/{name}/model.safetensors", tensors)
    return f"{folder}/{name}"


def check_reading(folder, mebibytes, *sizes):
    quantized = [model(folder, "nf4", nf4, *sizes, False),
                 model(folder, "nested", nf4, *sizes, True), model(folder, "awq", awq, *sizes)]
    with open(f"{folder}/awq/config.json", "w", encoding="ascii") as file:
        json.dump(AWQ, file)
    for path in [*quantized, model(folder, "dense", dense, *sizes)]:
        run(mebibytes, "inspect", path, "--json")
        run(mebibytes, "verify", path)
        run(mebibytes, "multiply", path, "large", "--repeat", "1")
    run(mebibytes, "multiply", quantized[0], "large", "--repeat", "1", "--mode", "int8")
    for path in quantized[1:]:
        written(folder, mebibytes, "dequantize", path, "--layer", "large")


def check_quantize(folder, mebibytes, *sizes):
    path = model(folder, "to_quantize", dense, *sizes)
    for options in (["nf4"], ["nf4", "--nested"], ["int4", "--asymmetric"]):
        written(folder, mebibytes, "quantize", path, "--format", *options)


def transposed(name, n, k):
    """Experts as transformers saves gpt-oss's, two of them."""
    return {f"{name}.experts.gate_up_proj": ("BF16", [2, k, 2 * n], 8 * n * k),
            f"{name}.experts.down_proj": ("BF16", [2, n, k], 4 * n * k)}


def check_transposed(folder, mebibytes, *sizes):
    path = model(folder, "transposed", transposed, *sizes)
    written(folder, mebibytes, "quantize", path, "--format", "mxfp4", "--dialect", "gpt-oss")


def main():
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[1] == "small":
            check_reading(folder, 96, (8192, 8192), 4, (1024, 1024))
            check_quantize(folder, 224, (32768, 8192), 4, (1024, 1024))
            check_transposed(folder, 96, (8192, 8192), 4, (1024, 1024))
        else:
            sizes = (131072, 8192), 32, (8192, 8192)
            check_reading(folder, 512, *sizes)
            check_quantize(folder, 512, *sizes)
            check_transposed(folder, 512, (16384, 32768), 4, (1024, 1024))


main()
