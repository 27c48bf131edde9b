"""bitsandbytes' kernels by qk: what the entry point `bitsandbytes.backends` of this package loads.

With qk installed, `import bitsandbytes` calls load(), which registers the functions below for
bitsandbytes' operators on the CPU and, where qk has CUDA, on GPUs. Its modules, functions, saved
states, gradients and torch.compile stay its own. docs/bitsandbytes.md says what changes.

    QK_BITSANDBYTES=off              leaves bitsandbytes as it is
    QK_BITSANDBYTES_ROUND=none       no product rounds its weights to x's type
    QK_BITSANDBYTES_ROUND=all        all do; "gemv", the default: gemv_4bit alone
    QK_BITSANDBYTES_AVX512_BF16=qk   what Linear4bit gives to bitsandbytes' AVX512-BF16 kernel is
                                     qk's as well; "stock", the default: it is left there
"""
from __future__ import annotations

import functools
import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from . import pointers
from ._context import Context, current_context, device_count
from ._desc import MAX_GROUP

_FORMATS = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}
_TYPES = {"nf4": "nf4", "fp4": "fp4_bnb"}
_MIN_GROUP, _ROW = 16, -1  # qk.h, qk_tensor_desc
_NESTED_BLOCK = 256  # bitsandbytes' only block of scales in a product
_ROUNDED: dict[str, frozenset[str]] = {"none": frozenset(), "gemv": frozenset(["gemv"]),
                                       "all": frozenset(["gemv", "gemm"])}
_rounded = _ROUNDED["gemv"]
_libraries: list[Any] = []  # registrations end with the object that made them
_stock_gemv: Any = None


def round_weights(where: str) -> None:
    """Which products round their weights to x's type and then multiply as PyTorch does, which is
    how bitsandbytes defines them: "none", "gemv" (gemv_4bit alone) or "all". They take longer."""
    global _rounded
    if where not in _ROUNDED:
        raise ValueError(f"round_weights: is {where!r}, accepted are {', '.join(_ROUNDED)}")
    _rounded = _ROUNDED[where]


# ---- what all kernels share

def _context(tensor: torch.Tensor) -> Context:
    if not tensor.is_cuda:
        return current_context()
    index = tensor.device.index or 0
    context = current_context("cuda", index)
    context.follow_stream(torch.cuda.current_stream(index).cuda_stream or None)
    return context


def _format(dtype: torch.dtype, name: str) -> str:
    if dtype not in _FORMATS:
        raise ValueError(f"{name}: is {dtype}, accepted are float32, float16 and bfloat16")
    return _FORMATS[dtype]


def _require_4bit(blocksize: int, quant_type: str) -> None:
    if quant_type not in _TYPES:
        raise ValueError(f"quant_type: is {quant_type!r}, accepted are 'nf4' and 'fp4'")
    _require_block(blocksize)


def _require_block(blocksize: int) -> None:
    if not _MIN_GROUP <= blocksize <= MAX_GROUP:
        raise ValueError(f"blocksize: is {blocksize}, accepted are {_MIN_GROUP} to {MAX_GROUP}")


def _plane(tensor: torch.Tensor, like: torch.Tensor, name: str, nbytes: int,
           dtype: torch.dtype | None = None) -> torch.Tensor:
    """A compact tensor of that type on the device of `like`, with the bytes that are read."""
    if tensor.device != like.device:
        raise ValueError(f"{name}: is on {tensor.device}, must be on {like.device}")
    if dtype is not None and tensor.dtype != dtype:
        tensor = tensor.to(dtype)
    tensor = tensor.contiguous()
    if tensor.numel() * tensor.element_size() < nbytes:
        raise ValueError(f"{name}: has {tensor.numel() * tensor.element_size()} bytes, "
                         f"must have {nbytes}")
    return tensor


