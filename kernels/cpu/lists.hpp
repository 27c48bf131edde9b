// Every kernel of the CPU backend, by the folder that builds it. Lists are ordered best first;
// the generic kernel ends each one. kernels/cpu/backend.cpp strings them together.
#pragma once
#include "backend/backend.hpp"
#include "cpu/shared/nested.hpp"

namespace qk::cpu {

extern const Kernel<DequantizeArgs> kDequantizeGeneric;
extern const Kernel<QuantizeArgs> kQuantizeGeneric;
extern const Kernel<RepackArgs> kRepackGeneric;
extern const Kernel<LinearArgs> kLinearGeneric;
extern const Kernel<LinearArgs> kLinearInt8Generic;
extern const Kernel<GruArgs> kGruGeneric;
extern const Kernel<FloatProductArgs> kFloatProductGeneric;
extern const Kernel<FloatGatesArgs> kFloatGatesGeneric;

#if defined(__x86_64__)
extern const Kernel<DequantizeArgs> kDequantizeAvx2;
extern const Kernel<QuantizeArgs> kQuantizeAvx2, kQuantizeAvx512;
extern const Kernel<LinearArgs> kLinearGemvAvx2, kLinearSingleAvx2, kLinearBatchAvx2;
extern const Kernel<DequantizeArgs> kDequantizeAvx512;
extern const Kernel<LinearArgs> kLinearGemvAvx512, kLinearSingleAvx512, kLinearBatchAvx512;
extern const Kernel<LinearArgs> kLinearIntegersVnni, kLinearRowsAvx512, kLinearFewAvx512;
extern const Kernel<LinearArgs> kLinearColumnsVnni, kLinearColumnsAvx2;
extern const WidenNested kWidenNestedVbmi;
extern const LookUpBytes kLookUpBytesVbmi;
extern const LookUpHalves kLookUpHalvesVbmi;
extern const Kernel<RepackArgs> kRepackAvx2, kRepackAvx512;
extern const Kernel<LinearArgs> kLinearInt8VnniBatch, kLinearInt8Vnni, kLinearInt8Avx2;
extern const Kernel<LinearArgs> kLinearInt8VnniRows, kLinearInt8Avx2Batch;
extern const Kernel<LinearArgs> kLinearBf16;
extern const Kernel<GruArgs> kGruAvx512Vnni, kGruAvx2;
extern const Kernel<FloatProductArgs> kFloatProductAvx512, kFloatProductAvx2;
extern const Kernel<FloatGatesArgs> kFloatGatesAvx512, kFloatGatesAvx2;
#elif defined(__aarch64__)
extern const Kernel<DequantizeArgs> kDequantizeNeon;
extern const Kernel<RepackArgs> kRepackNeon;
extern const Kernel<LinearArgs> kLinearGemvNeon, kLinearSingleNeon, kLinearBatchNeon;
extern const Kernel<LinearArgs> kLinearIntegersDotprod;
extern const Kernel<LinearArgs> kLinearInt8I8mm, kLinearInt8Dotprod, kLinearInt8Neon;
extern const Kernel<GruArgs> kGruNeonDot, kGruNeon;
#endif

}  // namespace qk::cpu
