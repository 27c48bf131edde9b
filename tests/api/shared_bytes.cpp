// No two tasks of a call change the same byte, not even nibbles of it: side by side one could undo
// what the other did, and no run that is repeated would show it.
#include "api/support.hpp"

namespace api {
namespace {

// Runs tasks one by one, and compares what an operation writes before and after each.
struct Watch {
    std::vector<Planes *> planes;
    int64_t tasks = 0, shared = 0;

    qk_executor table() { return {run, this, 16}; }

    static void run(void *user, int32_t count, void (*task)(void *, int32_t), void *argument) {
        Watch &self = *static_cast<Watch *>(user);
        std::vector<bool> changed;
        for (int32_t i = 0; i < count; ++i) {
            const auto before = self.bytes();
            task(argument, i);
            const auto after = self.bytes();
            changed.resize(after.size());
            for (size_t at = 0; at < after.size(); ++at) {
                if (before[at] == after[at]) continue;
                self.shared += changed[at];
                changed[at] = true;
            }
        }
        self.tasks += count;
    }
    std::vector<unsigned char> bytes() const {
        std::vector<unsigned char> all;
        for (const Planes *const each : planes) {
            for (const auto &plane : each->bytes) all.insert(all.end(), plane.begin(), plane.end());
        }
        return all;
    }
};

class SharedBytes : public testing::Test {
  protected:
    ~SharedBytes() override { qk_context_destroy(context_); }

    // One call that writes `output`.
    template <class Call>
    void watch(Planes &output, const char *what, const Call &call) {
        watch_.planes = {&output};
        watch_.shared = 0;
        ASSERT_EQ(call(), QK_OK) << what << ": " << qk_context_error(context_);
        EXPECT_EQ(watch_.shared, 0) << what;
        watch_.planes.clear();
    }

    // n and k such that n * k, rows, words of rows and groups all end within something.
    void quantize_and_repack(qk_tensor_desc desc) {
        const auto matrix = dense_desc(QK_FORMAT_F32, {desc.shape[0], desc.shape[1]});
        Planes dense(matrix), coded(desc), back(matrix);
        dense.fill_dense(QK_FORMAT_F32, 3);
        coded.fill_tables();
        qk_tensor *const from = wrap(context_, matrix, dense);
        qk_tensor *const quantized = wrap(context_, desc, coded);
        qk_tensor *const values = wrap(context_, matrix, back);
        watch(coded, "qk_quantize", [&] { return qk_quantize(context_, from, quantized); });
        watch(back, "qk_dequantize", [&] { return qk_dequantize(context_, quantized, values); });
        for (const qk_layout layout : layouts_of(desc)) {
            qk_tensor_desc to_desc = desc;
            to_desc.layout = layout;
            Planes to(to_desc);
            qk_tensor *const other = wrap(context_, to_desc, to);
            watch(to, "qk_repack", [&] { return qk_repack(context_, quantized, other); });
            qk_tensor_destroy(other);
        }
        for (qk_tensor *const tensor : {from, quantized, values}) qk_tensor_destroy(tensor);
    }

    static std::vector<qk_layout> layouts_of(const qk_tensor_desc &desc) {
        std::vector<qk_layout> layouts = {QK_LAYOUT_ROW};
        if (desc.format == QK_FORMAT_LUT8 || desc.format == QK_FORMAT_S8) return layouts;
        layouts.push_back(QK_LAYOUT_ROW_HIGH);
        if (desc.grouping == QK_GROUPING_FLAT) return layouts;
        for (const qk_layout words : {QK_LAYOUT_AWQ_GEMM, QK_LAYOUT_AWQ_GEMV, QK_LAYOUT_GPTQ,
                                      QK_LAYOUT_GPTQ_V1, QK_LAYOUT_WORD}) {
            layouts.push_back(words);
        }
        return layouts;
    }

    Allocator allocator_;
    Watch watch_;
    const qk_executor executor_ = watch_.table();
    qk_context *const context_ = make_context(allocator_, 0, &executor_);
};

TEST_F(SharedBytes, NoneAmongTasks) {
    for (const qk_format format :
         {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_FP4_E2M1, QK_FORMAT_LUT8, QK_FORMAT_S8}) {
        for (const qk_grouping grouping : {QK_GROUPING_ALONG_K, QK_GROUPING_FLAT}) {
            for (const int32_t group : {16, 17, 32}) {
                auto desc = weight_desc(format, QK_LAYOUT_ROW, 77, 105, group);
                desc.grouping = grouping;
                for (const qk_layout layout : layouts_of(desc)) {
                    SCOPED_TRACE(testing::Message() << "format " << format << " layout " << layout
                                                    << " grouping " << grouping << " " << group);
                    desc.layout = layout;
                    quantize_and_repack(desc);
                }
            }
        }
    }
    EXPECT_GT(watch_.tasks, 1000);
}

}  // namespace
}  // namespace api
