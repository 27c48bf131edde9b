// Every kernel of the CUDA backend, by the folder that builds it. Of products,
// linear/select.hpp says which runs; the other lists are ordered best first, the generic kernel at
// the end (kernels/cuda/backend.cpp).
#pragma once
#include "backend/backend.hpp"

namespace qk::cuda {

extern const Kernel<DequantizeArgs> kDequantizeStream;   // convert/dequantize_stream.cu
extern const Kernel<DequantizeArgs> kDequantizeAwq;      // convert/dequantize_awq.cu
extern const Kernel<DequantizeArgs> kDequantizeGptq;     // convert/dequantize_gptq.cu
extern const Kernel<DequantizeArgs> kDequantizeTiles;    // convert/dequantize_tiles.cu
extern const Kernel<DequantizeArgs> kDequantizeGeneric;  // convert/dequantize.cu
extern const Kernel<QuantizeArgs> kQuantizeGeneric;      // convert/quantize.cu
extern const Kernel<RepackArgs> kRepackTiles;            // convert/repack_tiles.cu
extern const Kernel<RepackArgs> kRepackGeneric;          // convert/repack.cu
extern const Kernel<LinearArgs> kLinearSm90Gemv;         // linear/sm90/gemv/gemv.cu
extern const Kernel<LinearArgs> kLinearSm90FewRows;      // linear/sm90/few_rows/few_rows.cu
extern const Kernel<LinearArgs> kLinearSm90SomeRows;     // linear/sm90/some_rows/some_rows.cu
extern const Kernel<LinearArgs> kLinearSm90Rows24;       // linear/sm90/some_rows/some_rows.cu
extern const Kernel<LinearArgs> kLinearSm80Gemv;         // linear/sm80/gemv/gemv.cu
extern const Kernel<LinearArgs> kLinearSm90Gemm;         // linear/sm90/gemm/gemm.cpp
extern const Kernel<LinearArgs> kLinearSm90Gemm8Bit;     // linear/sm90/gemm/gemm_8bit.cpp
extern const Kernel<LinearArgs> kLinearSm80Gemm;         // linear/sm80/gemm/gemm.cu
extern const Kernel<LinearArgs> kLinearBytes;            // linear/stored/bytes.cu
extern const Kernel<LinearArgs> kLinearWords;            // linear/stored/words.cu
extern const Kernel<LinearArgs> kLinearColumns;          // linear/stored/columns.cu
extern const Kernel<LinearArgs> kLinearLanes;            // linear/stored/lanes.cu
extern const Kernel<LinearArgs> kLinearRepacked;         // linear/repacked.cpp
extern const Kernel<LinearArgs> kLinearDense;            // linear/dense.cu
extern const Kernel<LinearArgs> kLinearGeneric;          // linear/generic.cu
extern const Kernel<GruArgs> kGruStep;                   // gru/step.cu
extern const Kernel<GruArgs> kGruCluster;                // gru/cluster.cu
extern const Kernel<GruArgs> kGruGeneric;                // gru/generic.cu

}  // namespace qk::cuda
