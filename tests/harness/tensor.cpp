#include "harness/tensor.hpp"

#include <cstring>

namespace harness {

using reference::Format;

const std::vector<uint8_t> &plane_of(const reference::Planes &planes, int plane) {
    static const std::vector<uint8_t> none;
    switch (plane) {
        case QK_PLANE_DATA: return planes.data;
        case QK_PLANE_SCALE: return planes.scale;
        case QK_PLANE_ZERO: return planes.zero;
        case QK_PLANE_SCALE2: return planes.second_scale;
        case QK_PLANE_SCALE_CODE: return planes.scale_code;
        case QK_PLANE_SCALE_BIAS: return planes.scale_bias;
        case QK_PLANE_TABLE: return planes.table;
        case QK_PLANE_GLOBAL: return planes.global;
        case QK_PLANE_ORDER: return planes.order;
        case QK_PLANE_MIN2: return planes.min2;
        default: return none;
    }
}

std::vector<uint8_t> &plane_of(reference::Planes &planes, int plane) {
    return const_cast<std::vector<uint8_t> &>(
        plane_of(static_cast<const reference::Planes &>(planes), plane));
}

Tensor::Tensor(qk_context *context, const reference::Weight &weight, uint64_t turn)
    : desc_(describe(weight.spec)) {
    const reference::Planes bytes = reference::pack(weight);
    for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        const std::vector<uint8_t> &from = plane_of(bytes, plane);
        if (from.empty()) continue;
        uint8_t *const to =
            planes_[size_t(plane)].place(from.size(), Placement::turn(turn + plane));
        std::memcpy(to, from.data(), from.size());
    }
    wrap(context);
}

Tensor::Tensor(qk_context *context, Format format, int64_t rows, int64_t columns,
               const std::vector<float> &values, uint64_t turn)
    : desc_(describe_dense(format, rows, columns)) {
    const size_t size = size_t(reference::bytes_of(format));
    uint8_t *const to = planes_[0].place(values.size() * size, Placement::turn(turn));
    for (size_t i = 0; i < values.size(); ++i) {
        const uint32_t bits = reference::encode(format, values[i]);
        std::memcpy(to + i * size, &bits, size);  // little-endian, as all of qk
    }
    wrap(context);
}

Tensor::Tensor(qk_context *context, Format format, int64_t rows, int64_t columns, uint64_t turn)
    : desc_(describe_dense(format, rows, columns)) {
    const size_t size = size_t(reference::bytes_of(format));
    planes_[0].place(size_t(rows * columns) * size, Placement::turn(turn));
    wrap(context);
}

void Tensor::wrap(qk_context *context) {
    void *pointers[QK_PLANE_COUNT] = {};
    for (int plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        pointers[plane] = planes_[size_t(plane)].data();
    }
    status_ = qk_tensor_wrap(context, &desc_, pointers, QK_PLANE_COUNT, &handle_);
}

bool Tensor::intact() const {
    for (const Guarded &plane : planes_) {
        if (!plane.intact()) return false;
    }
    return true;
}

uint32_t Tensor::bits(int64_t index) const {
    const size_t size = desc_.format == QK_FORMAT_F32 ? 4 : 2;
    uint32_t bits = 0;
    std::memcpy(&bits, planes_[0].data() + size_t(index) * size, size);
    return bits;
}

}  // namespace harness