def _blocks(count: int, blocksize: int) -> int:
    return -(count // -blocksize)


@functools.lru_cache(maxsize=4096)
def _grid(count: int, blocksize: int) -> tuple[int, int]:
    """A run of codes as rows that begin with a block, long enough for the fast kernels."""
    if count % blocksize:
        return 1, count
    columns = blocksize
    while columns < MAX_GROUP and count % (2 * columns) == 0:
        columns *= 2
    return count // columns, columns


@functools.lru_cache(maxsize=4096)
def _parts(count: int, blocksize: int) -> list[tuple[int, int, tuple[int, int], int]]:
    """First code, first block, shape and group size of what is quantized by itself: where a block
    is no group of qk, each is a row, whose length is free, and the last one may be shorter."""
    if _MIN_GROUP <= blocksize <= MAX_GROUP:
        return [(0, 0, _grid(count, blocksize), blocksize)]
    rows, rest = divmod(count, blocksize)
    parts = [(0, 0, (rows, blocksize), _ROW), (rows * blocksize, rows, (1, rest), _ROW)]
    return [part for part in parts if math.prod(part[2])]


# ---- 4-bit

def quantize_4bit(A: torch.Tensor, blocksize: int, quant_type: str,
                  quant_storage: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    _require_4bit(blocksize, quant_type)
    count, size = A.numel(), quant_storage.itemsize
    nbytes = (count + 1) // 2
    if nbytes % size:
        raise ValueError(f"quant_storage: {nbytes} bytes of codes are no whole number of elements "
                         f"of {quant_storage}, take uint8")
    absmax = torch.empty((_blocks(count, blocksize),), dtype=torch.float32, device=A.device)
    out = torch.empty((nbytes // size, 1), dtype=quant_storage, device=A.device)
    format = _format(A.dtype, "A")
    if count:
        A = A.contiguous()
        shape = _grid(count, blocksize)
        pointers.quantize(
            pointers.dense(A.data_ptr(), shape, format),
            pointers.weight(shape, _TYPES[quant_type],
                            {"data": out.data_ptr(), "scale": absmax.data_ptr()}, scale="f32",
                            layout="row_high", group_size=blocksize), context=_context(A))
    return out, absmax


class _Weight:
    """Codes and scales of 4 bits as bitsandbytes hands them over, as one operand of any shape."""

    def __init__(self, B: torch.Tensor, count: int, absmax: torch.Tensor, blocksize: int,
                 format: str, **more: torch.Tensor) -> None:
        blocks = _blocks(count, blocksize)
        planes = {"data": _plane(B, B, "B", (count + 1) // 2)}
        self.options: dict[str, Any] = {"scale": "f32", "layout": "row_high",
                                        "group_size": blocksize}
        if "table" in more:
            planes["table"] = _plane(more["table"], B, "code", 64, torch.float32)
        if "absmax_8bit" in more:
            self.options.update(scale="lut8", scale_group_size=_NESTED_BLOCK)
            planes["scale"] = _plane(more["absmax_8bit"], B, "absmax_8bit", blocks)
            planes["scale2"] = _plane(absmax, B, "absmax", 4 * _blocks(blocks, _NESTED_BLOCK),
                                      torch.float32)
            planes["scale_code"] = _plane(more["absmax_code"], B, "absmax_code", 1024,
                                          torch.float32)
            planes["scale_bias"] = _plane(more["absmax_offset"], B, "absmax_offset", 4,
                                          torch.float32)
        else:
            planes["scale"] = _plane(absmax, B, "absmax", 4 * blocks, torch.float32)
        self.planes, self.format = planes, format  # the tensors live until the call is over

    def operand(self, shape: tuple[int, ...]) -> pointers.Operand:
        return pointers.weight(shape, self.format,
                               {name: plane.data_ptr() for name, plane in self.planes.items()},
                               **self.options)

    def dequantize(self, out: torch.Tensor) -> torch.Tensor:
        """Its values into `out`, which is compact."""
        shape = _grid(out.numel(), self.options["group_size"])
        pointers.dequantize(self.operand(shape), pointers.dense(
            out.data_ptr(), shape, _format(out.dtype, "dtype")), context=_context(out))
        return out

    def multiply(self, A: torch.Tensor, shape: Sequence[int], bias: torch.Tensor | None,
                 product: str) -> torch.Tensor:
        """A [..., k] times the transposed weight [n,k], plus bias."""
        n, k = shape
        if A.ndim == 0 or A.shape[-1] != k:
            raise ValueError(f"A: is {list(A.shape)}, its last dimension must be {k}")
        out = torch.empty((*A.shape[:-1], n), dtype=A.dtype, device=A.device)
        if out.numel() == 0:
            return out
        if product in _rounded or k == 0:
            weight = torch.empty((n, k), dtype=A.dtype, device=A.device)
            return torch.nn.functional.linear(A, self.dequantize(weight) if k else weight, bias)
        A, format = A.contiguous(), _format(A.dtype, "A")
        rows = A.numel() // k
        if bias is not None:
            bias = _plane(bias, A, "bias", n * A.element_size(), A.dtype)
        pointers.linear(
            pointers.dense(A.data_ptr(), (rows, k), format), self.operand((n, k)),
            None if bias is None else pointers.dense(bias.data_ptr(), (n,), format),
            pointers.dense(out.data_ptr(), (rows, n), format), rows=rows, context=_context(A))
        return out


def _into(out: torch.Tensor, shape: Sequence[int], dtype: torch.dtype, like: torch.Tensor,
          fill: Callable[[torch.Tensor], object]) -> None:
    """Has `fill` write out's values: into it where it is compact, else by way of a copy."""
    if tuple(out.shape) != tuple(shape) or out.dtype != dtype or out.device != like.device:
        raise ValueError(f"out: is {out.dtype} {list(out.shape)} on {out.device}, must be {dtype} "
                         f"{list(shape)} on {like.device}")
    if out.numel() == 0:
        return
    compact = out if out.is_contiguous() else torch.empty_like(
        out, memory_format=torch.contiguous_format)
    fill(compact)
    if compact is not out:
        out.copy_(compact)


def dequantize_4bit(A: torch.Tensor, absmax: torch.Tensor, blocksize: int, quant_type: str,
                    shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty(tuple(shape), dtype=dtype, device=A.device)
    dequantize_4bit_out(A, absmax, blocksize, quant_type, shape, dtype, out)
    return out


def dequantize_4bit_out(A: torch.Tensor, absmax: torch.Tensor, blocksize: int, quant_type: str,
                        shape: Sequence[int], dtype: torch.dtype, out: torch.Tensor) -> None:
    _require_4bit(blocksize, quant_type)
    _format(dtype, "dtype")
    _into(out, shape, dtype, A, lambda compact: _Weight(
        A, compact.numel(), absmax, blocksize, _TYPES[quant_type]).dequantize(compact))


def gemm_4bit(A: torch.Tensor, B: torch.Tensor, shapeB: Sequence[int], absmax: torch.Tensor,
              blocksize: int, quant_type: str, bias: torch.Tensor | None = None,
              absmax_8bit: torch.Tensor | None = None, absmax_code: torch.Tensor | None = None,
              absmax_offset: torch.Tensor | None = None) -> torch.Tensor:
    _require_4bit(blocksize, quant_type)
    nested = {"absmax_8bit": absmax_8bit, "absmax_code": absmax_code,
              "absmax_offset": absmax_offset}
    given = {name: tensor for name, tensor in nested.items() if tensor is not None}
    if given and len(given) < len(nested):
        raise ValueError(f"{', '.join(nested)}: are given together or not at all")
    weight = _Weight(B, math.prod(shapeB), absmax, blocksize, _TYPES[quant_type], **given)
    return weight.multiply(A, shapeB, bias, "gemm")


def gemv_4bit(A: torch.Tensor, B: torch.Tensor, shapeB: Sequence[int], absmax: torch.Tensor,
              code: torch.Tensor, blocksize: int) -> torch.Tensor:
    if absmax.ndim == 2:  # the layout that bitsandbytes' own CPU kernel has for itself
        return _gemv_of_stock(A, B, shapeB, absmax, code, blocksize)
    _require_block(blocksize)
    weight = _Weight(B, math.prod(shapeB), absmax, blocksize, "lut4", table=code)
    return weight.multiply(A, shapeB, None, "gemv")


def gemv_4bit_out(A: torch.Tensor, B: torch.Tensor, shapeB: Sequence[int], absmax: torch.Tensor,
                  code: torch.Tensor, blocksize: int, out: torch.Tensor) -> None:
    _into(out, (*A.shape[:-1], shapeB[0]), A.dtype, A, lambda compact: compact.copy_(
        gemv_4bit(A, B, shapeB, absmax, code, blocksize)))


def _gemv_of_stock(*arguments: Any) -> torch.Tensor:
    if _stock_gemv is None:
        raise ValueError("B: is stored for bitsandbytes' AVX512-BF16 kernel, which is not there; "
                         "save the module's state_dict and load it here")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
    result: torch.Tensor = _stock_gemv.call_boxed(keys, *arguments)
    return result


# ---- 8-bit

def _table(code: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if code.numel() != 256:
        raise ValueError(f"code: has {code.numel()} entries, must have 256")
    return _plane(code, like, "code", 1024, torch.float32)


def _lut8(shape: tuple[int, int], group_size: int, codes: int, scales: int,
          table: int) -> pointers.Operand:
    return pointers.weight(shape, "lut8", {"data": codes, "scale": scales, "table": table},
                           scale="f32", group_size=group_size)


def quantize_blockwise(A: torch.Tensor, code: torch.Tensor,
                       blocksize: int) -> tuple[torch.Tensor, torch.Tensor]:
    if blocksize < 1:
        raise ValueError(f"blocksize: is {blocksize}, must be positive")
    format, size, table = _format(A.dtype, "A"), A.element_size(), _table(code, A)
    absmax = torch.empty((_blocks(A.numel(), blocksize),), dtype=torch.float32, device=A.device)
    out = torch.empty_like(A, dtype=torch.uint8)  # with A's strides, as compiled graphs expect
    numbers = A.contiguous()

    def fill(codes: torch.Tensor) -> None:
        context = _context(A)
        for first, block, shape, group in _parts(A.numel(), blocksize):
            pointers.quantize(
                pointers.dense(numbers.data_ptr() + first * size, shape, format),
                _lut8(shape, group, codes.data_ptr() + first, absmax.data_ptr() + 4 * block,
                      table.data_ptr()), context=context)

    _into(out, A.shape, torch.uint8, A, fill)
    return out, absmax


def dequantize_blockwise(A: torch.Tensor, absmax: torch.Tensor, code: torch.Tensor,
                         blocksize: int, dtype: torch.dtype) -> torch.Tensor:
    out = torch.empty_like(A, dtype=dtype)
    dequantize_blockwise_out(A, absmax, code, blocksize, dtype, out)
    return out


def dequantize_blockwise_out(A: torch.Tensor, absmax: torch.Tensor, code: torch.Tensor,
                             blocksize: int, dtype: torch.dtype, out: torch.Tensor) -> None:
    if blocksize < 1:
        raise ValueError(f"blocksize: is {blocksize}, must be positive")
    if A.dtype != torch.uint8:
        raise ValueError(f"A: is {A.dtype}, must be uint8")
    format, count, table = _format(dtype, "dtype"), A.numel(), _table(code, A)
    codes = A.contiguous()
    scales = _plane(absmax, A, "absmax", 4 * _blocks(count, blocksize), torch.float32)

    def fill(numbers: torch.Tensor) -> None:
        context = _context(A)
        for first, block, shape, group in _parts(count, blocksize):
            pointers.dequantize(
                _lut8(shape, group, codes.data_ptr() + first, scales.data_ptr() + 4 * block,
                      table.data_ptr()),
                pointers.dense(numbers.data_ptr() + first * dtype.itemsize, shape, format),
                context=context)

    _into(out, A.shape, dtype, A, fill)


# ---- the entry point

KERNELS: dict[str, Callable[..., Any]] = {
    "quantize_4bit": quantize_4bit,
    "dequantize_4bit": dequantize_4bit, "dequantize_4bit.out": dequantize_4bit_out,
    "gemm_4bit": gemm_4bit, "gemv_4bit": gemv_4bit, "gemv_4bit.out": gemv_4bit_out,
    "quantize_blockwise": quantize_blockwise,
    "dequantize_blockwise": dequantize_blockwise,
    "dequantize_blockwise.out": dequantize_blockwise_out,
}
# qk's 8-bit codes are those of bitsandbytes' CPU kernel, which are not always the nearest; those of
# its GPU kernel are.
_LEFT_ON_GPUS = "quantize_blockwise"


def load() -> None:
    """Registers the kernels; bitsandbytes calls it at the end of its import."""
    if os.environ.get("QK_BITSANDBYTES", "on") == "off" or _libraries:
        return
    if not hasattr(torch.library, "get_kernel"):
        raise RuntimeError(f"qk: PyTorch {torch.__version__} cannot replace kernels, it has no "
                           "torch.library.get_kernel; QK_BITSANDBYTES=off goes without qk")
    round_weights(os.environ.get("QK_BITSANDBYTES_ROUND", "gemv"))
    _take_packed_weights(os.environ.get("QK_BITSANDBYTES_AVX512_BF16", "stock"))
    library: Any = torch.library.Library("bitsandbytes", "IMPL")  # type: ignore[no-untyped-call]
    _libraries.append(library)
    without_dynamo = getattr(torch, "_disable_dynamo")  # what register_kernel does, too
    keys = ["CPU"] + ["CUDA"] * (torch.cuda.is_available() and device_count("cuda") > 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced is the intent
        for name, kernel in KERNELS.items():
            if not hasattr(torch.ops.bitsandbytes, name.split(".")[0]):
                continue  # an older bitsandbytes has no gemm_4bit
            for key in keys[:1] if name == _LEFT_ON_GPUS else keys:
                library.impl(name, without_dynamo(kernel), key, allow_override=True)


def _take_packed_weights(kernel: str) -> None:
    """Where the processor has AVX512-BF16, Linear4bit in eval mode stores its weights as only
    bitsandbytes' own kernel takes them. That kernel rounds x and the weights to bf16, and is faster
    than exact products are: it keeps them, unless Linear4bit is told that there is none."""
    global _stock_gemv
    import bitsandbytes.functional
    import bitsandbytes.nn.modules

    if kernel not in ("stock", "qk"):
        raise ValueError(f"QK_BITSANDBYTES_AVX512_BF16: is {kernel!r}, accepted are stock and qk")
    if not getattr(bitsandbytes.functional, "has_avx512bf16", bool)():
        return
    _stock_gemv = torch.library.get_kernel("bitsandbytes::gemv_4bit", "CPU")
    if kernel == "qk":
        for module in (bitsandbytes.functional, bitsandbytes.nn.modules):
            setattr(module, "has_avx512bf16", bool)
