// Quantize on the GPU against the CPU, byte for byte: every format, layout and type, tails, and
// values that are no numbers. The same tests run on simulated threads.
#include "cuda/kernels.hpp"
#include "cuda/quantize_case.hpp"

namespace cuda_test {
namespace {

struct Stored {
    qk_layout layout;
    int32_t group;
    int64_t n, k;
    bool flat;
};

// Normal values, and now and then a zero, an infinity, a NaN or a group of zeros.
std::vector<uint8_t> awkward_floats(qk_format format, int64_t count, Rng &rng) {
    std::vector<uint8_t> data = random_floats(format, count, rng);
    const int64_t bytes = format == QK_FORMAT_F32 ? 4 : 2;
    const uint32_t infinity = format == QK_FORMAT_F16 ? 0x7c00 : 0x7f80;
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t kind = rng() % 512;
        uint32_t bits = kind == 0 ? infinity + 1 : infinity;
        if (format == QK_FORMAT_F32) bits <<= 16;
        if (kind < 2) memcpy(data.data() + i * bytes, &bits, size_t(bytes));
        if (kind == 2) memset(data.data() + i * bytes, 0, size_t(bytes));
    }
    for (int64_t i = 0; i < std::min<int64_t>(count, 70); ++i) {
        memset(data.data() + i * bytes, 0, size_t(bytes));
    }
    return data;
}

TEST(CudaQuantize, EqualsTheCpu) {
    QK_NEEDS_DEVICE();
    const qk_layout layouts[] = {QK_LAYOUT_ROW,      QK_LAYOUT_ROW_HIGH, QK_LAYOUT_AWQ_GEMM,
                                 QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_GPTQ_V1,  QK_LAYOUT_WORD};
    const qk_format types[] = {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16};
    const int64_t shapes[][2] = {{1, 16}, {9, 101}, {16, 64}};
    Rng rng(31);
    int at = 0, seen = 0;
    for (const qk_layout layout : layouts) {
        for (const qk_format format :
             {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_BNB, QK_FORMAT_FP4_E2M1}) {
            for (const auto &[n, k] : shapes) {
                if (seen++ % kEvery != 0) continue;
                const bool flat = layout == QK_LAYOUT_ROW_HIGH || (layout == 0 && at % 2 == 0);
                const bool symmetric = format == QK_FORMAT_U4_AFFINE && at % 2 == 1;
                SCOPED_TRACE(std::to_string(format).append(" ").append(std::to_string(layout)));
                check_quantize(weight_desc(format, types[at % 3], layout, at % 4 == 0 ? 16 : 64, n,
                                           k, symmetric, flat),
                               types[at / 3 % 3], awkward_floats(types[at / 3 % 3], n * k, rng),
                               rng);
                ++at;
                if (HasFailure()) return;
            }
        }
    }
    for (const qk_format format : {QK_FORMAT_LUT8, QK_FORMAT_S8}) {
        check_quantize(weight_desc(format, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, 7, 150), QK_FORMAT_F32,
                       awkward_floats(QK_FORMAT_F32, 7 * 150, rng), rng);
    }
}

// Groups that follow one another, of every size that a warp's lanes share, a short last one and
// an odd run of codes among them; blocks of several rounds, the last of which ends inside a chunk.
TEST(CudaQuantize, StreamsAreTheCpus) {
    QK_NEEDS_DEVICE();
    const Stored cases[] = {
        {QK_LAYOUT_ROW_HIGH, 64, 21, 683, true}, {QK_LAYOUT_ROW_HIGH, 256, 8, 256, false},
        {QK_LAYOUT_ROW, 16, 32, 272, false},     {QK_LAYOUT_ROW, 32, 3, 330, true},
        {QK_LAYOUT_WORD, 128, 5, 256, false},    {QK_LAYOUT_WORD, 64, 1, 64, false}};
    const qk_format types[] = {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32};
    Rng rng(38);
    size_t at = 0;
    const std::pair<qk_format, bool> formats[] = {
        {QK_FORMAT_NF4, false},      {QK_FORMAT_FP4_BNB, false},   {QK_FORMAT_FP4_E2M1, false},
        {QK_FORMAT_U4_AFFINE, true}, {QK_FORMAT_U4_AFFINE, false}, {QK_FORMAT_S8, false},
        {QK_FORMAT_LUT8, false}};
    for (const auto &[format, symmetric] : formats) {
        const bool bytes = format == QK_FORMAT_S8 || format == QK_FORMAT_LUT8;
        for (const Stored &c : cases) {
            if (bytes && c.layout != QK_LAYOUT_ROW) continue;
            SCOPED_TRACE(std::to_string(format).append(" ").append(std::to_string(c.group)));
            const qk_format from = types[at++ % 3];
            const qk_tensor_desc desc = weight_desc(format, types[at / 3 % 3], c.layout, c.group,
                                                    c.n, c.k, symmetric, c.flat);
            check_quantize(desc, from,
                           at % 2 == 0 ? awkward_floats(from, c.n * c.k, rng)
                                       : random_floats(from, c.n * c.k, rng),
                           rng);
            if (HasFailure()) return;
        }
    }
}

// The code of a NaN beside numbers whose scale is one, where a lane has all of its chunks.
TEST(CudaQuantize, NaNsAmongNumbersAreTheCpus) {
    QK_NEEDS_DEVICE();
    Rng rng(39);
    const int64_t n = 36, k = 256;
    for (const qk_format format : {QK_FORMAT_NF4, QK_FORMAT_FP4_BNB, QK_FORMAT_FP4_E2M1,
                                   QK_FORMAT_U4_AFFINE, QK_FORMAT_S8, QK_FORMAT_LUT8}) {
        for (const qk_format from : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16}) {
            SCOPED_TRACE(std::to_string(format) + " from " + std::to_string(from));
            std::vector<uint8_t> dense = random_floats(from, n * k, rng);
            const size_t bytes = from == QK_FORMAT_F32 ? 4 : 2;
            for (int64_t row = 0; row < n; row += 2) {
                uint8_t *const last = dense.data() + (size_t(row * k) + rng() % size_t(k)) * bytes;
                last[bytes - 1] = 0x7f;
                last[bytes - 2] = 0xff;
            }
            check_quantize(weight_desc(format, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, n, k,
                                       format == QK_FORMAT_U4_AFFINE),
                           from, dense, rng);
            if (HasFailure()) return;
        }
    }
}

