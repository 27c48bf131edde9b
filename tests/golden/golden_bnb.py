"""bitsandbytes: 4-bit checkpoints, 8-bit blockwise planes, and what its quantizers answer."""
import bitsandbytes as bnb
import bitsandbytes.functional as F
import numpy as np
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from golden_common import DATA, linear, save_checkpoint, save_json, save_tensors, weights

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32

# Layer, rows, columns, type, block size, bias. 80 % 64 and 45 % 64 are not 0, so blocks straddle
# rows; 7 * 45 is odd, so the last byte is half padding; 160 * 128 / 64 blocks are two nested ones.
LAYERS = [
    ("model.layers.0.self_attn.q_proj", 96, 128, F16, 64, True),
    ("model.layers.0.self_attn.k_proj", 33, 80, BF16, 64, False),
    ("model.layers.0.self_attn.v_proj", 7, 45, F32, 64, True),
    ("model.layers.0.mlp.up_proj", 160, 128, BF16, 64, False),
    ("model.layers.0.mlp.down_proj", 40, 96, F16, 128, False),
    ("model.layers.0.mlp.gate_proj", 5, 130, F16, 32, False),
]


SEED = 100  # every 4-bit folder quantizes the same dense weights


def write_dense(name):
    """The weights that all bnb_ folders start from, as an ordinary checkpoint."""
    tensors = {}
    for index, (layer, n, k, dtype, _, bias) in enumerate(LAYERS):
        dense = linear(SEED + index, n, k, dtype, bias)
        tensors.update({f"{layer}.{key}": value for key, value in dense.state_dict().items()})
    save_tensors(name, "model.safetensors", tensors)
    save_json(name, "config.json", {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})


def quantized_linear(seed, n, k, dtype, blocksize, bias, quant_type, nested, storage):
    dense = linear(seed, n, k, dtype, bias)
    layer = bnb.nn.Linear4bit(k, n, bias=bias, compute_dtype=dtype, quant_type=quant_type,
                              compress_statistics=nested, quant_storage=storage)
    if bias:
        layer.bias.data = dense.bias.data
    layer.weight = bnb.nn.Params4bit(dense.weight.data, requires_grad=False, blocksize=blocksize,
                                     compress_statistics=nested, quant_type=quant_type,
                                     quant_storage=storage, module=layer)
    return layer.to("cpu")  # quantizes


def dequantize_default(packed, state):
    """bitsandbytes' device-independent path; its AVX-512 one is wrong when blocks straddle."""
    absmax = state.absmax
    if state.nested:
        absmax = F.dequantize_blockwise(state.absmax, state.state2) + state.offset
    return _dequantize_4bit_compute(packed.view(torch.uint8).reshape(-1), absmax, state.code,
                                    state.blocksize, state.shape, state.dtype)


def write_4bit(name, quant_type, nested, storage):
    tensors, truth = {}, {}
    for index, (layer, n, k, dtype, blocksize, bias) in enumerate(LAYERS):
        if storage != torch.uint8 and (n * k) % 4:
            continue  # such a storage type cannot hold half an element
        module = quantized_linear(SEED + index, n, k, dtype, blocksize, bias, quant_type, nested,
                                  storage)
        tensors.update({f"{layer}.{key}": value for key, value in module.state_dict().items()})
        weight = dequantize_default(module.weight.data, module.weight.quant_state)
        truth[f"{layer}.weight"] = weight.reshape(n, k)
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type=quant_type,
                                bnb_4bit_use_double_quant=nested, bnb_4bit_compute_dtype=BF16,
                                bnb_4bit_quant_storage=storage)
    save_checkpoint(name, tensors, truth, config.to_dict())


def write_blockwise_8bit(name, seed):
    tensors, truth = {}, {}
    for index, (n, k, dtype, blocksize) in enumerate(
            [(24, 100, F32, 64), (16, 160, F16, 256), (9, 75, BF16, 4096)]):
        dense = weights(seed + index, n, k, dtype)
        codes, state = F.quantize_blockwise(dense, blocksize=blocksize)
        layer = f"layer{index}.bs{blocksize}"
        tensors.update({f"{layer}.data": codes, f"{layer}.absmax": state.absmax,
                        f"{layer}.code": state.code})
        truth[f"{layer}.weight"] = F.dequantize_blockwise(codes, state)
    save_tensors(name, "model.safetensors", tensors)
    save_tensors(name, "truth.safetensors", truth)


