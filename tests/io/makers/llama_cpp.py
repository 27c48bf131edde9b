"""llama.cpp's own script makes a GGUF file of the model, and its llama-quantize another of that.

    export QK_LLAMA_CPP=FOLDER        llama.cpp's sources: convert_hf_to_gguf.py and gguf-py
    export QK_LLAMA_QUANTIZE=PROGRAM  llama-quantize, built from them

The script wants sentencepiece, whose smallest tokenizer is trained here.
"""
import os
import pathlib
import subprocess
import sys

import sentencepiece
import torch

if not {"QK_LLAMA_CPP", "QK_LLAMA_QUANTIZE"} <= set(os.environ):
    raise ImportError("llama.cpp is not there: QK_LLAMA_CPP and QK_LLAMA_QUANTIZE name its "
                      "sources and its llama-quantize")
SOURCES = pathlib.Path(os.environ["QK_LLAMA_CPP"])
sys.path.insert(0, str(SOURCES / "gguf-py"))
import gguf  # noqa: E402

DENSE = ("F32", "F16", "BF16")
# What llama-quantize makes of its kinds is a mixture: the types of single layers differ.
KINDS = {name: (None,) for name in (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K_S", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_NL",
    "IQ4_XS", "MXFP4_MOE")}


def models(kind):
    return ("mixtral_wide",) if kind == "MXFP4_MOE" else ("llama_wide", "mixtral_wide")


def run(*command):
    path = f"{SOURCES / 'gguf-py'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          check=False, env={**os.environ, "PYTHONPATH": path})
    if done.returncode != 0:
        raise AssertionError(f"{command}: {done.stdout[-2000:]} {done.stderr[-2000:]}")


def path_of(folder):
    """The file, or the first of its parts."""
    return sorted(folder.glob("*.gguf"))[0]


def converted(source):
    """The model in bf16, as the script writes it; the one with experts in parts."""
    if not list(source.glob("*.gguf")):
        text = [f"{left}{right}" for left in "abcdefgh" for right in "abcdefgh"]
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text), model_prefix=str(source / "tokenizer"), vocab_size=60,
            model_type="bpe", hard_vocab_limit=False, minloglevel=2)
        parts = ["--split-max-tensors", 8] if source.name == "mixtral_wide" else []
        run(sys.executable, SOURCES / "convert_hf_to_gguf.py", source, "--outtype", "bf16",
            "--outfile", source / "model.gguf", *parts)
    return path_of(source)


def make(source, folder, kind):
    folder.mkdir()
    made = converted(source)
    parts = ["--keep-split"] if made.name != "model.gguf" else []
    run(os.environ["QK_LLAMA_QUANTIZE"], *parts, made, folder / "model.gguf", kind, "1")
    tensors = [tensor for path in folder.glob("*.gguf") for tensor in gguf.GGUFReader(path).tensors]
    return {tensor.name: torch.from_numpy(
        gguf.quants.dequantize(tensor.data, tensor.tensor_type).copy())
        for tensor in tensors if tensor.tensor_type.name not in DENSE}
