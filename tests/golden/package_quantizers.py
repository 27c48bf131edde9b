"""The quantizers of the real packages, on the CPU: what golden_quantizers.py writes down and
check_quantizers.py asks again.

    pip install compressed-tensors==0.20.0 nvidia-modelopt==0.47.0 torch==2.15.0
    export GGML_BASE=.../libggml-base.so   # of llama.cpp, built for plain x86-64: with fused
                                           # multiply-adds Q4_0 breaks its ties otherwise

Each takes a 2-D tensor of f32, f16 or bf16 and gives its planes by their names. Nothing is computed
here but the smallest and largest number of each group, as the package's observers do.
"""
import ctypes
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # before torch: plain eager arithmetic, no network
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import torch
from compressed_tensors.compressors.mxfp4.base import MXFP4PackedCompressor
from compressed_tensors.compressors.mxfp8.base import MXFP8QuantizationCompressor
from compressed_tensors.compressors.naive_quantized.base import NaiveQuantizationCompressor
from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam


def _compress(compressor, x, scheme, group):
    """Observes the weight as MemorylessMinMaxObserver does, then the package's compressor."""
    grouped = x.reshape(x.shape[0], -1, group)
    low, high = torch.amin(grouped, -1), torch.amax(grouped, -1)
    whole = None
    if compressor is NVFP4PackedCompressor:
        largest = torch.max(high.max(), -low.min()).reshape(1)
        whole = generate_gparam(-largest, largest)
    scale, zero = calculate_qparams(low, high, scheme.weights, global_scale=whole)
    state = {"weight": x.clone(), "weight_scale": scale.to(x.dtype), "weight_zero_point": zero}
    if whole is not None:
        state["weight_global_scale"] = whole
    return compressor.compress(state, scheme)


def mxfp4(x):
    state = _compress(MXFP4PackedCompressor, x, preset_name_to_scheme("MXFP4A16", ["Linear"]), 32)
    return {"data": state["weight_packed"], "scale": state["weight_scale"]}


def mxfp8(x):
    scheme = preset_name_to_scheme("MXFP8A16", ["Linear"])
    state = _compress(MXFP8QuantizationCompressor, x, scheme, 32)
    return {"data": state["weight"], "scale": state["weight_scale"]}


def nvfp4(x):
    state = _compress(NVFP4PackedCompressor, x, preset_name_to_scheme("NVFP4A16", ["Linear"]), 16)
    return {"data": state["weight_packed"], "scale": state["weight_scale"],
            "global": state["weight_global_scale"]}


def nvfp4_modelopt(x):
    from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

    made, scale, whole = NVFP4QTensor.quantize(x.clone(), 16)
    return {"data": made._quantized_data, "scale": scale, "global": whole.reshape(1)}


def _eight_bits(x, kind, group):
    strategy = {"strategy": "channel"} if group == 0 else {"strategy": "group",
                                                           "group_size": group}
    weights = QuantizationArgs(num_bits=8, type=kind, symmetric=True, **strategy)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    state = _compress(NaiveQuantizationCompressor, x, scheme, group or x.shape[1])
    return {"data": state["weight"], "scale": state["weight_scale"]}


def _ggml(x, function, bytes_a_block):
    library = ctypes.CDLL(os.environ["GGML_BASE"])
    numbers = x.float().contiguous()
    records = torch.empty(x.numel() // 32 * bytes_a_block, dtype=torch.uint8)
    getattr(library, function)(ctypes.c_void_p(numbers.data_ptr()),
                               ctypes.c_void_p(records.data_ptr()), ctypes.c_int64(x.numel()))
    return {"data": records}


QUANTIZERS = {
    "mxfp4": mxfp4,
    "mxfp8": mxfp8,
    "nvfp4": nvfp4,
    "nvfp4_modelopt": nvfp4_modelopt,
    "int8_row": lambda x: _eight_bits(x, "int", 0),
    "int8_g32": lambda x: _eight_bits(x, "int", 32),
    "fp8_row": lambda x: _eight_bits(x, "float", 0),
    "fp8_g32": lambda x: _eight_bits(x, "float", 32),
    "q4_0": lambda x: _ggml(x, "quantize_row_q4_0_ref", 18),
    "q8_0": lambda x: _ggml(x, "quantize_row_q8_0_ref", 34),
}


def raw(tensor):
    """The bytes of a plane; bf16 and f8 have no type of numpy's."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)
