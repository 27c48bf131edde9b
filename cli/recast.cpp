#include "recast.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <set>

#include "target.hpp"

namespace {

// A weight on its way: planes in memory, and what they are.
struct Planes {
    const qk_layer &layer;
    qk_tensor_desc desc;
    std::vector<char> plane[QK_PLANE_COUNT];

    uint8_t &byte(qk_plane which, size_t at) {
        return reinterpret_cast<uint8_t *>(plane[which].data())[at];
    }
    float f32(qk_plane which, size_t at) const {
        float value;
        std::memcpy(&value, plane[which].data() + at * sizeof value, sizeof value);
        return value;
    }
};

std::vector<char> bytes_of(const std::vector<float> &values) {
    std::vector<char> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

std::vector<char> download(const Context &context, const qk_tensor *tensor,
                           const qk_tensor_desc &desc, qk_plane plane) {
    size_t bytes = 0;
    check(qk_tensor_plane_bytes(&desc, plane, &bytes), "tensor", nullptr);
    std::vector<char> content(bytes);
    if (bytes == 0) return content;
    check(qk_tensor_download(context.get(), tensor, plane, content.data(), bytes), "tensor",
          qk_context_error(context.get()));
    return content;
}

// Where planes are separate, and zeros of 4 bits have words of their own.
qk_layout work_layout(const qk_tensor_desc &desc) {
    if (desc.format == QK_FORMAT_U4_AFFINE) return QK_LAYOUT_WORD;
    return desc.layout == QK_LAYOUT_ROW_HIGH ? QK_LAYOUT_ROW_HIGH : QK_LAYOUT_ROW;
}

Planes load(Sources *sources, const Job &job) {
    const qk_layer &layer = job.layer;
    const Context &context = sources->context();
    const Tensor weight = sources->of(job);
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    check(qk_tensor_describe(weight.get(), &desc), layer.name, nullptr);
    desc.layout = work_layout(desc);
    desc.flags &= ~QK_TENSOR_READ_ONLY;
    if (desc.format == QK_FORMAT_U4_AFFINE) desc.flags &= ~QK_TENSOR_SYMMETRIC;
    qk_tensor *made = nullptr;
    check(qk_tensor_create(context.get(), &desc, &made), layer.name,
          qk_context_error(context.get()));
    const Tensor tensor(made);
    check(qk_repack(context.get(), weight.get(), made), layer.name,
          qk_context_error(context.get()));
    Planes planes = {layer, desc, {}};
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        planes.plane[plane] = download(context, made, desc, plane);
    }
    join_rows(&planes.desc);
    return planes;
}

Tensor store(const Context &context, Planes *planes, const qk_tensor_desc &wanted) {
    void *pointers[QK_PLANE_COUNT] = {};
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        if (!planes->plane[plane].empty()) pointers[plane] = planes->plane[plane].data();
    }
    qk_tensor *wrapped = nullptr, *made = nullptr;
    check(qk_tensor_wrap(context.get(), &planes->desc, pointers, QK_PLANE_COUNT, &wrapped),
          planes->layer.name, qk_context_error(context.get()));
    const Tensor from(wrapped);
    check(qk_tensor_create(context.get(), &wanted, &made), planes->layer.name,
          qk_context_error(context.get()));
    Tensor to(made);
    check(qk_repack(context.get(), wrapped, made), planes->layer.name,
          qk_context_error(context.get()));
    return to;
}

/* ---- scales -------------------------------------------------------------------------------- */

size_t element_size(qk_format format) {
    const bool byte = format == QK_FORMAT_E8M0 || format == QK_FORMAT_E4M3 ||
                      format == QK_FORMAT_LUT8 || format == QK_FORMAT_I8;
    return byte ? 1 : static_cast<size_t>(element_bytes(format));
}

size_t groups_of(const Planes &planes) {
    return planes.plane[QK_PLANE_SCALE].size() / element_size(planes.desc.scale_format);
}

