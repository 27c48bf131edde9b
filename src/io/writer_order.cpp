// Act-order on its way out: qk stores columns group after group, files have them as the model does
// and say for each of which group it is.
#include "writer_dialects.hpp"

namespace qk_io {
namespace {

bool is_ordered(const OutgoingLayer &layer) { return (layer.desc.flags & QK_TENSOR_ORDERED) != 0; }

struct Place {  // of a code's lowest bits
    size_t byte;
    int shift;
};

Place place_of(const qk_tensor_desc &d, int64_t row, int64_t column) {
    const int64_t n = d.shape[0], k = d.shape[1];
    const int shift = static_cast<int>(column % 2 * 4);
    if (d.format == QK_FORMAT_S8) return {static_cast<size_t>(row * k + column), 0};
    if (d.layout == QK_LAYOUT_WORD) {
        return {static_cast<size_t>(row * ((k + 7) / 8 * 4) + column / 2), shift};
    }
    return {static_cast<size_t>((column / 8 * n + row) * 4 + column % 8 / 2), shift};
}

void put_back(const qk_tensor_desc &d, const int32_t *order, const uint8_t *stored,
              uint8_t *plane) {
    const int mask = d.format == QK_FORMAT_S8 ? 255 : 15;
    for (int64_t row = 0; row < d.shape[0]; ++row) {
        for (int64_t i = 0; i < d.shape[1]; ++i) {
            const Place from = place_of(d, row, i), to = place_of(d, row, order[i]);
            const int code = stored[from.byte] >> from.shift & mask;
            plane[to.byte] = static_cast<uint8_t>(plane[to.byte] | code << to.shift);
        }
    }
}

// The group of each column. A tensor's order may be anything; only a permutation gives all a group.
bool groups_of(const OutgoingLayer &layer, const int32_t *order, int32_t *groups) {
    const int64_t k = layer.desc.shape[1];
    const int32_t size = layer.desc.group_size;
    for (int64_t i = 0; i < k; ++i) groups[i] = -1;
    for (int64_t i = 0; i < k; ++i) {
        const int64_t column = order == nullptr ? i : order[i];
        if (column < 0 || column >= k || groups[column] >= 0) return false;
        groups[column] = size == QK_GROUP_ROW ? 0 : static_cast<int32_t>(i / size);
    }
    return true;
}

// Both of memory of the writer's, to be released; no columns where they are stored in order.
struct Order {
    int32_t *columns, *groups;
};

qk_status take(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
               const qk_tensor *tensor, Order *order, qk_io_message *message) {
    const size_t bytes = static_cast<size_t>(layer.desc.shape[1]) * sizeof(int32_t);
    *order = {nullptr, static_cast<int32_t *>(w->memory.allocate(bytes, 8))};
    if (order->groups == nullptr) return out_of_memory(message);
    void *columns = nullptr;
    qk_status status = QK_OK;
    if (is_ordered(layer)) {
        status = download_plane(w, context, layer, tensor, QK_PLANE_ORDER, &columns, message);
    }
    order->columns = static_cast<int32_t *>(columns);
    if (status == QK_OK && !groups_of(layer, order->columns, order->groups)) {
        status =
            fail(message, QK_ERROR_ARGUMENT,
                 "layer \"%.200s\": its order of columns is no permutation of them", layer.name);
        w->memory.release(columns);
    }
    if (status != QK_OK) w->memory.release(order->groups);
    return status;
}

void release(qk_writer *w, const Order &order) {
    w->memory.release(order.columns);
    w->memory.release(order.groups);
}

}  // namespace

qk_status download_codes(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                         const qk_tensor *tensor, void **codes, qk_io_message *message) {
    QK_IO_TRY(download_plane(w, context, layer, tensor, QK_PLANE_DATA, codes, message));
    if (!is_ordered(layer)) return QK_OK;
    const size_t bytes = static_cast<size_t>(plane_bytes(layer, QK_PLANE_DATA));
    void *const stored = *codes;
    uint8_t *plane = static_cast<uint8_t *>(w->memory.allocate(bytes, 8));
    Order order = {nullptr, nullptr};
    qk_status status = plane == nullptr ? out_of_memory(message)
                                        : take(w, context, layer, tensor, &order, message);
    if (status == QK_OK) {
        memset(plane, 0, bytes);
        put_back(layer.desc, order.columns, static_cast<const uint8_t *>(stored), plane);
        release(w, order);
        *codes = plane;
    } else {
        w->memory.release(plane);
    }
    w->memory.release(stored);
    return status;
}

qk_status write_groups(qk_writer *w, qk_context *context, const OutgoingLayer &layer,
                       const qk_tensor *tensor, const char *suffix, qk_io_message *message) {
    Order order = {nullptr, nullptr};
    QK_IO_TRY(take(w, context, layer, tensor, &order, message));
    const size_t bytes = static_cast<size_t>(layer.desc.shape[1]) * sizeof(int32_t);
    const qk_status status = write_bytes(w, layer, suffix, order.groups, bytes, message);
    release(w, order);
    return status;
}

}  // namespace qk_io
