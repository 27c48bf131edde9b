"""Golden checkpoints that AutoRound exports: its own format, packed as GPTQ or AWQ.

    pip install auto-round==0.16.1 transformers tokenizers
    python3 golden_auto_round.py
"""
import json
import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the torch kernels decode on the CPU

import torch
from golden_common import DATA, save_json, save_tensors, weights
from safetensors.torch import load_file
from tokenizers import Tokenizer, models
from transformers import (AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM,
                          PreTrainedTokenizerFast)

CONFIG = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": 8,
          "num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": False}
MLP = "model.layers.0.mlp"
CASES = {
    # name: (sym, format, settings of single layers)
    "auto_round_gptq_sym_g32": (True, "auto_round", {}),
    "auto_round_awq_asym_g32": (False, "auto_round", {}),
    "auto_round_gptqmodel_asym_g32": (False, "auto_round:gptqmodel", {}),
    "auto_round_mixed_groups": (True, "auto_round", {
        f"{MLP}.gate_proj": {"group_size": 16}, f"{MLP}.up_proj": {"group_size": 64},
        f"{MLP}.down_proj": {"bits": 16}}),
}


def model():
    made = LlamaForCausalLM(LlamaConfig(**CONFIG)).to(torch.float16)
    for seed, (_, parameter) in enumerate(made.named_parameters()):
        if parameter.dim() == 2:
            parameter.data = weights(9000 + seed, *parameter.shape, torch.float16)
    return made


def export(folder, sym, form, single):
    from auto_round import AutoRound
    words = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    AutoRound(model(), PreTrainedTokenizerFast(tokenizer_object=words), bits=4, sym=sym,
              group_size=32, iters=0, disable_opt_rtn=True, data_type="int", device_map="cpu",
              layer_config=single).quantize_and_save(str(folder), format=form)
    (made,) = folder.rglob("config.json")
    return made.parent


def truth(folder, tensors):
    """What AutoRound's modules hand to the product of matrices (a product with the identity would
    lose the sign of -0). For AWQ's packing it has no module on a CPU, but the function that such a
    module calls."""
    from auto_round.export.export_to_awq.utils import dequantize_gemm
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float16, device_map="cpu")
    modules, found = dict(loaded.named_modules()), {}
    for layer in [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]:
        if "awq" in config["packing_format"]:
            weight = dequantize_gemm(*[tensors[f"{layer}.{part}"] for part in
                                       ("qweight", "qzeros", "scales")], 4, config["group_size"])
        else:
            x = torch.zeros(1, modules[layer].infeatures, dtype=torch.float16)
            with mock.patch.object(torch, "matmul", wraps=torch.matmul) as matmul:
                modules[layer](x)
            weight = matmul.call_args.args[1]
        found[f"{layer}.weight"] = weight.T.contiguous()
    return found


def main():
    for name, (sym, form, single) in CASES.items():
        with tempfile.TemporaryDirectory() as temporary:
            folder = export(Path(temporary), sym, form, single)
            tensors = load_file(folder / "model.safetensors")
            shutil.rmtree(DATA / name, ignore_errors=True)
            save_tensors(name, "model.safetensors", tensors)
            save_json(name, "config.json", json.loads((folder / "config.json").read_text()))
            save_tensors(name, "truth.safetensors", truth(folder, tensors))


if __name__ == "__main__":
    main()