// As the value that every weight of the group is multiplied by; formats.md, "Scale kinds".
std::vector<float> scales_of(const Planes &planes) {
    const qk_format format = planes.desc.scale_format;
    const char *bytes = planes.plane[QK_PLANE_SCALE].data();
    const size_t per =
        planes.desc.scale_group_size == 0 ? 256 : static_cast<size_t>(planes.desc.scale_group_size);
    std::vector<float> scales(groups_of(planes));
    for (size_t i = 0; i < scales.size(); ++i) {
        const char *at = bytes + i * element_size(format);
        const auto code = static_cast<uint8_t>(*at);
        if (format == QK_FORMAT_LUT8) {
            const float product =
                planes.f32(QK_PLANE_SCALE_CODE, code) * planes.f32(QK_PLANE_SCALE2, i / per);
            scales[i] = product + planes.f32(QK_PLANE_SCALE_BIAS, 0);
        } else if (format == QK_FORMAT_I8) {
            const float number = static_cast<float>(static_cast<int8_t>(code));
            scales[i] = number * planes.f32(QK_PLANE_SCALE2, i / per);
        } else if (format == QK_FORMAT_E8M0) {
            scales[i] = code == 255 ? NAN : std::ldexp(1.0f, code - 127);
        } else {
            scales[i] = static_cast<float>(float_value(format, at));
        }
    }
    return scales;
}

bool same_number(float a, float b) {
    return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
}

// The 16 bits of a number that they hold; false: they do not.
bool narrow(qk_format format, float value, uint16_t *half) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (format == QK_FORMAT_BF16) {
        *half = static_cast<uint16_t>(bits >> 16);
    } else {  // a multiple of 2^-24 of at most 11 significant bits, or infinite
        const float magnitude = std::fabs(value);
        int exponent = 0;
        std::frexp(magnitude, &exponent);
        const int unit = std::max(exponent - 11, -24);
        uint32_t code = 0x7c00;
        if (std::isnan(value)) {
            code = 0x7e00;
        } else if (magnitude < 65536.0f) {
            const auto units = static_cast<uint32_t>(std::ldexp(magnitude, -unit));
            code = unit == -24 ? units : units + (static_cast<uint32_t>(unit + 24) << 10);
        }
        *half = static_cast<uint16_t>(code | (bits >> 16 & 0x8000));
    }
    return same_number(static_cast<float>(float_value(format, half)), value);
}

void convert_scales(qk_format wanted, Planes *planes) {
    if (planes->desc.scale_format == wanted) return;
    const std::vector<float> scales = scales_of(*planes);
    std::vector<char> bytes = bytes_of(scales);
    if (wanted != QK_FORMAT_F32) {
        bytes.resize(scales.size() * 2);
        for (size_t i = 0; i < scales.size(); ++i) {
            uint16_t half = 0;
            if (!narrow(wanted, scales[i], &half)) {
                char number[32];
                std::snprintf(number, sizeof number, "%.9g", static_cast<double>(scales[i]));
                cannot_hold(planes->layer, std::string("its scales are ") +
                                               format_name(planes->desc.scale_format) +
                                               ", and one of them, " + number + ", is no " +
                                               format_name(wanted) + " number");
            }
            std::memcpy(&bytes[2 * i], &half, sizeof half);
        }
    }
    planes->plane[QK_PLANE_SCALE] = std::move(bytes);
    for (const qk_plane second : {QK_PLANE_SCALE2, QK_PLANE_SCALE_CODE, QK_PLANE_SCALE_BIAS}) {
        planes->plane[second].clear();
    }
    planes->desc.scale_format = wanted;
    planes->desc.scale_group_size = 0;
}

// Smaller groups repeat the scale of the one that they were cut from.
void cut_groups(int32_t group, Planes *planes) {
    const int64_t k = planes->desc.shape[1];
    const int32_t own = planes->desc.group_size;
    if (own == group) return;
    planes->desc.group_size = group;
    const bool was_row = own == QK_GROUP_ROW || own >= k;
    if (group == QK_GROUP_ROW) return;  // one group a row as before
    const size_t repeat = static_cast<size_t>((was_row ? k : own) / group);
    const size_t size = element_size(planes->desc.scale_format);
    const std::vector<char> &scales = planes->plane[QK_PLANE_SCALE];
    std::vector<char> repeated;
    repeated.reserve(scales.size() * repeat);
    for (size_t at = 0; at < scales.size(); at += size) {
        for (size_t i = 0; i < repeat; ++i) {
            repeated.insert(repeated.end(), &scales[at], &scales[at] + size);
        }
    }
    planes->plane[QK_PLANE_SCALE] = std::move(repeated);
}

