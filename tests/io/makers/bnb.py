"""transformers quantizes the model with bitsandbytes and saves it, in shards."""
from unittest import mock

import accelerate  # noqa: F401  (bitsandbytes needs it inside transformers)
import bitsandbytes
import torch
import transformers
from bitsandbytes.autograd._functions import MatMul8bitFp, MatmulLtState
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute

KINDS = {
    "nf4": ("nf4", {"bnb_4bit_quant_type": "nf4"}),
    "nf4_nested": ("nf4", {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}),
    "fp4": ("fp4", {"bnb_4bit_quant_type": "fp4"}),
    "fp4_nested": ("fp4", {"bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": True}),
    "llm_int8": ("int8", None),
}


def models(_):
    """Of experts bitsandbytes quantizes the attention alone; Gemma's head is tied too."""
    return "llama", "llama_odd", "qwen2_tied", "qwen3_moe", "gemma"


def weight_of_4_bits(module):
    """By the package's device-independent code: its AVX-512 one is wrong where blocks straddle."""
    state = module.weight.quant_state
    absmax = state.absmax
    if state.nested:
        absmax = bitsandbytes.functional.dequantize_blockwise(absmax, state.state2) + state.offset
    packed = module.weight.data.view(torch.uint8).reshape(-1)
    return _dequantize_4bit_compute(packed, absmax, state.code, state.blocksize, state.shape,
                                    state.dtype)


def weight_of_8_bits(module):
    """As the package has it where it multiplies by a dequantized weight."""
    state = MatmulLtState()
    state.CB, state.SCB, state.has_fp16_weights = module.weight.data, module.weight.SCB, False
    x = torch.zeros(1, module.in_features, dtype=torch.bfloat16)
    linear = torch.nn.functional.linear
    with mock.patch.object(torch.nn.functional, "linear", wraps=linear) as product:
        MatMul8bitFp.apply(x, module.weight, None, None, state)
    return product.call_args.args[1]


def make(source, folder, kind):
    settings = KINDS[kind][1]
    config = transformers.BitsAndBytesConfig(load_in_8bit=True) if settings is None else \
        transformers.BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16,
                                        **settings)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, quantization_config=config, device_map="cpu", dtype=torch.bfloat16)
    model.save_pretrained(folder, max_shard_size="100KB")
    truth = {}
    for name, module in model.named_modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            truth[f"{name}.weight"] = weight_of_4_bits(module)
        elif isinstance(module, bitsandbytes.nn.Linear8bitLt):
            truth[f"{name}.weight"] = weight_of_8_bits(module)
    return truth
