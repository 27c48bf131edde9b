"""Small models of random weights, and running the command: what the release tier's tests of the
packages share. Nothing is downloaded.

Importing it before torch sets the environment in which the packages compute the same everywhere;
without torch or transformers the program that imports it skips (77).
"""
import json
import os
import shlex
import subprocess
import sys

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch: plain eager arithmetic
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TQDM_DISABLE"] = "1"
try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

COMMAND = shlex.split(os.environ["QK_COMMAND"])
SMALL = {"vocab_size": 96, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
         "head_dim": 32, "initializer_range": 0.1}
TIED = {**SMALL, "tie_word_embeddings": True}
EXPERTS = {**SMALL, "num_experts": 4, "num_experts_per_tok": 2}
# Rows of 256 columns, for records of 256 weights.
WIDE = {**SMALL, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
TOKENS = torch.arange(24).reshape(2, 12) * 7 % 96


def gpt_oss():
    return transformers.GptOssConfig(**SMALL, hidden_act="silu", num_local_experts=4,
                                     num_experts_per_tok=2)


def deepseek_v4():
    return transformers.DeepseekV4Config(
        **{**SMALL, "num_key_value_heads": 1, "intermediate_size": 128}, moe_intermediate_size=128,
        q_lora_rank=128, qk_rope_head_dim=16, o_groups=2, o_lora_rank=64, n_routed_experts=4,
        num_experts_per_tok=2, num_hash_layers=1, index_n_heads=4, index_head_dim=32,
        layer_types=["heavily_compressed_attention", "compressed_sparse_attention"])


MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SMALL),
    # Rows and columns of the projections that no block of 128 divides.
    "llama_odd": lambda: transformers.LlamaConfig(
        **{**SMALL, "head_dim": 20, "intermediate_size": 200}),
    "llama_wide": lambda: transformers.LlamaConfig(**WIDE, attention_bias=True),
    "mixtral_wide": lambda: transformers.MixtralConfig(
        **WIDE, num_local_experts=4, tie_word_embeddings=True),
    "llama_tied": lambda: transformers.LlamaConfig(**TIED),
    "qwen2_tied": lambda: transformers.Qwen2Config(**TIED),  # with biases
    "qwen3": lambda: transformers.Qwen3Config(**SMALL),
    "qwen3_tied": lambda: transformers.Qwen3Config(**TIED),
    "gemma": lambda: transformers.GemmaConfig(**SMALL),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(**EXPERTS, moe_intermediate_size=128),
    "qwen2_moe": lambda: transformers.Qwen2MoeConfig(
        **EXPERTS, moe_intermediate_size=64, shared_expert_intermediate_size=128),
    "mixtral": lambda: transformers.MixtralConfig(**SMALL, num_local_experts=4),
    "gpt_oss": gpt_oss,
    "llama4": lambda: transformers.Llama4TextConfig(
        **SMALL, intermediate_size_mlp=256, num_local_experts=4, num_experts_per_tok=1,
        interleave_moe_layer_step=1),
    "deepseek_v4": deepseek_v4,
}


def save_model(name, folder, dtype, **options):
    torch.manual_seed(11)
    model = transformers.AutoModelForCausalLM.from_config(MODELS[name](), dtype=dtype)
    with torch.no_grad():  # routers and gates that do choose, norms that are not 1
        for value in model.parameters():
            value.copy_(torch.randn(value.shape) * 0.1 + (value.dim() == 1))
    model.save_pretrained(folder, **options)


def run_qk(*arguments):
    """What the command prints with --json."""
    done = subprocess.run([*COMMAND, *map(str, arguments), "--json"], capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: {done.stderr} {done.stdout[-2000:]}")
    return json.loads(done.stdout)


def tensors_of(folder):
    """The tensors of all the folder's safetensors files."""
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(path))
    return tensors


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(
        a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


def load_model(folder, **options):
    """As transformers loads it: nothing missing, left over, or of another shape."""
    model, found = transformers.AutoModelForCausalLM.from_pretrained(
        folder, output_loading_info=True, **{"dtype": torch.float32, **options})
    for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs"):
        if found.get(key):
            raise AssertionError(f"{folder.name}: {key}: {found[key]}")
    return model.eval()


def logits_of(folder, **options):
    with torch.no_grad():
        return load_model(folder, **options)(TOKENS).logits.double()
