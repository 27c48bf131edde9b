"""examples/c/llama.c and its twin in Python choose the tokens that transformers chooses.

    llama_transformers.py LLAMA QK WORK TWIN

Four models of random weights x every dialect that qk reads. Dense ones are transformers' own files.
Weights of the others are packed here (AutoAWQ, GPTQ) or by QK (bitsandbytes, compressed-tensors);
transformers then runs on the weights that they stand for. Needs PyTorch and transformers; nothing
is downloaded.
"""
import json
import pathlib
import subprocess
import sys

try:
    import numpy as np
    import torch
    import transformers
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

LLAMA, QK, WORK, TWIN = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4]
PROMPT, COUNT, GROUP = [5, 9, 200, 17, 33, 4, 250], 32, 32
SIZES = {"hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3, "vocab_size": 256,
         "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 512}
ROPE = {"rope_type": "llama3", "rope_theta": 5000.0, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES),
    "llama_rope": lambda: transformers.LlamaConfig(**SIZES, rope_parameters=ROPE),
    "mistral": lambda: transformers.MistralConfig(**SIZES, sliding_window=64),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": lambda: transformers.Qwen3Config(**SIZES, head_dim=32)}


def make_model(make_config, dtype):
    torch.manual_seed(7)
    model = transformers.AutoModelForCausalLM.from_config(make_config())
    for name, values in model.named_parameters():
        torch.nn.init.normal_(values, float("norm" in name), 0.2 if values.dim() == 1 else 0.15)
    return model.to(dtype).eval()


def wanted(model):
    prompt = torch.tensor([PROMPT])
    with torch.no_grad():
        out = model.float().generate(prompt, attention_mask=torch.ones_like(prompt), pad_token_id=0,
                                     eos_token_id=[], max_new_tokens=COUNT, do_sample=False)
    return out[0, len(PROMPT):].tolist()


def words(codes):
    """Eight codes along the last axis to one word, the first one lowest."""
    eights = codes.reshape(*codes.shape[:-1], -1, 8).astype(np.uint32)
    return np.bitwise_or.reduce(eights << np.arange(0, 32, 4, dtype=np.uint32), -1).view(np.int32)


def awq_order(codes):
    eights = codes.reshape(*codes.shape[:-1], -1, 8)
    return eights[..., [0, 2, 4, 6, 1, 3, 5, 7]].reshape(codes.shape)


def awq_gemm(codes, zeros, scales):
    return {"qweight": words(awq_order(codes.T)), "qzeros": words(awq_order(zeros.T)),
            "scales": scales.T}


def awq_gemv(codes, zeros, scales):
    pad = ((0, 0), (0, -zeros.shape[1] % 32))  # groups of 32: rows of zeros end at 4 words
    return {"qweight": words(codes), "qzeros": words(np.pad(zeros, pad)),
            "scales": np.pad(scales, pad)}


def gptq(codes, zeros, scales, less):
    return {"qweight": words(codes).T, "qzeros": words((zeros.T - less) & 15), "scales": scales.T,
            "g_idx": np.arange(codes.shape[1], dtype=np.int32) // GROUP}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False}
PACKED = {
    "awq_gemm": (awq_gemm, {**AWQ, "version": "gemm"}),
    "awq_gemv": (awq_gemv, {**AWQ, "version": "gemv"}),
    "gptq_v1": (lambda *a: gptq(*a, 1), {**GPTQ, "checkpoint_format": "gptq"}),
    "gptq_v2": (lambda *a: gptq(*a, 0), {**GPTQ, "checkpoint_format": "gptq_v2"})}
QUANTIZED = {"nf4": ["nf4"], "nf4_nested": ["nf4", "--nested"], "fp4": ["fp4"],
             "compressed_tensors": ["int4", "--group", "32"],
             "compressed_tensors_asymmetric": ["int4", "--group", "32", "--asymmetric"]}


def pack(source, folder, name):
    """Random codes for every layer of `source`; returns the weights that they stand for."""
    packer, section = PACKED[name]
    rng, stored, dense = np.random.default_rng(3), {}, {}
    for tensor, values in load_file(source / "model.safetensors").items():
        dense[tensor] = values
        if not tensor.endswith("_proj.weight"):
            stored[tensor] = values
            continue
        n, k = values.shape
        codes = rng.integers(0, 16, (n, k), np.uint8)
        zeros = rng.integers(1, 16, (n, k // GROUP), np.uint8)
        scales = rng.uniform(0.01, 0.04, zeros.shape).astype(np.float16)
        steps = codes.astype(np.float32) - np.repeat(zeros, GROUP, 1)
        dense[tensor] = steps * np.repeat(scales, GROUP, 1).astype(np.float32)
        for part, plane in packer(codes, zeros, scales).items():
            stored[tensor.replace("weight", part)] = np.ascontiguousarray(plane)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": section}))
    return dense


def check(name, folder, tokens):
    prompt, said = ",".join(map(str, PROMPT)), ",".join(map(str, tokens)) + "\n"
    for command in ([LLAMA, folder, "--ids", prompt, "--tokens", str(COUNT), "--ignore-end"],
                    [sys.executable, TWIN, folder, prompt, str(COUNT)]):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0 or done.stdout != said:
            sys.exit(f"{name}: {command}: {done.stdout}, not {said}{done.stderr}")
    print(f"{name}: {COUNT} tokens are equal", flush=True)


def check_model(name, make_config):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        model, folder = make_model(make_config, dtype), WORK / f"{name}_{str(dtype)[6:]}"
        model.save_pretrained(folder)
        check(folder.name, folder, wanted(model))
    dense = folder  # of float32
    for dialect in PACKED:
        weights = {key: torch.from_numpy(np.array(values)) for key, values in
                   pack(dense, WORK / f"{name}_{dialect}", dialect).items()}
        model.load_state_dict(weights, strict=False)
        check(f"{name}_{dialect}", WORK / f"{name}_{dialect}", wanted(model))
    for dialect, options in QUANTIZED.items():
        folder = WORK / f"{name}_{dialect}"
        subprocess.run([QK, "quantize", dense, folder, "--force", "--quiet", "--format", *options],
                       check=True)
        subprocess.run([QK, "dequantize", folder, WORK / "twin", "--force", "--quiet", "--dtype",
                        "f32"], check=True)
        twin = load_file(WORK / "twin" / "model.safetensors")
        model.load_state_dict({key: torch.from_numpy(values) for key, values in twin.items()},
                              strict=False)
        check(folder.name, folder, wanted(model))


transformers.logging.set_verbosity_error()
for model_name, make in MODELS.items():
    check_model(model_name, make)