def neighbours(values):
    """Each value with the floats right below and above it."""
    values = np.asarray(values, np.float32)
    below, above = np.nextafter(values, np.float32(-9)), np.nextafter(values, np.float32(9))
    return np.stack([below, values, above], axis=1).reshape(-1)


def ties(code, scale):
    """Blocks of 64 with absmax = scale that hold every midpoint of the code and its neighbours."""
    code = np.sort(np.unique(code.numpy()))
    middle = ((code[:-1] + code[1:]) / np.float32(2)).astype(np.float32)
    values = neighbours(np.concatenate([middle, code[np.abs(code) < 1]]))
    blocks = -(-values.size // 63)
    padded = np.zeros(blocks * 63, np.float32)
    padded[:values.size] = values
    block = np.concatenate([np.full((blocks, 1), 1.0, np.float32), padded.reshape(blocks, 63)], 1)
    return torch.from_numpy(block.reshape(-1) * np.float32(scale))


def partial_block(absmax):
    """One short block whose values sit on the thresholds: shows division from reciprocal."""
    values = [np.array([absmax], np.float32)]
    for quant_type in ("nf4", "fp4"):
        code = np.unique(F.get_4bit_type(quant_type, device="cpu").numpy())
        middle = (code[:-1] + code[1:]) / np.float32(2)
        values.append((middle * np.float32(absmax)).astype(np.float32))
    return torch.from_numpy(np.concatenate(values))


def oracle_inputs(seed):
    rng = np.random.default_rng(seed)
    zeros = torch.zeros(64 * 6 + 10)
    zeros[64:128] = -0.0
    zeros[130], zeros[140], zeros[150] = 1.0, -0.0, 1e-9
    zeros[151], zeros[200], zeros[300] = -1e-9, -3.0, 1e-30
    tiny = torch.from_numpy((rng.standard_normal(64 * 5 + 7) * np.repeat(
        np.array([1e-37, 1e-38, 3e-39, 1e-41, 1e-44, 1e-40]), 64)[:327]).astype(np.float32))
    huge = torch.from_numpy(np.clip(rng.standard_normal(64 * 4 + 3) * 1.5e38, -3.4e38, 3.4e38)
                            .astype(np.float32))
    half = rng.standard_normal(64 * 4)
    return {
        "plain_f32": weights(seed, 10, 203, F32).reshape(-1),
        "plain_f16": weights(seed + 1, 12, 131, F16).reshape(-1),
        "plain_bf16": weights(seed + 2, 9, 141, BF16).reshape(-1),
        "many_f32": weights(seed + 3, 64, 300, F32).reshape(-1),
        "many_bf16": weights(seed + 4, 129, 331, BF16).reshape(-1),
        "ties_nf4_f32": torch.cat([ties(F.get_4bit_type("nf4", device="cpu"), s)
                                   for s in (1.0, 0.375, 1e-3)]),
        "ties_fp4_f32": torch.cat([ties(F.get_4bit_type("fp4", device="cpu"), s)
                                   for s in (1.0, 12.0, 0.3)]),
        "ties_fp4_f16": ties(F.get_4bit_type("fp4", device="cpu"), 12.0).to(F16),
        "ties_nf4_bf16": ties(F.get_4bit_type("nf4", device="cpu"), 1.0).to(BF16),
        "ties_8bit_f32": ties(F.create_dynamic_map(), 1.0),
        "zeros_f32": zeros,
        "tiny_f32": tiny,
        "huge_f32": huge,
        "tiny_f16": torch.from_numpy(half * 3e-7).to(F16),
        "huge_f16": torch.from_numpy(np.clip(half * 3e4, -65504, 65504)).to(F16),
        "tiny_bf16": torch.from_numpy(half * 3e-39).to(BF16),
        "huge_bf16": torch.from_numpy(half * 1e38).to(BF16),
        "partial_a_f32": partial_block(0.3),
        "partial_b_f32": partial_block(0.7),
        "partial_c_f32": partial_block(1.9),
        "one_f32": torch.tensor([-0.7]),
        "two_f32": torch.tensor([0.25, -4.0]),
    }


def oracle_4bit(case, dense, quant_type, blocksize, nested):
    packed, state = F.quantize_4bit(dense, blocksize=blocksize, quant_type=quant_type,
                                    compress_statistics=nested)
    key = f"{case}.{quant_type}.bs{blocksize}"
    if not nested:
        return {f"{key}.packed": packed.reshape(-1), f"{key}.absmax": state.absmax}
    return {f"{key}.nested.absmax": state.absmax,
            f"{key}.nested.nested_absmax": state.state2.absmax,
            f"{key}.nested.offset": state.offset.reshape(1)}


def write_oracle(name, seed):
    torch.set_num_threads(1)  # the nested offset is a sum, and the order of a sum is its result
    inputs = oracle_inputs(seed)
    answers = {}
    for case, dense in inputs.items():
        sizes = (32, 64, 128, 4096) if case.startswith("plain") else (64,)
        for blocksize in sizes:
            for quant_type in ("nf4", "fp4"):
                answers.update(oracle_4bit(case, dense, quant_type, blocksize, False))
            answers.update(oracle_4bit(case, dense, "nf4", blocksize, True))
        for blocksize in (64, 256, 4096) if case.startswith("plain") else (64,):
            if case == "many_bf16":
                continue
            codes, state = F.quantize_blockwise(dense, blocksize=blocksize)
            answers[f"{case}.8bit.bs{blocksize}.data"] = codes
            answers[f"{case}.8bit.bs{blocksize}.absmax"] = state.absmax
    answers["dynamic_map"] = F.create_dynamic_map()
    answers["nf4_table"] = F.get_4bit_type("nf4", device="cpu")
    answers["fp4_table"] = F.get_4bit_type("fp4", device="cpu")
    save_tensors(name, "inputs.safetensors", inputs)
    save_tensors(name, "expected.safetensors", answers)


def save_dense_llama(folder, seed, intermediate_size):
    config = LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=intermediate_size,
                         num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
                         tie_word_embeddings=False)
    model = LlamaForCausalLM(config).to(BF16)
    for index, (_, value) in enumerate(sorted(model.state_dict().items())):
        if value.ndim == 2:
            value.copy_(weights(seed + index, *value.shape, BF16))
    model.save_pretrained(folder)


