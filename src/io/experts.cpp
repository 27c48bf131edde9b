// Finds the experts of mixtures: layers X.experts.N.Y that differ in N alone, and layers that hold
// all experts.
#include "experts.hpp"

#include <stdio.h>
#include <stdlib.h>

namespace qk_io {
namespace {

constexpr char kPart[] = "experts.";
constexpr size_t kMostDigits = 9;

// "X.experts." and ".Y" around the number of "X.experts.N.Y".
struct Expert {
    const Layer *layer;
    const char *rest;  // ".Y"; NULL: the layer is no single expert
    size_t head;       // bytes of "X.experts."
    int64_t number;
};

// One way to write a number: two layers never are the same expert.
bool read_number(const char *at, Expert *expert) {
    size_t digits = 0;
    int64_t number = 0;
    for (; at[digits] >= '0' && at[digits] <= '9'; ++digits) {
        if (digits == kMostDigits) return false;
        number = number * 10 + (at[digits] - '0');
    }
    if (digits == 0 || (digits > 1 && at[0] == '0') || at[digits] != '.') return false;
    expert->rest = at + digits;
    expert->number = number;
    return true;
}

// By the last "experts.N." of the name.
Expert expert_of(const Layer &layer) {
    constexpr size_t kLength = sizeof kPart - 1;
    Expert found = {&layer, nullptr, 0, 0};
    for (const char *at = layer.name; *at != 0; ++at) {
        const bool starts = at == layer.name || at[-1] == '.';
        if (!starts || strncmp(at, kPart, kLength) != 0) continue;
        if (read_number(at + kLength, &found)) {
            found.head = static_cast<size_t>(at - layer.name) + kLength;
        }
    }
    return found;
}

int compare_projection(const Expert &x, const Expert &y) {
    const size_t shared = x.head < y.head ? x.head : y.head;
    const int head = memcmp(x.layer->name, y.layer->name, shared);
    if (head != 0) return head;
    if (x.head != y.head) return x.head < y.head ? -1 : 1;
    return strcmp(x.rest, y.rest);
}

int by_projection(const void *a, const void *b) {
    const Expert &x = *static_cast<const Expert *>(a), &y = *static_cast<const Expert *>(b);
    const int order = compare_projection(x, y);
    if (order != 0) return order;
    if (x.number != y.number) return x.number < y.number ? -1 : 1;
    return y.layer->dialect - x.layer->dialect;  // before a dense leftover of the same name
}

int by_name(const void *a, const void *b) {
    return strcmp((*static_cast<ExpertLayer *const *>(a))->layer.name,
                  (*static_cast<ExpertLayer *const *>(b))->layer.name);
}

// ---- what experts have in common ----

struct FormText {
    char text[128];
};

// "AutoAWQ gemm u4 [768,2048] in groups of 128 with f16 scales"
FormText form_text(const Layer &layer) {
    const qk_tensor_desc &d = layer.desc;
    const int columns = d.rank - 1;
    FormText form = {};
    int at = snprintf(form.text, sizeof form.text, "%.32s %s [%lld,%lld]", layer.method,
                      format_name(d.format), static_cast<long long>(d.shape[columns - 1]),
                      static_cast<long long>(d.shape[columns]));
    if (d.group_size == 0) return form;
    char groups[32] = "rows";
    if (d.group_size > 0) snprintf(groups, sizeof groups, "%d", static_cast<int>(d.group_size));
    snprintf(form.text + at, sizeof form.text - static_cast<size_t>(at),
             " in groups of %s with %s scales", groups, format_name(d.scale_format));
    return form;
}

bool same_bytes(const Layer &a, const Layer &b, qk_plane plane) {
    return a.plane_bytes[plane] == b.plane_bytes[plane] &&
           (a.plane_bytes[plane] == 0 || a.planes[plane] == b.planes[plane] ||
            memcmp(a.planes[plane], b.planes[plane], a.plane_bytes[plane]) == 0);
}

bool is_flat(const qk_tensor_desc &d) {
    if (d.group_size <= 0) return false;
    if (d.grouping != QK_GROUPING_DEFAULT) return d.grouping == QK_GROUPING_FLAT;
    return d.layout == QK_LAYOUT_ROW_HIGH || d.format == QK_FORMAT_LUT8;
}

// Where an expert's bytes do not follow those of the one before, another layout takes its place.
qk_layout layout_of_experts(const qk_tensor_desc &d, int64_t n) {
    const bool zeros = d.format == QK_FORMAT_U4_AFFINE && (d.flags & QK_TENSOR_SYMMETRIC) == 0;
    const bool apart = d.layout == QK_LAYOUT_AWQ_GEMM || d.layout == QK_LAYOUT_GPTQ ||
                       d.layout == QK_LAYOUT_GPTQ_V1 ||
                       (d.layout == QK_LAYOUT_WORD && zeros && n % 8 != 0);
    return apart ? QK_LAYOUT_ROW : d.layout;
}

qk_status describe(ExpertLayer *experts, const Expert *first, qk_io_message *message) {
    const Layer &one = *experts->expert[0];
    for (int64_t e = 0; e < experts->count; ++e) {
        char name[32], last[32];
        snprintf(name, sizeof name, "expert %lld", static_cast<long long>(e));
        snprintf(last, sizeof last, "expert %lld", static_cast<long long>(first[e].number));
        if (first[e].number != e) {
            return fail(message, QK_ERROR_CORRUPT, "%s is missing; there is an %s", name, last);
        }
        const Layer &layer = *experts->expert[e];
        if (layer.status != QK_OK) {
            return fail(message, layer.status, "%s: %.450s", name, layer.reason);
        }
        QK_IO_TRY(check_alike(layer, name, one, "expert 0", message));
        if (layer.desc.shape[0] != one.desc.shape[0]) {
            return fail(message, QK_ERROR_CORRUPT, "%s is %s, expert 0 %s", name,
                        form_text(layer).text, form_text(one).text);
        }
    }
    return describe_experts(one, experts->count, 1, &experts->layer.desc, message);
}

// ---- the list ----

qk_status add(qk_checkpoint *c, ExpertLayer *experts, qk_status status, const qk_io_message &why,
              qk_io_message *message) {
    Layer &layer = experts->layer;
    layer.status = status;
    layer.reason = c->arena.copy(&c->memory, why.text, strlen(why.text));
    if (status != QK_OK) {
        layer.desc = qk_tensor_desc{};
        layer.desc.struct_size = sizeof layer.desc;
        layer.desc.shape[0] = experts->count;
    }
    if (layer.name == nullptr || layer.reason == nullptr || !c->experts.push(&c->memory, experts)) {
        return out_of_memory(message);
    }
    return QK_OK;
}

ExpertLayer *new_experts(qk_checkpoint *c, int64_t layers) {
    const size_t list = static_cast<size_t>(layers) * sizeof(const Layer *);
    char *memory = static_cast<char *>(c->arena.take(&c->memory, sizeof(ExpertLayer) + list));
    if (memory == nullptr) return nullptr;
    ExpertLayer *experts = reinterpret_cast<ExpertLayer *>(memory);
    *experts = ExpertLayer{};
    experts->expert = reinterpret_cast<const Layer **>(memory + sizeof(ExpertLayer));
    experts->count = layers;
    return experts;
}

// Experts first .. first + count, which differ in their number alone.
qk_status add_run(qk_checkpoint *c, const Expert *first, int64_t count, qk_io_message *message) {
    ExpertLayer *experts = new_experts(c, count);
    if (experts == nullptr) return out_of_memory(message);
    const Layer **list = const_cast<const Layer **>(experts->expert);
    int64_t bytes = 0;
    for (int64_t e = 0; e < count; ++e) {
        list[e] = first[e].layer;
        bytes += first[e].layer->bytes;
    }
    Layer &layer = experts->layer;
    layer = *list[0];
    layer.bytes = bytes;
    char name[kMaxNameBytes + 2];
    snprintf(name, sizeof name, "%.*s*%s", static_cast<int>(first->head), first->layer->name,
             first->rest);
    layer.name = c->arena.copy(&c->memory, name, strlen(name));
    qk_io_message why = {};
    const qk_status status = describe(experts, first, &why);
    return add(c, experts, status, why, message);
}

// The tensor of a layer whose experts are the first of its dimensions; NULL: of another layer.
const Tensor *tensor_of_experts(const qk_checkpoint *c, const Layer &layer) {
    const Module module = {c, layer.name, nullptr, nullptr};
    if (layer.dialect == QK_DIALECT_GPT_OSS) return sibling(module, "_blocks");
    if (layer.dialect != QK_DIALECT_GGUF && layer.dialect != QK_DIALECT_UNKNOWN) return nullptr;
    const Tensor *weight = sibling(module, ".weight");
    if (weight == nullptr) weight = sibling(module, "");
    return weight != nullptr && weight->rank == 3 ? weight : nullptr;
}

qk_status add_one(qk_checkpoint *c, const Layer &layer, qk_io_message *message) {
    const Tensor *tensor = tensor_of_experts(c, layer);
    if (tensor == nullptr || tensor->rank < 1) return QK_OK;
    return add_whole(c, &layer, tensor->shape[0], false, message);
}

qk_status add_all(qk_checkpoint *c, Array<Expert> *found, qk_io_message *message) {
    for (int64_t i = 0; i < c->layers.count; ++i) {
        const Expert expert = expert_of(*c->layers.items[i]);
        if (expert.rest == nullptr) {
            QK_IO_TRY(add_one(c, *expert.layer, message));
        } else if (!found->push(&c->memory, expert)) {
            return out_of_memory(message);
        }
    }
    if (found->count > 1) {
        qsort(found->items, static_cast<size_t>(found->count), sizeof(Expert), by_projection);
    }
    for (int64_t i = 0, count = 0; i < found->count; i += count) {
        count = 1;
        Expert *const run = found->items + i;
        int64_t next = i + 1;  // a dense leftover of the same name is passed over
        for (; next < found->count && compare_projection(run[0], found->items[next]) == 0; ++next) {
            if (found->items[next].number == run[count - 1].number) continue;
            run[count++] = found->items[next];
        }
        QK_IO_TRY(add_run(c, run, count, message));
        count = next - i;
    }
    return QK_OK;
}

}  // namespace

const char *format_name(qk_format format) {
    static constexpr struct {
        qk_format format;
        const char *name;
    } kNames[] = {
        {QK_FORMAT_F32, "f32"},       {QK_FORMAT_F16, "f16"},           {QK_FORMAT_BF16, "bf16"},
        {QK_FORMAT_I8, "i8"},         {QK_FORMAT_U4_AFFINE, "u4"},      {QK_FORMAT_NF4, "nf4"},
        {QK_FORMAT_FP4_BNB, "fp4"},   {QK_FORMAT_FP4_E2M1, "e2m1"},     {QK_FORMAT_LUT4, "lut4"},
        {QK_FORMAT_IQ4_NL, "iq4_nl"}, {QK_FORMAT_FP4_GGML, "fp4_ggml"}, {QK_FORMAT_LUT8, "lut8"},
        {QK_FORMAT_S8, "s8"},         {QK_FORMAT_E4M3, "e4m3"},         {QK_FORMAT_E8M0, "e8m0"}};
    for (const auto &row : kNames) {
        if (row.format == format) return row.name;
    }
    return "?";
}

qk_status check_alike(const Layer &layer, const char *name, const Layer &other,
                      const char *other_name, qk_io_message *message) {
    const qk_tensor_desc &a = layer.desc, &b = other.desc;
    const int64_t columns = a.shape[a.rank - 1], other_columns = b.shape[b.rank - 1];
    if (a.format != b.format || a.layout != b.layout || a.group_size != b.group_size ||
        a.scale_format != b.scale_format || columns != other_columns) {
        return fail(message, QK_ERROR_UNSUPPORTED, "%s is %s, %s %s; one tensor is of one kind",
                    name, form_text(layer).text, other_name, form_text(other).text);
    }
    if (((a.flags ^ b.flags) & QK_TENSOR_ORDERED) != 0 ||
        !same_bytes(layer, other, QK_PLANE_ORDER)) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "%s has another order of columns (act-order) than %s; one tensor has one", name,
                    other_name);
    }
    if (!same_bytes(layer, other, QK_PLANE_TABLE)) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "%s has another table of codes than %s; one tensor has one", name, other_name);
    }
    if (a.flags != b.flags || a.grouping != b.grouping ||
        a.scale_group_size != b.scale_group_size) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "%s and %s differ in how zeros, groups or global scales are stored", name,
                    other_name);
    }
    const Tensor *bias = layer.bias, *other_bias = other.bias;
    if (float_format(bias) == float_format(other_bias)) return QK_OK;
    return fail(message, QK_ERROR_UNSUPPORTED, "the bias of %s is %s, that of %s %s", name,
                shape_text(bias).text, other_name, shape_text(other_bias).text);
}

