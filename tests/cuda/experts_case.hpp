// Random products with experts, for the tests of the kernels that run them.
#pragma once
#include "base/activation.hpp"
#include "cuda/harness.hpp"
#include "cuda/kernels.hpp"

namespace cuda_test {
namespace {

struct Case {
    HostWeight w;  // [count * rows, k]
    qk_format type, y_type;
    int64_t tokens, slots, count;
    bool by_slot, summed, interleaved, biased, weighted, accumulates;
    qk_activation activation;
    std::vector<uint8_t> x, bias, y, expert, weight;  // y: what it held

    int64_t rows() const { return w.shape.rows / count; }
    int64_t k() const { return w.shape.columns; }
    int64_t columns() const { return activation == QK_ACTIVATION_NONE ? rows() : rows() / 2; }
    int64_t x_rows() const { return by_slot ? tokens * slots : tokens; }
    int64_t y_rows() const { return summed ? tokens : tokens * slots; }
    std::string title() const {
        return "format " + std::to_string(w.shape.format->id) + " experts " +
               std::to_string(count) + " of " + std::to_string(rows()) + " x " +
               std::to_string(k()) + " tokens " + std::to_string(tokens) + " slots " +
               std::to_string(slots) + (by_slot ? " by slot" : "") + (summed ? " summed" : "") +
               " activation " + std::to_string(activation) + (interleaved ? " interleaved" : "");
    }
};

template <class T>
inline std::vector<uint8_t> bytes_of(const std::vector<T> &values) {
    std::vector<uint8_t> bytes(values.size() * sizeof(T));
    memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

// Ids of every kind: some below 0, one or two past the last expert, tokens with nobody.
inline std::vector<int32_t> routing(int64_t slots, int64_t count, Rng &rng) {
    std::vector<int32_t> ids;
    const uint64_t kind = rng() % 6;
    for (int64_t i = 0; i < slots; ++i) {
        int32_t id = int32_t(rng() % uint64_t(count));
        if (kind == 0) id = int32_t(count - 1);
        if (kind == 1 && rng() % 2 == 0) id = -1 - id;
        if (kind == 2 && rng() % 8 == 0) id = int32_t(count) + int32_t(rng() % 2);
        if (kind == 3 && rng() % 8 == 0) id = rng() % 2 == 0 ? INT32_MAX : INT32_MIN;
        if (kind == 4 && rng() % 16 != 0) id = -7;
        ids.push_back(id);
    }
    return ids;
}

inline Case make_case(const qk_tensor_desc &desc, int64_t count, qk_format type, int at, Rng &rng) {
    Case c = {};
    const bool dense = qk::is_dense(*qk::find_format(desc.format));
    c.w = dense ? empty_weight(desc, QK_LAYOUT_PACKED, 0) : random_weight(desc, rng);
    if (dense) {
        c.w.planes[QK_PLANE_DATA] = random_floats(desc.format, desc.shape[0] * desc.shape[1], rng);
    }
    c.type = type;
    c.y_type = at % 3 == 1 ? qk_format{QK_FORMAT_F32} : type;
    c.tokens = 1 + at % 5, c.slots = 1 + at * 3 % 8, c.count = count;
    c.by_slot = at % 4 == 1, c.summed = at % 2 == 1, c.interleaved = at % 3 == 0;
    c.biased = at % 5 != 2, c.weighted = c.summed && at % 4 != 3, c.accumulates = at % 7 == 3;
    c.activation = c.rows() % 2 == 0 ? qk_activation(at % 5) : QK_ACTIVATION_NONE;
    c.x = random_floats(type, c.x_rows() * c.k(), rng);
    c.bias = random_floats(QK_FORMAT_F32, desc.shape[0], rng);
    c.y = random_floats(c.y_type, c.y_rows() * c.columns(), rng);
    c.expert = bytes_of(routing(c.tokens * c.slots, count, rng));
    c.weight = random_floats(QK_FORMAT_F32, c.tokens * c.slots, rng);
    return c;
}

// Where the operands are: in host memory or on the device.
struct Operands {
    void *x, *bias, *y, *expert, *weight;
};

struct Arguments {
    qk::Experts experts;
    qk::Dense bias;
    qk::LinearArgs args;

    Arguments(const Case &c, const qk::Weight &w, const Operands &o)
        : experts{o.expert,     c.weighted ? o.weight : nullptr,
                  c.tokens,     c.slots,
                  c.count,      c.by_slot,
                  c.summed,     c.interleaved,
                  c.activation, 1.5f,
                  1.702f},
          bias{qk::find_format(QK_FORMAT_F32), c.count, c.rows(), o.bias}, args{} {
        args.x = {qk::find_format(c.type), c.x_rows(), c.k(), o.x};
        args.w = w;
        args.bias = c.biased ? &bias : nullptr;
        args.y = {qk::find_format(c.y_type), c.y_rows(), c.columns(), o.y};
        args.accumulate = c.accumulates;
        args.experts = &experts;
    }
    Arguments(const Arguments &) = delete;
    Arguments &operator=(const Arguments &) = delete;
};

inline std::vector<uint8_t> on_device(const Case &c, const DeviceWeight &w,
                                      const qk::Kernel<qk::LinearArgs> &kernel) {
    const DeviceBuffer x(c.x), bias(c.bias), y(c.y), expert(c.expert), weight(c.weight);
    const Arguments a(c, w.view(), {x.data(), bias.data(), y.data(), expert.data(), weight.data()});
    qk::ErrorText error = {};
    EXPECT_TRUE(kernel.can_run(a.args, device_0()));
    qk::Launch launch = device_launch(&error);
    const DeviceBuffer workspace =
        give_workspace(qk::workspace_of(kernel, a.args, launch.device), &launch);
    EXPECT_EQ(kernel.run(a.args, launch), QK_OK) << error.text;
    return y.read();
}

struct Kind {
    qk_format format, scale;
    qk_layout layout;
    int32_t group;
    bool symmetric, flat;
};

inline qk_tensor_desc desc_of(const Kind &kind, int64_t n, int64_t k) {
    if (kind.group != 0) {
        qk_tensor_desc desc = weight_desc(kind.format, kind.scale, kind.layout, kind.group, n, k,
                                          kind.symmetric, kind.flat);
        if (kind.scale == QK_FORMAT_LUT8) desc.scale_group_size = 16;
        return desc;
    }
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = kind.format;
    desc.rank = 2;
    desc.shape[0] = n, desc.shape[1] = k;
    return desc;
}

inline std::vector<uint8_t> rounded(qk_format type, const std::vector<float> &values) {
    if (type == QK_FORMAT_F32) return bytes_of(values);
    std::vector<uint16_t> halves;
    for (const float v : values) {
        halves.push_back(type == QK_FORMAT_F16 ? qk::f16_from_f32(v) : qk::bf16_from_f32(v));
    }
    return bytes_of(halves);
}

inline std::vector<float> floats_of(const std::vector<uint8_t> &bytes) {
    std::vector<float> values(bytes.size() / 4);
    memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

inline int32_t expert_at(const Case &c, int64_t slot) {
    int32_t id;
    memcpy(&id, &c.expert[size_t(slot) * 4], 4);
    return id;
}

// z of every slot, in f32, by the kernel itself; what the case makes of it is left out.
inline std::vector<float> slots_of(const Case &c, const DeviceWeight &w,
                                   const qk::Kernel<qk::LinearArgs> &kernel) {
    Case plain = c;
    plain.summed = plain.weighted = plain.accumulates = false;
    plain.activation = QK_ACTIVATION_NONE;
    plain.y_type = QK_FORMAT_F32;
    plain.y.assign(size_t(plain.y_rows() * plain.columns() * 4), 0xff);
    return floats_of(on_device(plain, w, kernel));
}

inline float joined(const Case &c, const float *row, int64_t i) {
    if (c.activation == QK_ACTIVATION_NONE) return row[i];
    const float gate = row[c.interleaved ? 2 * i : i];
    const float up = row[c.interleaved ? 2 * i + 1 : c.columns() + i];
    return qk::join(c.activation, 1.5f, 1.702f, gate, up);
}

// y from z.
inline std::vector<uint8_t> made_of(const Case &c, const std::vector<float> &z) {
    std::vector<float> y;
    for (int64_t head = 0; head < c.y_rows(); ++head) {
        for (int64_t i = 0; i < c.columns(); ++i) {
            float sum = 0;
            for (int64_t j = 0; j < (c.summed ? c.slots : 1); ++j) {
                const int64_t slot = c.summed ? head * c.slots + j : head;
                const int32_t e = expert_at(c, slot);
                if (e < 0) continue;
                const float value = e < c.count ? joined(c, &z[size_t(slot * c.rows())], i) : NAN;
                const float weight = c.weighted ? float_at(QK_FORMAT_F32, c.weight, slot) : 1.0f;
                sum = c.summed ? std::fma(weight, value, sum) : value;
            }
            if (c.accumulates) sum += float_at(c.y_type, c.y, int64_t(y.size()));
            y.push_back(sum);
        }
    }
    return rounded(c.y_type, y);
}

// What kernels of packed tiles take.
constexpr Kind kPacked[] = {
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F16, QK_LAYOUT_ROW, 128, false, false},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_BF16, QK_LAYOUT_ROW, 32, false, false},
    {QK_FORMAT_U4_AFFINE, QK_FORMAT_F32, QK_LAYOUT_ROW, QK_GROUP_ROW, true, false},
    {QK_FORMAT_NF4, QK_FORMAT_F32, QK_LAYOUT_ROW, 64, false, false},
    {QK_FORMAT_NF4, QK_FORMAT_LUT8, QK_LAYOUT_ROW, 64, false, false},
    {QK_FORMAT_FP4_E2M1, QK_FORMAT_E8M0, QK_LAYOUT_ROW, 32, false, false},
    {QK_FORMAT_FP4_E2M1, QK_FORMAT_E4M3, QK_LAYOUT_ROW, 16, false, false}};

}  // namespace
}  // namespace cuda_test