def write_sharded(name, seed, folder):
    """A tiny Llama quantized on load and saved in shards by transformers itself."""
    save_dense_llama(folder, seed, 96)
    quantization = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4",
                                      bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=BF16)
    loaded = AutoModelForCausalLM.from_pretrained(folder, quantization_config=quantization,
                                                  dtype=BF16, device_map="cpu")
    loaded.save_pretrained(DATA / name, max_shard_size="24KB")
    truth = {f"{layer}.weight": dequantize_default(module.weight.data, module.weight.quant_state)
             .reshape(module.out_features, module.in_features)
             for layer, module in loaded.named_modules() if isinstance(module, bnb.nn.Linear4bit)}
    save_tensors(name, "truth.safetensors", truth)


def write_all(folder):
    write_dense("dense")
    write_4bit("bnb_nf4", "nf4", False, torch.uint8)
    write_4bit("bnb_nf4_nested", "nf4", True, torch.uint8)
    write_4bit("bnb_fp4", "fp4", False, torch.uint8)
    write_4bit("bnb_fp4_nested", "fp4", True, torch.uint8)
    write_4bit("bnb_nf4_nested_bf16_storage", "nf4", True, BF16)
    write_blockwise_8bit("bnb_8bit_blockwise", 600)
    write_sharded("bnb_sharded", 700, folder)
    write_oracle("bnb_quantize_oracle", 800)
