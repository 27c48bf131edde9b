#include "order.hpp"

#include "methods.hpp"

namespace qk_io {
namespace {

struct GroupIndex {
    const char *name;
    const uint8_t *data;
    int64_t k, size, groups;

    int32_t at(int64_t column) const {
        int32_t index;
        memcpy(&index, data + column * 4, sizeof index);
        return index;
    }
    int64_t first(int64_t group) const { return group * size; }
    int64_t end(int64_t group) const { return group + 1 < groups ? (group + 1) * size : k; }
};

qk_status check_range(const GroupIndex &g, bool *moved, qk_io_message *message) {
    *moved = false;
    for (int64_t column = 0; column < g.k; ++column) {
        const int32_t group = g.at(column);
        if (group < 0 || group >= g.groups) {
            return fail(message, QK_ERROR_CORRUPT, "%s[%lld] is %d; there are %lld groups", g.name,
                        static_cast<long long>(column), static_cast<int>(group),
                        static_cast<long long>(g.groups));
        }
        *moved = *moved || group != column / g.size;
    }
    return QK_OK;
}

// Columns by group, and by number within one. Until a group's last place has its column, it holds
// minus the number of columns that the group lacks.
qk_status sort_columns(const GroupIndex &g, int32_t *order, qk_io_message *message) {
    for (int64_t group = 0; group < g.groups; ++group) {
        order[g.end(group) - 1] = static_cast<int32_t>(g.first(group) - g.end(group));
    }
    for (int64_t column = 0; column < g.k; ++column) {
        const int64_t group = g.at(column), end = g.end(group);
        const int32_t lacking = order[end - 1];
        if (lacking >= 0) {
            return fail(message, QK_ERROR_UNSUPPORTED,
                        "%s puts more than %lld columns into group %lld; qk loads act-order where "
                        "groups are of one size: %s",
                        g.name, static_cast<long long>(end - g.first(group)),
                        static_cast<long long>(group), kInstead);
        }
        if (lacking < -1) order[end - 1] = lacking + 1;
        order[end + lacking] = static_cast<int32_t>(column);
    }
    return QK_OK;
}

}  // namespace

qk_status take_order(qk_checkpoint *c, const Tensor *g_idx, const char *name, int64_t k,
                     int64_t group, Layer *layer, qk_io_message *message) {
    if (!is(g_idx, QK_DTYPE_I32, 1) || g_idx->shape[0] != k) {
        return fail(message, QK_ERROR_CORRUPT, "%s is %s; the weight asks for I32 [%lld]", name,
                    shape_text(g_idx).text, static_cast<long long>(k));
    }
    const int64_t size = group == QK_GROUP_ROW ? k : group;
    const GroupIndex g = {name, g_idx->data, k, size, ceil_div(k, size)};
    bool moved = false;
    QK_IO_TRY(check_range(g, &moved, message));
    if (!moved) return QK_OK;
    const size_t bytes = static_cast<size_t>(k) * sizeof(int32_t);
    int32_t *order = static_cast<int32_t *>(c->arena.take(&c->memory, bytes));
    if (order == nullptr) return out_of_memory(message);
    QK_IO_TRY(sort_columns(g, order, message));
    layer->planes[QK_PLANE_ORDER] = order;
    layer->plane_bytes[QK_PLANE_ORDER] = bytes;
    layer->desc.flags |= QK_TENSOR_ORDERED;
    return QK_OK;
}

const int32_t *order_of(const Layer &layer) {
    return static_cast<const int32_t *>(layer.planes[QK_PLANE_ORDER]);
}

}  // namespace qk_io
