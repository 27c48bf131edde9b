// What kernels of the CPU have in common: instruction sets, tasks, and their names, by the folder
// that builds them.
#pragma once
#include "backend/backend.hpp"

namespace qk::cpu {

// A bit stands for everything that a set's kernels are compiled with, the operating system's
// support included.
constexpr uint32_t kAvx2 = QK_ISA_AVX2;
constexpr uint32_t kAvx512 = QK_ISA_AVX512;
constexpr uint32_t kAvx512Vbmi = QK_ISA_AVX512_VBMI;
constexpr uint32_t kAvx512Vnni = QK_ISA_AVX512_VNNI;
constexpr uint32_t kAvx512Bf16 = QK_ISA_AVX512_BF16;
constexpr uint32_t kAvxVnni = QK_ISA_AVX_VNNI;  // VPDPBUSD without AVX-512's encoding
constexpr uint32_t kAmxInt8 = QK_ISA_AMX_INT8, kAmxBf16 = QK_ISA_AMX_BF16;
constexpr uint32_t kNeon = QK_ISA_NEON;
constexpr uint32_t kNeonDot = QK_ISA_DOTPROD;  // SDOT, UDOT
constexpr uint32_t kNeonI8mm = QK_ISA_I8MM;    // USDOT, SMMLA
constexpr uint32_t kRvv = QK_ISA_RVV;          // V 1.0, whose registers have 128 bits or more

// What this processor can do, asked once: QK_ISA_..., those alone that this build has kernels for.
uint32_t features();

// What is left of features() where these are allowed: a set counts with the one it extends.
uint32_t allowed_features(uint32_t allowed);

// Whether the system lets this process use AMX's tiles; it is asked once.
bool tiles_allowed();

extern const Kernel<DequantizeArgs> kDequantizeGeneric;
extern const Kernel<QuantizeArgs> kQuantizeGeneric;
extern const Kernel<RepackArgs> kRepackGeneric;
extern const Kernel<GatherArgs> kGatherGeneric;
extern const Kernel<LinearArgs> kLinearGeneric, kLinearInt8Generic, kTransposedGeneric;
extern const Kernel<GruArgs> kGruGeneric;
extern const Kernel<FloatProductArgs> kFloatProductGeneric;
extern const Kernel<FloatGatesArgs> kFloatGatesGeneric;
#if defined(__x86_64__)
extern const Kernel<DequantizeArgs> kDequantizeAvx2, kDequantizeAvx512;
extern const Kernel<QuantizeArgs> kQuantizeAvx2, kQuantizeAvx512;
extern const Kernel<RepackArgs> kRepackAvx2, kRepackAvx512;
extern const Kernel<LinearArgs> kLinearGemvAvx2, kLinearSingleAvx2, kLinearBatchAvx2;
extern const Kernel<LinearArgs> kLinearGemvAvx512, kLinearSingleAvx512, kLinearBatchAvx512;
extern const Kernel<LinearArgs> kLinearIntegersVnni, kLinearGroupsVnni, kLinearRowsAvx512,
    kLinearIntegerRowsVnni, kLinearGroupRowsVnni, kLinearFewAvx512, kLinearFewAvx2;
extern const Kernel<LinearArgs> kLinearColumnsVnni, kLinearColumnsAvx2, kLinearLoweredColumnsVnni,
    kLinearLoweredColumnsAvx2, kLinearInt8ColumnsAvx2;
extern const Kernel<LinearArgs> kLinearInt8AmxBatch, kLinearInt8VnniBatch, kLinearInt8Vnni,
    kLinearInt8AmxBytesBatch, kLinearInt8VnniBytesBatch, kLinearInt8VnniRows;
extern const Kernel<LinearArgs> kLinearInt8Avx2, kLinearInt8Avx2Batch, kLinearInt8Avx2BytesBatch,
    kLinearInt8Avx2Rows, kLinearBf16, kLinearBf16Batch, kLinearBf16AmxBatch;
extern const Kernel<LinearArgs> kLinearInt8AvxVnni, kLinearInt8AvxVnniBatch,
    kLinearInt8AvxVnniBytesBatch, kLinearInt8AvxVnniRows;
extern const Kernel<LinearArgs> kTransposedAvx512, kTransposedAvx2;
extern const Kernel<LinearArgs> kTransposedFewAvx512, kTransposedFewAvx2;
extern const Kernel<GruArgs> kGruAvx512Vnni, kGruAvx2;
extern const Kernel<FloatProductArgs> kFloatProductAvx512, kFloatProductAvx2;
extern const Kernel<FloatGatesArgs> kFloatGatesAvx512, kFloatGatesAvx2;
#elif defined(__aarch64__) || defined(__arm__)
extern const Kernel<DequantizeArgs> kDequantizeNeon;
extern const Kernel<RepackArgs> kRepackNeon;
extern const Kernel<LinearArgs> kLinearGemvNeon, kLinearSingleNeon, kLinearBatchNeon;
extern const Kernel<LinearArgs> kLinearIntegersDotprod, kLinearGroupsDotprod;
extern const Kernel<LinearArgs> kLinearInt8I8mm, kLinearInt8Dotprod, kLinearInt8DotprodRows,
    kLinearInt8DotprodBatch, kLinearInt8DotprodBytesBatch;
extern const Kernel<LinearArgs> kLinearInt8Neon, kLinearInt8NeonRows;
extern const Kernel<LinearArgs> kTransposedNeon, kTransposedFewNeon;
extern const Kernel<GruArgs> kGruNeonDot, kGruNeon;
#elif defined(__riscv)
extern const Kernel<LinearArgs> kLinearGemvRvv, kLinearSingleRvv, kLinearBatchRvv;
extern const Kernel<LinearArgs> kTransposedRvv, kTransposedFewRvv;
extern const Kernel<GruArgs> kGruRvv;
#endif

namespace {

// Work split into tasks. No result depends on the split: a row, or a group, is computed whole by
// one task. A fraction of the tasks is that fraction of the work, to a block, whatever the kernel:
// a thread that always takes the same fraction meets the same rows (docs/guides/numa.md).
template <class Body>
struct Split {
    const Body *body;
    int64_t count, block, blocks, tasks;

