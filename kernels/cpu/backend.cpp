// The CPU backend's row: memory is the context's own, nothing is asynchronous.
#include <string.h>

#include "backend/registry.hpp"
#include "cpu/gru/pack.hpp"
#include "cpu/kernels.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/traits.hpp"

namespace qk {
namespace {

int32_t device_count() { return 1; }

Status describe(int32_t, uint32_t allowed, Device *device) {
    device->instruction_sets = cpu::allowed_features(allowed);
    // All processors with tiles are slow at them, and some whose tiles a virtual machine hides.
    device->slow_bf16_vectors =
        (cpu::features() & cpu::kAmxBf16) != 0 || (cpu::traits() & cpu::kSlowBf16Vectors) != 0;
    return QK_OK;
}

Status synchronize(const Launch &) { return QK_OK; }

qk_layout packed_layout(const Format &format) {
    return format.bits == 4 ? kLayoutRows8 : QK_LAYOUT_ROW;
}

Status copy(const Launch &, void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
    return QK_OK;
}

constexpr Kernel<DequantizeArgs> const *kDequantize[] = {
#if defined(QK_CPU_X86)
    &cpu::kDequantizeAvx512,
    &cpu::kDequantizeAvx2,
#elif defined(QK_CPU_ARM64)
    &cpu::kDequantizeNeon,
#endif
    &cpu::kDequantizeGeneric,
};
constexpr Kernel<QuantizeArgs> const *kQuantize[] = {
#if defined(QK_CPU_X86)
    &cpu::kQuantizeAvx512, &cpu::kQuantizeAvx2,
#endif
    &cpu::kQuantizeGeneric,  // aarch64's base has vectors
};
constexpr Kernel<RepackArgs> const *kRepack[] = {
#if defined(QK_CPU_X86)
    &cpu::kRepackAvx512,
    &cpu::kRepackAvx2,
#elif defined(QK_CPU_ARM64)
    &cpu::kRepackNeon,
#endif
    &cpu::kRepackGeneric,
};
constexpr Kernel<LinearArgs> const *kLinear[] = {
#if defined(QK_CPU_X86)
    &cpu::kLinearIntegerRowsVnni, &cpu::kLinearGroupRowsVnni,
    &cpu::kLinearIntegersVnni,    &cpu::kLinearGroupsVnni,
    &cpu::kLinearRowsAvx512,      &cpu::kLinearGemvAvx512,
    &cpu::kLinearColumnsVnni,     &cpu::kLinearLoweredColumnsVnni,
    &cpu::kLinearColumnsAvx2,     &cpu::kLinearLoweredColumnsAvx2,
    &cpu::kLinearSingleAvx512,    &cpu::kLinearFewAvx512,
    &cpu::kLinearBatchAvx512,     &cpu::kLinearGemvAvx2,
    &cpu::kLinearSingleAvx2,      &cpu::kLinearFewAvx2,
    &cpu::kLinearBatchAvx2,
#endif
#if defined(QK_CPU_ARM64)
    &cpu::kLinearIntegersDotprod, &cpu::kLinearGroupsDotprod,
#endif
#if defined(QK_CPU_ARM)
    &cpu::kLinearGemvNeon,        &cpu::kLinearSingleNeon,
    &cpu::kLinearBatchNeon,
#endif
#if defined(QK_CPU_RVV)
    &cpu::kLinearGemvRvv,         &cpu::kLinearSingleRvv,
    &cpu::kLinearBatchRvv,
#endif
    &cpu::kLinearGeneric,
};
constexpr Kernel<LinearArgs> const *kTransposed[] = {
#if defined(QK_CPU_X86)
    &cpu::kTransposedFewAvx512, &cpu::kTransposedAvx512,
    &cpu::kTransposedFewAvx2,   &cpu::kTransposedAvx2,
#elif defined(QK_CPU_ARM)
    &cpu::kTransposedFewNeon,
    &cpu::kTransposedNeon,
#elif defined(QK_CPU_RVV)
    &cpu::kTransposedFewRvv,
    &cpu::kTransposedRvv,
#endif
    &cpu::kTransposedGeneric,
};
// The modes; what they do not take, the exact kernels do.
constexpr Kernel<LinearArgs> const *kLinearInt8[] = {
#if defined(QK_CPU_X86)
    &cpu::kLinearInt8AmxBatch,
    &cpu::kLinearInt8VnniBatch,
    &cpu::kLinearInt8ColumnsAvx2,
    &cpu::kLinearInt8Vnni,
    &cpu::kLinearInt8AmxBytesBatch,
    &cpu::kLinearInt8VnniBytesBatch,
    &cpu::kLinearInt8VnniRows,
#if defined(QK_CPU_AVX_VNNI)
    &cpu::kLinearInt8AvxVnniBatch,
    &cpu::kLinearInt8AvxVnni,
    &cpu::kLinearInt8AvxVnniBytesBatch,
    &cpu::kLinearInt8AvxVnniRows,
#endif
    &cpu::kLinearInt8Avx2Batch,
    &cpu::kLinearInt8Avx2,
    &cpu::kLinearInt8Avx2BytesBatch,
    &cpu::kLinearInt8Avx2Rows,
#endif
#if defined(QK_CPU_ARM64)
    &cpu::kLinearInt8I8mm,
    &cpu::kLinearInt8DotprodBatch,
    &cpu::kLinearInt8Dotprod,
    &cpu::kLinearInt8DotprodBytesBatch,
    &cpu::kLinearInt8DotprodRows,
#endif
#if defined(QK_CPU_ARM)
    &cpu::kLinearInt8Neon,
    &cpu::kLinearInt8NeonRows,
#endif
    &cpu::kLinearInt8Generic,
};
#if defined(QK_CPU_X86)
constexpr Kernel<LinearArgs> const *kLinearBf16[] = {&cpu::kLinearBf16AmxBatch,
                                                     &cpu::kLinearBf16Batch, &cpu::kLinearBf16};
#else
constexpr KernelList<LinearArgs> kLinearBf16;  // none: the mode runs exact
#endif
constexpr Kernel<GruArgs> const *kGru[] = {
#if defined(QK_CPU_X86)
    &cpu::kGruAvx512Vnni, &cpu::kGruAvx2,
#endif
#if defined(QK_CPU_ARM64)
    &cpu::kGruNeonDot,
#endif
#if defined(QK_CPU_ARM)
    &cpu::kGruNeon,
#endif
#if defined(QK_CPU_RVV)
    &cpu::kGruRvv,
#endif
    &cpu::kGruGeneric,
};
constexpr Kernel<FloatProductArgs> const *kFloatProduct[] = {
#if defined(QK_CPU_X86)
    &cpu::kFloatProductAvx512, &cpu::kFloatProductAvx2,
#endif
    &cpu::kFloatProductGeneric,  // aarch64's base has vectors
};
constexpr Kernel<FloatGatesArgs> const *kFloatGates[] = {
#if defined(QK_CPU_X86)
    &cpu::kFloatGatesAvx512,
    &cpu::kFloatGatesAvx2,
#endif
    &cpu::kFloatGatesGeneric,
};

}  // namespace

constinit const Backend kCpuBackend = {
    QK_DEVICE_CPU,
    "cpu",
    device_count,
    describe,
    synchronize,
    packed_layout,
    {nullptr, nullptr, copy, copy},
    kDequantize,
    kQuantize,
    kRepack,
    &cpu::kGatherGeneric,
    kLinear,
    kGru,
    cpu::plan_linear,
    true,
    kLinearBf16,
    kLinearInt8,
    {cpu::gru_pack_bytes, cpu::gru_pack_make, cpu::gru_room_bytes},
    {},
    kFloatProduct,
    kFloatGates,
    kTransposed,
};

}  // namespace qk
