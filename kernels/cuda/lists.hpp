// Every kernel of the CUDA backend, by the folder that builds it. Lists are ordered best first;
// the generic kernel ends each one. kernels/cuda/backend.cpp strings them together.
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
extern const Kernel<LinearArgs> kLinearVector;           // decode/vector.cu
extern const Kernel<LinearArgs> kLinearStages;           // decode/stages.cu
extern const Kernel<LinearArgs> kLinearRows;             // decode/rows.cu
extern const Kernel<LinearArgs> kLinearSlices;           // decode/slices.cu
extern const Kernel<LinearArgs> kLinearManySlices;       // decode/slices.cu
extern const Kernel<LinearArgs> kLinearMatvec;           // decode/matvec.cu
extern const Kernel<LinearArgs> kLinearGemm;             // gemm/gemm.cpp
extern const Kernel<LinearArgs> kLinearGemmBytes;        // gemm/bytes.cpp
extern const Kernel<LinearArgs> kLinearMiddle;           // middle/middle.cu
extern const Kernel<LinearArgs> kLinearMiddleWhole;      // middle/middle.cu
extern const Kernel<LinearArgs> kLinearBytes;            // direct/bytes.cu
extern const Kernel<LinearArgs> kLinearWords;            // direct/words.cu
extern const Kernel<LinearArgs> kLinearColumns;          // direct/columns.cu
extern const Kernel<LinearArgs> kLinearLanes;            // direct/lanes.cu
extern const Kernel<LinearArgs> kLinearRepacked;         // linear/repacked.cpp
extern const Kernel<LinearArgs> kLinearPrefill;          // linear/prefill.cu
extern const Kernel<LinearArgs> kLinearGeneric;          // linear/generic.cu
extern const Kernel<GruArgs> kGruStep;                   // gru/step.cu
extern const Kernel<GruArgs> kGruCluster;                // gru/cluster.cu
extern const Kernel<GruArgs> kGruGeneric;                // gru/generic.cu

}  // namespace qk::cuda