    int64_t start(int64_t index) const {
        const int64_t at = blocks / tasks * index + blocks % tasks * index / tasks;  // no overflow
        return min64(at * block, count);
    }
    static void task(void *argument, int32_t index) {
        const Split &self = *static_cast<const Split *>(argument);
        (*self.body)(self.start(index), self.start(int64_t(index) + 1));
    }
};

// What tasks are weighed by: products of a weight and a number of x. Other work counts as the
// products that a kernel of vectors makes in the time it takes, roughly.
constexpr int64_t kQuantizing = 16;  // a number to a code, its part of the scale included
constexpr int64_t kPortable = 16;    // the portable kernels' product

// Of a row of w, of a column of w and of a GRU's sequence; a long batch is as good as a longer one.
constexpr int64_t kManyRows = 1024;
inline int64_t work_of_row(const LinearArgs &args) {
    return args.w.geometry.k * min64(args.x.rows, kManyRows);
}
inline int64_t work_of_column(const LinearArgs &args) {
    return args.w.geometry.n * min64(args.x.rows, kManyRows);
}
inline int64_t work_of_sequence(const GruArgs &args) {
    const int64_t h = args.cell->hidden_size, c = args.cell->input_size;
    return 3 * h * (c + h) * min64(args.steps, kManyRows);
}

// Tasks of 0 .. count, where an item is `work` products: several a thread, as threads are not
// equally fast, unless those were too small to be worth handing over.
inline int64_t task_count(const Parallel &parallel, int64_t count, int64_t blocks, int64_t work) {
    const int64_t threads = parallel.concurrency;
    const int64_t most = min64(blocks, min64(threads * 4, INT32_MAX));
    const int64_t least_items = ceil_div(parallel.least_task, max64(work, 1));
    const int64_t worth = count / least_items;
    if (worth >= most) return most;
    return worth > threads ? worth / threads * threads : worth;
}

// Blocks first .. last by rows.run(block), or two at a time by rows.run_two(block) where there is
// one and takes_two() says so.
template <class Rows>
inline void run_each(Rows &rows, int64_t first, int64_t last) {
    if constexpr (requires { rows.run_two(first); }) {
        if (rows.takes_two()) {
            for (; first + 2 <= last; first += 2) rows.run_two(first);
        }
    }
    for (; first < last; ++first) rows.run(first);
}

// Calls body(first, last) over 0 .. count in ranges that are multiples of `block` long; `work`: of
// one of the items.
template <class Body>
inline void parallel_ranges(const Parallel &parallel, int64_t count, int64_t block, int64_t work,
                            const Body &body) {
    const int64_t blocks = ceil_div(count, block);
    const int64_t tasks = task_count(parallel, count, blocks, work);
    if (parallel.concurrency <= 1 || tasks <= 1) return body(int64_t{0}, count);
    Split<Body> split{&body, count, block, blocks, tasks};
    parallel.run(parallel.pool, int32_t(tasks), Split<Body>::task, &split);
}

}  // namespace
}  // namespace qk::cpu