qk_status describe_experts(const Layer &one, int64_t count, int64_t parts, qk_tensor_desc *desc,
                           qk_io_message *message) {
    const int64_t n = one.desc.shape[one.desc.rank - 2], k = one.desc.shape[one.desc.rank - 1];
    qk_tensor_desc d = one.desc;
    const bool high = d.layout == QK_LAYOUT_ROW_HIGH && n * k % 2 != 0;
    if (high || (is_flat(d) && n * k % d.group_size != 0)) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "experts of [%lld,%lld] share a byte or a group of %d where they follow one "
                    "another",
                    static_cast<long long>(n), static_cast<long long>(k),
                    static_cast<int>(d.group_size));
    }
    d.layout = layout_of_experts(d, n);
    d.rank = 3;
    d.shape[0] = count;
    d.shape[1] = n * parts;
    d.shape[2] = k;
    if ((d.flags & QK_TENSOR_GLOBAL) != 0) d.flags ^= QK_TENSOR_GLOBAL | QK_TENSOR_GLOBAL_ROWS;
    if (d.scale_format == QK_FORMAT_LUT8) {  // whose offset is one a tensor
        d.scale_format = QK_FORMAT_F32;
        d.scale_group_size = 0;
    }
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        size_t bytes = 0;
        if (qk_tensor_plane_bytes(&d, plane, &bytes) == QK_OK) continue;
        return fail(message, QK_ERROR_UNSUPPORTED, "no tensor of qk is %lld experts of [%lld,%lld]",
                    static_cast<long long>(count), static_cast<long long>(n * parts),
                    static_cast<long long>(k));
    }
    *desc = d;
    return QK_OK;
}

