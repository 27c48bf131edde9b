// Products of a warpgroup (sm_90a): D[64 x n] = A[64 x 16] . B[16 x n] (+ D), A and D in registers,
// B in shared memory, by descriptor. They run by themselves until the warpgroup waits for them.
#pragma once
#include "cuda/prim/mma.cuh"

namespace qk::cuda {
namespace {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define QK_WGMMA(...) asm volatile(__VA_ARGS__)
#else
#define QK_WGMMA(...)
#endif

// Columns of k are stored in rows of 128 bytes whose 16-byte pieces are swizzled by the row's
// number (the copy engine's 128-byte swizzle); 8 rows are 1024 bytes. `address` is a multiple of
// 1024, plus 32 bytes a step of 16 columns.
__device__ constexpr uint64_t wgmma_descriptor(uint32_t address) {
    return uint64_t(1) << 62 | uint64_t(64) << 32 | uint64_t(1) << 16 | (address & 0x3ffff) >> 4;
}

// Registers written before, or read after, an asynchronous product: nothing moves across.
__device__ inline void wgmma_fence() { QK_WGMMA("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { QK_WGMMA("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int pending>
__device__ inline void wgmma_wait() {
    QK_WGMMA("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
template <int count>
__device__ inline void keep(float (&d)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Four 8 x 8 matrices of 16-bit values, as products leave them, turned over: lane 8 i + j gives the
// address of row j (16 bytes) of matrix i.
__device__ inline void matrices_store_transposed(uint32_t to, const uint32_t (&m)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
                 : "memory");
#endif
}

template <int steps>
__device__ inline void keep(uint32_t (&a)[steps][4]) {
#pragma unroll
    for (int i = 0; i < steps * 4; ++i) asm volatile("" : "+r"(a[i / 4][i % 4])::"memory");
}

// clang-format off
// The sums d[i] .. d[i + 31], read and written.
#define QK_SUMS_8(i)                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]),                   \
        "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define QK_SUMS_32(i) QK_SUMS_8(i), QK_SUMS_8(i + 8), QK_SUMS_8(i + 16), QK_SUMS_8(i + 24)

#define QK_WGMMA_8(type)                                                                          \
    QK_WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %9, 0;\n\t"                                    \
             "wgmma.mma_async.sync.aligned.m64n8k16.f32." type "." type " "                       \
             "{%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0;\n\t}"                           \
             : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                     \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define QK_WGMMA_16(type)                                                                         \
    QK_WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %13, 0;\n\t"                                   \
             "wgmma.mma_async.sync.aligned.m64n16k16.f32." type "." type " "                      \
             "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, p, 1, 1, 0;\n\t}"        \
             : QK_SUMS_8(0)                                                                       \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define QK_WGMMA_32(type)                                                                         \
    QK_WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %21, 0;\n\t"                                   \
             "wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " "                      \
             "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "           \
             "{%16, %17, %18, %19}, %20, p, 1, 1, 0;\n\t}"                                        \
             : QK_SUMS_8(0), QK_SUMS_8(8)                                                         \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define QK_WGMMA_48(type)                                                                         \
    QK_WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %29, 0;\n\t"                                   \
             "wgmma.mma_async.sync.aligned.m64n48k16.f32." type "." type " "                      \
             "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "       \
             "%17, %18, %19, %20, %21, %22, %23}, "                                               \
             "{%24, %25, %26, %27}, %28, p, 1, 1, 0;\n\t}"                                        \
             : QK_SUMS_8(0), QK_SUMS_8(8), QK_SUMS_8(16)                                          \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define QK_WGMMA_64(type)                                                                         \
    QK_WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %37, 0;\n\t"                                   \
             "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " "                      \
             "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "            \
             "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "  \
             "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n\t}"                                        \
             : QK_SUMS_32(0)                                                                      \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define QK_WGMMA_80(type)                                                                         \
    QK_WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %45, 0;\n\t"                                   \
             "wgmma.mma_async.sync.aligned.m64n80k16.f32." type "." type " "                      \
             "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "       \
             "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "        \
             "%32, %33, %34, %35, %36, %37, %38, %39}, "                                          \
             "{%40, %41, %42, %43}, %44, p, 1, 1, 0;\n\t}"                                        \
             : QK_SUMS_32(0), QK_SUMS_8(32)                                                       \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define QK_WGMMA_96(type)                                                                         \
    QK_WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %53, 0;\n\t"                                   \
             "wgmma.mma_async.sync.aligned.m64n96k16.f32." type "." type " "                      \
             "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "            \
             "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "   \
             "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47}, "  \
             "{%48, %49, %50, %51}, %52, p, 1, 1, 0;\n\t}"                                        \
             : QK_SUMS_32(0), QK_SUMS_8(32), QK_SUMS_8(40)                                        \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define QK_WGMMA_128(type)                                                                        \
    QK_WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %69, 0;\n\t"                                   \
             "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " "                     \
             "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "            \
             "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "   \
             "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "   \
             "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "  \
             "{%64, %65, %66, %67}, %68, p, 1, 1, 0;\n\t}"                                        \
             : QK_SUMS_32(0), QK_SUMS_32(32)                                                      \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define QK_WGMMA_160(type)                                                                        \
    QK_WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %85, 0;\n\t"                                   \
             "wgmma.mma_async.sync.aligned.m64n160k16.f32." type "." type " "                     \
             "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "            \
             "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "             \
             "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "             \
             "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "             \
             "%58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, "             \
             "%72, %73, %74, %75, %76, %77, %78, %79}, "                                          \
             "{%80, %81, %82, %83}, %84, p, 1, 1, 0;\n\t}"                                        \
             : QK_SUMS_32(0), QK_SUMS_32(32), QK_SUMS_8(64), QK_SUMS_8(72)                        \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))

