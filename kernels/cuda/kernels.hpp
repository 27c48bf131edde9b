// The kernels of the CUDA backend: those for products by identity, and all of them by the folder
// that builds each. What a kernel for products needs, and when it is wanted, is its row of
// linear/select.hpp; the other lists are ordered best first, the generic kernel at the end
// (kernels/cuda/backend.cpp).
#pragma once
#include "backend/backend.hpp"

namespace qk::cuda {

enum class LinearKernel : uint8_t {
    kSm90Gemv,
    kSm90FewRows,
    kSm90ClusterRows,
    kSm90SomeRows,
    kSm90Rows24,
    kSm90Gemm,
    kSm90Gemm8Bit,
    kSm80Gemv,
    kSm80Gemm,
    kRepacked,
    kBytesGemv,
    kBytes,
    kWordsGemv,
    kColumnsGemv,
    kWords,
    kColumns,
    kLanes,
    kRecords,
    kPackedLanes,
    kTransposed,
    kTransposedRows,
    kSm90GemmTransposed,
    kDense,
    kSm90Experts,
    kSm90ExpertRows,
    kSm90ExpertGemm,
    kExperts,
    kGeneric,
    kCount
};

constexpr const char *kLinearNames[] = {"sm90 gemv",
                                        "sm90 few rows",
                                        "sm90 cluster rows",
                                        "sm90 some rows",
                                        "sm90 24 rows",
                                        "sm90 gemm",
                                        "sm90 gemm 8-bit",
                                        "sm80 gemv",
                                        "sm80 gemm",
                                        "repacked",
                                        "stored bytes gemv",
                                        "stored bytes",
                                        "stored words gemv",
                                        "stored columns gemv",
                                        "stored words",
                                        "stored columns",
                                        "stored lanes",
                                        "stored records",
                                        "packed lanes",
                                        "transposed tiles",
                                        "transposed rows",
                                        "sm90 gemm transposed",
                                        "dense",
                                        "sm90 experts",
                                        "sm90 expert rows",
                                        "sm90 expert gemm",
                                        "experts",
                                        "generic"};
static_assert(sizeof(kLinearNames) / sizeof(kLinearNames[0]) == size_t(LinearKernel::kCount));

// Of one kernel by itself, wanted or not: whether it takes the case, and its bytes of workspace.
bool takes(LinearKernel kernel, const LinearArgs &args, const Device &device);
size_t workspace_bytes(LinearKernel kernel, const LinearArgs &args, const Device &device);

template <LinearKernel kernel>
constexpr Kernel<LinearArgs> linear_kernel(
    Status (*run)(const LinearArgs &, const Launch &),
    decltype(Kernel<LinearArgs>::run_siblings) siblings = nullptr) {
    return {
        kLinearNames[int(kernel)],
        [](const LinearArgs &args, const Device &device) { return takes(kernel, args, device); },
        [](const LinearArgs &args, const Device &device) {
        return workspace_bytes(kernel, args, device);
        },
        run, siblings};
}

// Backend::plan_linear.
LinearPlan plan_linear(const LinearArgs &args, const Device &device, const Allowance &allowed,
                       Explanation *explanation);

extern const Kernel<DequantizeArgs> kDequantizeStream;   // convert/dequantize_stream.cu
extern const Kernel<DequantizeArgs> kDequantizeAwq;      // convert/dequantize_awq.cu
extern const Kernel<DequantizeArgs> kDequantizeGptq;     // convert/dequantize_gptq.cu
extern const Kernel<DequantizeArgs> kDequantizeTiles;    // convert/dequantize_tiles.cu
extern const Kernel<DequantizeArgs> kDequantizeColumns;  // convert/dequantize_columns.cu
extern const Kernel<DequantizeArgs> kDequantizeRecords;  // convert/dequantize_records.cu
extern const Kernel<DequantizeArgs> kDequantizeGeneric;  // convert/dequantize.cu
extern const Kernel<QuantizeArgs> kQuantizeStream;       // convert/quantize_stream.cu
extern const Kernel<QuantizeArgs> kQuantizeAffine;       // convert/quantize_affine.cu
extern const Kernel<QuantizeArgs> kQuantizeLut8;         // convert/quantize_lut8.cu
extern const Kernel<QuantizeArgs> kQuantizeGeneric;      // convert/quantize.cu
extern const Kernel<QuantizeArgs> kQuantizeRecords;      // convert/quantize_records.cu
extern const Kernel<RepackArgs> kRepackTiles;            // convert/repack_tiles.cu
extern const Kernel<RepackArgs> kRepackWords;            // convert/repack_words.cu
extern const Kernel<RepackArgs> kRepackGeneric;          // convert/repack.cu
extern const Kernel<GatherArgs> kGatherColumns;          // convert/gather.cu
extern const Kernel<LinearArgs> kLinearSm90Gemv;         // linear/sm90/gemv/gemv.cu
extern const Kernel<LinearArgs> kLinearSm90FewRows;      // linear/sm90/few_rows/few_rows.cu
extern const Kernel<LinearArgs> kLinearSm90ClusterRows;  // linear/sm90/cluster_rows/cluster_rows.cu
extern const Kernel<LinearArgs> kLinearSm90SomeRows;     // linear/sm90/some_rows/some_rows.cu
extern const Kernel<LinearArgs> kLinearSm90Rows24;       // linear/sm90/some_rows/some_rows.cu
extern const Kernel<LinearArgs> kLinearSm80Gemv;         // linear/sm80/gemv/gemv.cu
extern const Kernel<LinearArgs> kLinearSm90Gemm;         // linear/sm90/gemm/gemm.cpp
extern const Kernel<LinearArgs> kLinearSm90Gemm8Bit;     // linear/sm90/gemm/gemm.cpp
extern const Kernel<LinearArgs> kLinearSm80Gemm;         // linear/sm80/gemm/gemm.cu
extern const Kernel<LinearArgs> kLinearBytesGemv;        // linear/stored/bytes_gemv.cu
extern const Kernel<LinearArgs> kLinearBytes;            // linear/stored/bytes.cu
extern const Kernel<LinearArgs> kLinearWordsGemv;        // linear/stored/words_gemv.cu
extern const Kernel<LinearArgs> kLinearColumnsGemv;      // linear/stored/columns_gemv.cu
extern const Kernel<LinearArgs> kLinearWords;            // linear/stored/words.cu
extern const Kernel<LinearArgs> kLinearColumns;          // linear/stored/columns.cu
extern const Kernel<LinearArgs> kLinearLanes;            // linear/stored/lanes.cu
extern const Kernel<LinearArgs> kLinearRecords;          // linear/stored/records.cu
extern const Kernel<LinearArgs> kLinearPackedLanes;      // linear/packed_lanes.cu
extern const Kernel<LinearArgs> kLinearTransposed;       // linear/transposed.cu
extern const Kernel<LinearArgs> kLinearTransposedRows;   // linear/transposed_rows.cu
extern const Kernel<LinearArgs> kLinearSm90GemmTransposed;  // linear/sm90/gemm/gemm.cpp
extern const Kernel<LinearArgs> kLinearRepacked;            // linear/repacked.cpp
extern const Kernel<LinearArgs> kLinearDense;               // linear/dense.cu
extern const Kernel<LinearArgs> kLinearSm90Experts;         // linear/sm90/gemv/experts.cu
extern const Kernel<LinearArgs> kLinearSm90ExpertRows;      // linear/sm90/gemv/rows.cu
extern const Kernel<LinearArgs> kLinearSm90ExpertGemm;      // linear/sm90/gemm/experts.cu
extern const Kernel<LinearArgs> kLinearExperts;             // linear/experts.cu
extern const Kernel<LinearArgs> kLinearGeneric;             // linear/generic.cu
extern const Kernel<GruArgs> kGruStep;                      // gru/step.cu
extern const Kernel<GruArgs> kGruCluster;                   // gru/cluster.cu
extern const Kernel<GruArgs> kGruGeneric;                   // gru/generic.cu

// In the order of LinearKernel.
static constexpr const Kernel<LinearArgs> *kLinearKernels[] = {
    &kLinearSm90Gemv,        &kLinearSm90FewRows,
    &kLinearSm90ClusterRows, &kLinearSm90SomeRows,
    &kLinearSm90Rows24,      &kLinearSm90Gemm,
    &kLinearSm90Gemm8Bit,    &kLinearSm80Gemv,
    &kLinearSm80Gemm,        &kLinearRepacked,
    &kLinearBytesGemv,       &kLinearBytes,
    &kLinearWordsGemv,       &kLinearColumnsGemv,
    &kLinearWords,           &kLinearColumns,
    &kLinearLanes,           &kLinearRecords,
    &kLinearPackedLanes,     &kLinearTransposed,
    &kLinearTransposedRows,  &kLinearSm90GemmTransposed,
    &kLinearDense,           &kLinearSm90Experts,
    &kLinearSm90ExpertRows,  &kLinearSm90ExpertGemm,
    &kLinearExperts,         &kLinearGeneric};
static_assert(sizeof(kLinearKernels) / sizeof(kLinearKernels[0]) == size_t(LinearKernel::kCount));

}  // namespace qk::cuda