qk_status add_whole(qk_checkpoint *c, const Layer *layer, int64_t count, bool transposed,
                    qk_io_message *message) {
    ExpertLayer *experts = new_experts(c, 1);
    if (experts == nullptr) return out_of_memory(message);
    const_cast<const Layer **>(experts->expert)[0] = layer;
    experts->count = count;
    experts->is_one = true;
    experts->is_transposed = transposed;
    experts->layer = *layer;
    qk_tensor_desc &d = experts->layer.desc;
    if (d.rank == 2) {  // rows of all
        d.rank = 3;
        d.shape[2] = d.shape[1];
        d.shape[1] = d.shape[0] / experts->count;
        d.shape[0] = experts->count;
    }
    qk_io_message why = {};
    snprintf(why.text, sizeof why.text, "%s", layer->reason);
    return add(c, experts, layer->status, why, message);
}

qk_status find_experts(qk_checkpoint *c, qk_io_message *message) {
    Array<Expert> found = {};
    qk_status status = add_all(c, &found, message);
    found.release(&c->memory);
    if (status == QK_OK) status = add_fused(c, message);
    if (status == QK_OK && c->experts.count > 1) {
        qsort(c->experts.items, static_cast<size_t>(c->experts.count), sizeof(ExpertLayer *),
              by_name);
    }
    return status;
}

const ExpertLayer *find_expert_layer(const qk_checkpoint *c, const char *name) {
    int64_t low = 0, high = c->experts.count;
    while (low < high) {  // the first that is not before name
        const int64_t middle = low + (high - low) / 2;
        if (strcmp(c->experts.items[middle]->layer.name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == c->experts.count || !same(c->experts.items[low]->layer.name, name)) return nullptr;
    return c->experts.items[low];
}

}  // namespace qk_io