// Zeros by the kernel that has them, in each order that it knows: of a block's groups together, of
// rows with a spare nibble, of 8 rows a word. Groups above zero, below zero and of both signs,
// blocks of several words of zeros and a last one that is not whole.
TEST(CudaQuantize, ZerosAreTheCpus) {
    QK_NEEDS_DEVICE();
    const Stored cases[] = {
        {QK_LAYOUT_ROW, 16, 33, 512, false},      {QK_LAYOUT_ROW, 128, 36, 768, false},
        {QK_LAYOUT_ROW, 256, 40, 512, false},     {QK_LAYOUT_ROW, 32, 64, 160, false},
        {QK_LAYOUT_ROW, 64, 5, 1734, true},       {QK_LAYOUT_ROW_HIGH, 32, 24, 480, false},
        {QK_LAYOUT_ROW_HIGH, 16, 17, 1204, true}, {QK_LAYOUT_WORD, 64, 27, 320, false},
        {QK_LAYOUT_WORD, 256, 9, 1280, false}};
    Rng rng(45);
    int at = 0;
    for (const Stored &c : cases) {
        for (const qk_format from : {QK_FORMAT_F16, QK_FORMAT_BF16, QK_FORMAT_F32}) {
            if (at++ % kEvery != 0) continue;
            SCOPED_TRACE(std::to_string(c.layout) + ", groups of " + std::to_string(c.group) +
                         " from " + std::to_string(from));
            std::vector<uint8_t> dense = awkward_floats(from, c.n * c.k, rng);
            const size_t bytes = from == QK_FORMAT_F32 ? 4 : 2;
            for (int64_t i = 0; i < c.n * c.k; ++i) {
                uint8_t &top = dense[size_t(i) * bytes + bytes - 1];
                const int64_t kind = i / c.group % 4;
                if (kind == 1) top &= 0x7f;
                if (kind == 2) top |= 0x80;
            }
            const qk_format scales[] = {QK_FORMAT_F16, QK_FORMAT_F32, QK_FORMAT_BF16};
            const qk_tensor_desc desc = weight_desc(QK_FORMAT_U4_AFFINE, scales[at % 3], c.layout,
                                                    c.group, c.n, c.k, false, c.flat);
            EXPECT_EQ(check_quantize(desc, from, dense, rng), 2);  // affine and generic
            if (HasFailure()) return;
        }
    }
}