// A table of at most 256 different scales, second scales of 1 and an offset of 0 give all of them.
void nest_scales(Planes *planes) {
    if (planes->desc.scale_format == QK_FORMAT_LUT8) return;
    const std::vector<float> scales = scales_of(*planes);
    std::map<float, uint8_t> codes;
    for (const float scale : scales) {
        if (std::isnan(scale) || std::signbit(scale)) {
            cannot_hold(planes->layer, "a scale is negative or NaN, which nested scales are not");
        }
        codes.emplace(scale, uint8_t{0});
        if (codes.size() > 256) {
            cannot_hold(planes->layer,
                        "it has more than 256 different scales, which the one byte of a nested "
                        "scale cannot tell apart");
        }
    }
    std::vector<float> table;
    for (auto &[scale, code] : codes) {
        code = static_cast<uint8_t>(table.size());
        table.push_back(scale);
    }
    table.resize(256);
    std::vector<char> &bytes = planes->plane[QK_PLANE_SCALE];
    bytes.resize(scales.size());
    for (size_t i = 0; i < scales.size(); ++i) bytes[i] = static_cast<char>(codes[scales[i]]);
    planes->plane[QK_PLANE_SCALE_CODE] = bytes_of(table);
    planes->plane[QK_PLANE_SCALE2] =
        bytes_of(std::vector<float>((scales.size() + 255) / 256, 1.0f));
    planes->plane[QK_PLANE_SCALE_BIAS] = bytes_of({0.0f});
    planes->desc.scale_format = QK_FORMAT_LUT8;
    planes->desc.scale_group_size = 0;
}

/* ---- FP4 ----------------------------------------------------------------------------------- */

// ggml's E2M1 is the same but for two codes: its 8 is 0, not -0, and its scale 255 a number, not
// NaN.
void change_mxfp4(qk_format wanted, Planes *planes) {
    if (planes->desc.format == wanted) return;
    const bool to_ggml = wanted == QK_FORMAT_FP4_GGML;
    for (const char scale : planes->plane[QK_PLANE_SCALE]) {
        if (static_cast<uint8_t>(scale) != 255) continue;
        cannot_hold(planes->layer, to_ggml ? "a scale is NaN, and 2^127 in ggml's MXFP4"
                                           : "a scale is 2^127 (255), and NaN in OCP's MXFP4");
    }
    int64_t minus_zeros = 0;
    for (size_t i = 0; i < planes->plane[QK_PLANE_DATA].size(); ++i) {
        uint8_t &codes = planes->byte(QK_PLANE_DATA, i);
        const bool low = (codes & 15) == 8, high = codes >> 4 == 8;
        minus_zeros += low + high;
        if (low) codes &= 0xf0;
        if (high) codes &= 0x0f;
    }
    if (to_ggml && minus_zeros > 0) {
        cannot_hold(planes->layer, std::to_string(minus_zeros) + " of its weights are -0, and " +
                                       "ggml's MXFP4 has no -0");
    }
    planes->desc.format = wanted;
}

float e4m3_value(uint8_t code) {
    const int exponent = code >> 3 & 15, fraction = code & 7;
    if ((code & 127) == 127) return NAN;
    const float magnitude = exponent == 0
                                ? std::ldexp(static_cast<float>(fraction), -9)
                                : std::ldexp(static_cast<float>(8 + fraction), exponent - 10);
    return code < 128 ? magnitude : -magnitude;
}

// Scales that a number g gives, multiplied or divided by it.
float with_global(float scale, float g, bool divides) { return divides ? scale / g : scale * g; }

// The number that divides as `global` multiplies, or the other way round, for every scale there is.
void turn_global(uint32_t wanted, Planes *planes) {
    const bool divides = (planes->desc.flags & QK_TENSOR_GLOBAL_DIVIDES) != 0;
    if (divides == ((wanted & QK_TENSOR_GLOBAL_DIVIDES) != 0)) return;
    std::set<uint8_t> codes;
    for (const char code : planes->plane[QK_PLANE_SCALE]) codes.insert(static_cast<uint8_t>(code));
    const float own = planes->f32(QK_PLANE_GLOBAL, 0);
    float candidate = 1 / own;
    for (int i = 0; i < 4; ++i) candidate = std::nextafter(candidate, -INFINITY);
    size_t fewest = codes.size() + 1;
    for (int i = 0; i < 9 && fewest > 0; ++i, candidate = std::nextafter(candidate, INFINITY)) {
        size_t changed = 0;
        for (const uint8_t code : codes) {
            const float scale = e4m3_value(code);
            changed += !same_number(with_global(scale, own, divides),
                                    with_global(scale, candidate, !divides));
        }
        if (changed == 0) {
            planes->plane[QK_PLANE_GLOBAL] = bytes_of({candidate});
            planes->desc.flags ^= QK_TENSOR_GLOBAL_DIVIDES;
            return;
        }
        fewest = std::min(fewest, changed);
    }
    char number[32];
    std::snprintf(number, sizeof number, "%.9g", static_cast<double>(own));
    cannot_hold(planes->layer, std::string("its scales are ") +
                                   (divides ? "divided" : "multiplied") + " by " + number +
                                   "; any number that " + (divides ? "multiplies" : "divides") +
                                   " instead changes at least " + std::to_string(fewest) +
                                   " of its " + std::to_string(codes.size()) + " different scales");
}

