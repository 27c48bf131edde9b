// The work that bench/arm_instructions.py counts the instructions of: every case is one call of the
// library on ROWS rows of w and one on twice as many, each between two calls of qk_bench_mark().
// Prints the cases' names in the order in which they ran, and how often 128 weights fit ROWS rows.
//
//     qk_bench_arm_instructions generic|neon|dotprod|i8mm ROWS
#include <stdio.h>
#include <stdlib.h>

#include <vector>

#include "../cli/trace.hpp"
#include "instruction_set.hpp"
#include "qk.h"

extern "C" __attribute__((noinline, noclone)) void qk_bench_mark() { asm volatile(""); }

namespace {

constexpr int64_t kColumns = 1024;

struct Weights {
    const char *name;
    qk_format format, scale_format;
    int32_t group_size;
};
constexpr Weights kWeights[] = {
    {"NF4 g64", QK_FORMAT_NF4, QK_FORMAT_F32, 64},
    {"NF4 g64 nested", QK_FORMAT_NF4, QK_FORMAT_LUT8, 64},
    {"FP4 g64", QK_FORMAT_FP4_BNB, QK_FORMAT_F32, 64},
    {"U4 g128", QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, 128},
};

struct Work {
    const char *name;
    int64_t m;       // rows of x; 0: dequantize
    uint32_t flags;  // of the context
    qk_format output;
};
constexpr Work kWork[] = {
    {"exact, m = 1", 1, 0, QK_FORMAT_F32},
    {"exact, m = 8", 8, 0, QK_FORMAT_F32},
    {"int8, m = 1", 1, QK_CONTEXT_INT8_ACTIVATIONS, QK_FORMAT_F32},
    {"int8, m = 8", 8, QK_CONTEXT_INT8_ACTIVATIONS, QK_FORMAT_F32},
    {"dequantize to f32", 0, 0, QK_FORMAT_F32},
    {"dequantize to bf16", 0, 0, QK_FORMAT_BF16},
};

void check(qk_status status, const qk_context *context) {
    if (status == QK_OK) return;
    fprintf(stderr, "%s: %s\n", qk_status_string(status), qk_context_error(context));
    exit(1);
}

class Bench {
  public:
    Bench(const char *isa, uint32_t flags) {
        qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
        options.thread_count = 1;
        options.flags = flags;
        options.workspace_bytes = 1 << 18;
        options.instruction_sets = bench::instruction_sets_of(isa);
        trace_if_asked(&options);
        check(qk_context_create(&options, &context_), nullptr);
    }
    ~Bench() {
        for (qk_tensor *const tensor : tensors_) qk_tensor_destroy(tensor);
        qk_context_destroy(context_);
    }
    Bench(const Bench &) = delete;

    void run(const Weights &c, const Work &work, int64_t rows) {
        qk_tensor *const w = weight(c, rows);
        qk_tensor *const x = dense(QK_FORMAT_F32, work.m > 0 ? work.m : 1, kColumns);
        const std::vector<float> ones(size_t(work.m > 0 ? work.m : 1) * kColumns, 1.0f);
        check(qk_tensor_upload(context_, x, QK_PLANE_DATA, ones.data(), ones.size() * 4), context_);
        qk_tensor *const y =
            work.m > 0 ? dense(work.output, work.m, rows) : dense(work.output, rows, kColumns);
        qk_bench_mark();
        check(work.m > 0 ? qk_linear(context_, x, w, nullptr, y) : qk_dequantize(context_, w, y),
              context_);
        qk_bench_mark();
    }

  private:
    qk_tensor *create(qk_tensor_desc desc, int64_t rows, int64_t columns) {
        desc.rank = 2;
        desc.shape[0] = rows;
        desc.shape[1] = columns;
        qk_tensor *tensor = nullptr;
        check(qk_tensor_create(context_, &desc, &tensor), context_);
        tensors_.push_back(tensor);
        return tensor;
    }
    qk_tensor *dense(qk_format format, int64_t rows, int64_t columns) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = format;
        return create(desc, rows, columns);
    }
    // Packed: any codes with any scales do, because no kernel looks at what they are.
    qk_tensor *weight(const Weights &c, int64_t rows) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        desc.format = c.format;
        desc.scale_format = c.scale_format;
        desc.group_size = c.group_size;
        desc.grouping = QK_GROUPING_ALONG_K;
        desc.layout = QK_LAYOUT_ROW;
        qk_tensor *const row = create(desc, rows, kColumns);
        check(qk_tensor_describe(row, &desc), context_);
        for (int i = 0; i < QK_PLANE_COUNT; ++i) {
            const qk_plane plane = qk_plane(i);
            size_t bytes = 0;
            check(qk_tensor_plane_bytes(&desc, plane, &bytes), context_);
            const std::vector<uint8_t> data(bytes, 0x36);
            if (bytes > 0) check(qk_tensor_upload(context_, row, plane, &data[0], bytes), context_);
        }
        desc.layout = QK_LAYOUT_PACKED;
        qk_tensor *const packed = create(desc, rows, kColumns);
        check(qk_repack(context_, row, packed), context_);
        return packed;
    }

    qk_context *context_ = nullptr;
    std::vector<qk_tensor *> tensors_;
};

}  // namespace

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    const int64_t rows = atoi(argv[2]);
    for (const Weights &weights : kWeights) {
        for (const Work &work : kWork) {
            Bench bench(argv[1], work.flags);
            bench.run(weights, work, rows);
            bench.run(weights, work, 2 * rows);
            printf("%s\t%s\t%lld\n", weights.name, work.name, (long long)(rows * kColumns / 128));
        }
    }
}