TEST(CudaQuantize, RecordsAreTheCpus) {
    QK_NEEDS_DEVICE();
    Rng rng(37);
    for (const qk_format type : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16}) {
        for (const auto &[n, k] : {std::pair<int64_t, int64_t>{1, 32}, {7, 96}, {65, 64}}) {
            SCOPED_TRACE(std::to_string(type) + " " + std::to_string(n));
            check_quantize(weight_desc(QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_GGUF_Q4_0, 32,
                                       n, k, true),
                           type, awkward_floats(type, n * k, rng), rng);
            check_quantize(weight_desc(QK_FORMAT_S8, QK_FORMAT_F16, QK_LAYOUT_GGUF_Q8_0, 32, n, k),
                           type, awkward_floats(type, n * k, rng), rng);
        }
    }
}

// The rules of packages, whose scales are bytes or whose roundings depend on the type of x; a
// GLOBAL number of one row, of many, and of a tensor that several blocks read.
TEST(CudaQuantize, PackagesRulesAreTheCpus) {
    QK_NEEDS_DEVICE();
    struct Case {
        qk_format format, scale;
        uint32_t flags;
        int64_t n, k;
    };
    constexpr uint32_t one = QK_TENSOR_GLOBAL, rows = QK_TENSOR_GLOBAL_ROWS,
                       divides = QK_TENSOR_GLOBAL_DIVIDES;
    const Case cases[] = {
        {QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, 0, 9, 101},
        {QK_FORMAT_E4M3, QK_FORMAT_E8M0, 0, 9, 101},
        {QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, 0, 9, 101},
        {QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, one | divides, 9, 101},
        {QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, one | divides, 2, 33001},
        {QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, rows | divides, 9, 301},
        {QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, one, 1, 16},
        {QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, rows, 9, 301},
        {QK_FORMAT_S8, QK_FORMAT_F16, QK_TENSOR_SYMMETRIC, 9, 101},
        {QK_FORMAT_E4M3, QK_FORMAT_BF16, 0, 9, 101},
    };
    Rng rng(34);
    for (const Case &c : cases) {
        for (const qk_format from : {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16}) {
            for (const bool awkward : {false, true}) {
                if (c.k > 1000 && (awkward || from != QK_FORMAT_F16)) continue;
                SCOPED_TRACE(
                    std::to_string(c.format).append(" from ").append(std::to_string(from)));
                qk_tensor_desc desc = weight_desc(c.format, c.scale, QK_LAYOUT_ROW, 32, c.n, c.k);
                desc.flags = c.flags;
                check_quantize(desc, from,
                               awkward ? awkward_floats(from, c.n * c.k, rng)
                                       : random_floats(from, c.n * c.k, rng),
                               rng);
                if (HasFailure()) return;
            }
        }
    }
}

// Packed weights keep the quotients of a GLOBAL number that divides: those of a repacked weight.
TEST(CudaQuantize, PackedIsAsRepacked) {
    QK_NEEDS_DEVICE();
    Rng rng(35);
    const int64_t n = 24, k = 128;
    const qk::Format *const f32 = qk::find_format(QK_FORMAT_F32);
    const DeviceBuffer x(random_floats(QK_FORMAT_F32, n * k, rng));
    for (const uint32_t flags :
         {0u + QK_TENSOR_GLOBAL, QK_TENSOR_GLOBAL | QK_TENSOR_GLOBAL_DIVIDES}) {
        qk_tensor_desc desc =
            weight_desc(QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, QK_LAYOUT_ROW, 16, n, k);
        desc.flags = flags;
        const DeviceWeight rows(empty_weight(desc, 0, 0xff));
        desc.layout = QK_LAYOUT_PACKED;
        const DeviceWeight repacked(empty_weight(desc, qk::kLayoutTilesPairs, 0));
        const DeviceWeight packed(empty_weight(desc, qk::kLayoutTilesPairs, 0xff));
        qk::ErrorText error = {};
        const qk::Launch launch = device_launch(&error);
        for (const DeviceWeight *to : {&rows, &packed}) {
            ASSERT_EQ(qk::cuda::kQuantizeGeneric.run({{f32, n, k, x.data()}, to->view()}, launch),
                      QK_OK)
                << error.text;
        }
        ASSERT_EQ(qk::cuda::kRepackTiles.run({rows.view(), repacked.view()}, launch), QK_OK)
            << error.text;
        for (const qk_plane plane :
             {QK_PLANE_DATA, QK_PLANE_SCALE, QK_PLANE_SCALE_CODE, QK_PLANE_GLOBAL}) {
            EXPECT_EQ(packed.planes[plane].read(), repacked.planes[plane].read()) << plane;
        }
    }
}