#define QK_WGMMA_256(type)                                                                        \
    QK_WGMMA("{\n\t.reg .pred p;\n\tsetp.ne.b32 p, %133, 0;\n\t"                                  \
             "wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " "                     \
             "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "                           \
             "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, "                  \
             "%26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, "                  \
             "%39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "                  \
             "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, "                  \
             "%65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, "                  \
             "%78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, "                  \
             "%91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, "              \
             "%104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, "     \
             "%117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "                \
             "{%128, %129, %130, %131}, %132, p, 1, 1, 0;\n\t}"                                   \
             : QK_SUMS_32(0), QK_SUMS_32(32), QK_SUMS_32(64), QK_SUMS_32(96)                      \
             : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add))
// clang-format on

template <class T, int n>
struct Wgmma {
    static __device__ void run(float (&d)[n / 2], const uint32_t (&a)[4], uint64_t b, int add) {
        constexpr bool f16 = std::is_same_v<T, F16>;
        if constexpr (n == 8 && f16) QK_WGMMA_8("f16");
        if constexpr (n == 8 && !f16) QK_WGMMA_8("bf16");
        if constexpr (n == 16 && f16) QK_WGMMA_16("f16");
        if constexpr (n == 16 && !f16) QK_WGMMA_16("bf16");
        if constexpr (n == 32 && f16) QK_WGMMA_32("f16");
        if constexpr (n == 32 && !f16) QK_WGMMA_32("bf16");
        if constexpr (n == 48 && f16) QK_WGMMA_48("f16");
        if constexpr (n == 48 && !f16) QK_WGMMA_48("bf16");
        if constexpr (n == 64 && f16) QK_WGMMA_64("f16");
        if constexpr (n == 64 && !f16) QK_WGMMA_64("bf16");
        if constexpr (n == 80 && f16) QK_WGMMA_80("f16");
        if constexpr (n == 80 && !f16) QK_WGMMA_80("bf16");
        if constexpr (n == 96 && f16) QK_WGMMA_96("f16");
        if constexpr (n == 96 && !f16) QK_WGMMA_96("bf16");
        if constexpr (n == 128 && f16) QK_WGMMA_128("f16");
        if constexpr (n == 128 && !f16) QK_WGMMA_128("bf16");
        if constexpr (n == 160 && f16) QK_WGMMA_160("f16");
        if constexpr (n == 160 && !f16) QK_WGMMA_160("bf16");
        if constexpr (n == 256 && f16) QK_WGMMA_256("f16");
        if constexpr (n == 256 && !f16) QK_WGMMA_256("bf16");
    }
};

#undef QK_WGMMA_256
#undef QK_WGMMA_160
#undef QK_WGMMA_128
#undef QK_WGMMA_96
#undef QK_WGMMA_80
#undef QK_WGMMA_64
#undef QK_WGMMA_48
#undef QK_WGMMA_32
#undef QK_WGMMA_16
#undef QK_WGMMA_8
#undef QK_SUMS_32
#undef QK_SUMS_8
#undef QK_WGMMA

}  // namespace
}  // namespace qk::cuda