/* ---- integers ------------------------------------------------------------------------------ */

// Minima of 0, in F32 as the scales are.
void give_minima(Planes *planes) {
    planes->plane[QK_PLANE_ZERO].assign(planes->plane[QK_PLANE_SCALE].size(), 0);
    planes->desc.flags |= QK_TENSOR_FLOAT_MIN;
}

void order_as_stored(Planes *planes) {
    std::vector<int32_t> order(static_cast<size_t>(planes->desc.shape[1]));
    std::iota(order.begin(), order.end(), 0);
    std::vector<char> &plane = planes->plane[QK_PLANE_ORDER];
    plane.resize(order.size() * sizeof(int32_t));
    std::memcpy(plane.data(), order.data(), plane.size());
    planes->desc.flags |= QK_TENSOR_ORDERED;
}

// WORD packs the zeros of eight rows in a word: [ceil(n/8), groups].
Zeros count_zeros(const Planes &planes) {
    const std::vector<char> &plane = planes.plane[QK_PLANE_ZERO];
    const int64_t rows = planes.desc.shape[0], lines = (rows + 7) / 8;
    const int64_t line = static_cast<int64_t>(plane.size()) / lines;
    Zeros zeros;
    for (int64_t row = 0; row < rows; ++row) {
        for (int64_t at = row / 8 * line + row % 8 / 2; at < (row / 8 + 1) * line; at += 4) {
            const int code = plane[static_cast<size_t>(at)] >> (row % 2 * 4) & 15;
            zeros.all_eight = zeros.all_eight && code == 8;
            zeros.any_zero = zeros.any_zero || code == 0;
        }
    }
    return zeros;
}

}  // namespace

Tensor Sources::of(const Job &job) {
    const char *name = job.whole == nullptr ? job.layer.name : job.whole;
    if (job.whole == nullptr) {
        return load_layer(checkpoint_, context_, name, QK_LOAD_IN_PLACE).weight;
    }
    if (!experts_ || whole_ != name) {
        whole_ = name;
        experts_.emplace(context_, whole_,
                         load_layer(checkpoint_, context_, name, QK_LOAD_IN_PLACE).weight,
                         job.layer.desc.shape[0] * job.layer.desc.shape[1]);
    }
    return experts_->tensor(experts_->block(job.first));
}

Zeros zeros_of(Sources *sources, const Job &job) { return count_zeros(load(sources, job)); }

Tensor recast(Sources *sources, const Job &job) {
    Planes planes = load(sources, job);
    const Kind kind = kind_of(job.desc);
    if (kind == Kind::kMxfp4) change_mxfp4(job.desc.format, &planes);
    if (kind == Kind::kNvfp4) turn_global(job.desc.flags, &planes);
    if (kind == Kind::kTable && job.desc.scale_format == QK_FORMAT_LUT8) {
        nest_scales(&planes);
    } else {
        convert_scales(job.desc.scale_format, &planes);
    }
    if (kind == Kind::kInt4 || kind == Kind::kInt8) cut_groups(job.desc.group_size, &planes);
    if (kind == Kind::kInt4 && (job.desc.flags & QK_TENSOR_SYMMETRIC) != 0) {
        planes.plane[QK_PLANE_ZERO].clear();
        planes.desc.flags |= QK_TENSOR_SYMMETRIC;
    }
    const uint32_t missing = job.desc.flags & ~planes.desc.flags;
    if ((missing & QK_TENSOR_ORDERED) != 0) order_as_stored(&planes);
    if ((missing & QK_TENSOR_FLOAT_MIN) != 0) give_minima(&planes);
    return store(sources->context(), &planes, job.desc);
}