// An odd run of codes ends with the code of 0; an even one has no byte behind it.
TEST(CudaQuantize, PadsOnlyAnOddRun) {
    QK_NEEDS_DEVICE();
    Rng rng(33);
    for (const qk_format format : {QK_FORMAT_NF4, QK_FORMAT_FP4_BNB, QK_FORMAT_FP4_E2M1}) {
        for (const auto &[n, k] : {std::pair<int64_t, int64_t>{2, 16}, {3, 22}, {3, 15}, {1, 64}}) {
            SCOPED_TRACE(std::to_string(n).append(" x ").append(std::to_string(k)));
            check_quantize(
                weight_desc(format, QK_FORMAT_F32, QK_LAYOUT_ROW_HIGH, 16, n, k, false, true),
                QK_FORMAT_F32, random_floats(QK_FORMAT_F32, n * k, rng), rng);
        }
    }
}

// Group counts on either side of what the order of the mean's sum distinguishes: vectors of 8, rows
// of 32, chunks of 512, 16 and 256 chunks (whose sums climb a level), chunks of 1024.
TEST(CudaQuantize, NestedScalesAreTheCpus) {
    QK_NEEDS_DEVICE();
    struct Case {
        int64_t n, k;
        int32_t group, second;
        qk_layout layout;
        bool flat;
    };
    const Case cases[] = {
        {1, 5, 16, 256, QK_LAYOUT_ROW, false},
        {7, 16, 16, 16, QK_LAYOUT_ROW_HIGH, false},
        {9, 101, 16, 64, QK_LAYOUT_AWQ_GEMV, false},
        {8, 1033, 16, 256, QK_LAYOUT_ROW_HIGH, true},
#if !defined(QK_CUDA_SIMULATED)
        {515, 32, 16, 4096, QK_LAYOUT_WORD, false},
        {1031, 130, 16, 256, QK_LAYOUT_GPTQ, false},
        {2051, 1040, 16, 300, QK_LAYOUT_AWQ_GEMM, false},
        {4099, 4000, 64, 256, QK_LAYOUT_ROW_HIGH, true},
        {8192, 6400, 16, 256, QK_LAYOUT_ROW, false},
#endif
    };
    const qk_format formats[] = {QK_FORMAT_NF4, QK_FORMAT_U4_AFFINE, QK_FORMAT_FP4_BNB,
                                 QK_FORMAT_FP4_E2M1};
    const qk_format types[] = {QK_FORMAT_F32, QK_FORMAT_F16, QK_FORMAT_BF16};
    Rng rng(32);
    int at = 0;
    for (const Case &c : cases) {
        for (const bool awkward : {false, true}) {
            if (awkward && c.n * c.k > 1000) continue;  // one NaN decides the mean
            qk_tensor_desc desc = weight_desc(formats[at % 4], QK_FORMAT_LUT8, c.layout, c.group,
                                              c.n, c.k, false, c.flat);
            desc.scale_group_size = c.second;
            const qk_format from = types[at++ % 3];
            SCOPED_TRACE(std::to_string(c.n).append(" x ").append(std::to_string(c.k)));
            check_quantize(desc, from,
                           awkward ? awkward_floats(from, c.n * c.k, rng)
                                   : random_floats(from, c.n * c.k, rng),
                           rng);
            if (HasFailure()) return;
        }
    }
}

}  // namespace
}  // namespace cuda_test
