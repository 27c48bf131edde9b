// Weights to bytes and back, through the lists of owners.
#include <cstring>

#include "reference.hpp"

namespace reference {
namespace {

std::vector<uint8_t> float_bytes(const std::vector<float> &values) {
    std::vector<uint8_t> bytes(values.size() * 4);
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

std::vector<float> bytes_float(const std::vector<uint8_t> &bytes) {
    std::vector<float> values(bytes.size() / 4);
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * 4);
    return values;
}

std::vector<uint8_t> nibbles_to_bytes(const std::vector<int64_t> &owners,
                                      const std::vector<uint8_t> &codes, uint32_t padding) {
    std::vector<uint8_t> bytes(owners.size() / 2);
    for (size_t i = 0; i < owners.size(); ++i) {
        const uint32_t code = owners[i] == kPadding ? padding % 16 : codes[size_t(owners[i])];
        bytes[i / 2] = uint8_t(bytes[i / 2] | (i % 2 == 0 ? code : code * 16));
    }
    return bytes;
}

std::vector<uint8_t> bytes_to_nibbles(const std::vector<int64_t> &owners,
                                      const std::vector<uint8_t> &bytes, size_t count) {
    std::vector<uint8_t> codes(count);
    for (size_t i = 0; i < owners.size(); ++i) {
        if (owners[i] == kPadding) continue;
        codes[size_t(owners[i])] = i % 2 == 0 ? bytes[i / 2] % 16 : bytes[i / 2] / 16;
    }
    return codes;
}

// GPTQ files of the first version store a zero one lower, modulo 16.
std::vector<uint8_t> shifted(const Spec &spec, std::vector<uint8_t> zeros, int by) {
    if (spec.layout != Layout::gptq_v1) return zeros;
    for (uint8_t &zero : zeros) zero = uint8_t((zero + 16 + by) % 16);
    return zeros;
}

int scale_bytes(const Spec &spec) { return spec.nested ? 1 : bytes_of(spec.scale_format); }

std::vector<uint8_t> scales_to_bytes(const Spec &spec, const Groups &groups,
                                     const std::vector<uint32_t> &scales, uint32_t padding) {
    std::vector<uint8_t> bytes;
    for (const int64_t owner : scale_owners(spec, groups)) {
        const uint32_t bits = owner == kPadding ? padding : scales[size_t(owner)];
        for (int i = 0; i < scale_bytes(spec); ++i) bytes.push_back(uint8_t(bits >> 8 * i));
    }
    return bytes;
}

std::vector<uint32_t> bytes_to_scales(const Spec &spec, const Groups &groups,
                                      const std::vector<uint8_t> &bytes) {
    std::vector<uint32_t> scales(size_t(groups.count));
    size_t at = 0;
    for (const int64_t owner : scale_owners(spec, groups)) {
        uint32_t bits = 0;
        for (int i = 0; i < scale_bytes(spec); ++i) bits |= uint32_t(bytes[at++]) << 8 * i;
        if (owner != kPadding) scales[size_t(owner)] = bits;
    }
    return scales;
}

}  // namespace

Planes pack(const Weight &weight, uint32_t padding) {
    const Spec &spec = weight.spec;
    const Groups groups = groups_of(spec);
    Planes planes;
    if (record_of(spec.layout) != nullptr) {
        planes.data = pack_records(weight);
        return planes;
    }
    planes.data = eight_bit(spec.format)
                      ? weight.codes
                      : nibbles_to_bytes(code_owners(spec), weight.codes, padding);
    planes.scale = scales_to_bytes(spec, groups, weight.scales, padding);
    planes.zero = spec.float_min ? scales_to_bytes(spec, groups, weight.minima, padding)
                                 : nibbles_to_bytes(zero_owners(spec, groups),
                                                    shifted(spec, weight.zeros, -1), padding);
    planes.second_scale = float_bytes(weight.second_scales);
    planes.min2 = float_bytes(weight.second_minima);
    planes.scale_code = float_bytes(weight.scale_code);
    if (spec.nested) planes.scale_bias = float_bytes({weight.scale_bias});
    planes.table = float_bytes(weight.table);
    planes.global = float_bytes(weight.global);
    for (const int32_t column : weight.order) {
        for (int i = 0; i < 4; ++i) planes.order.push_back(uint8_t(uint32_t(column) >> 8 * i));
    }
    return planes;
}

Weight unpack(const Spec &spec, const Planes &planes) {
    const Groups groups = groups_of(spec);
    Weight weight;
    weight.spec = spec;
    weight.codes = eight_bit(spec.format)
                       ? planes.data
                       : bytes_to_nibbles(code_owners(spec), planes.data, size_t(spec.n * spec.k));
    weight.scales = bytes_to_scales(spec, groups, planes.scale);
    if (spec.float_min) weight.minima = bytes_to_scales(spec, groups, planes.zero);
    if (spec.zeros) {
        weight.zeros = shifted(
            spec, bytes_to_nibbles(zero_owners(spec, groups), planes.zero, size_t(groups.count)),
            1);
    }
    weight.second_scales = bytes_float(planes.second_scale);
    weight.second_minima = bytes_float(planes.min2);
    weight.scale_code = bytes_float(planes.scale_code);
    if (spec.nested) weight.scale_bias = bytes_float(planes.scale_bias)[0];
    weight.table = bytes_float(planes.table);
    weight.global = bytes_float(planes.global);
    for (size_t i = 0; i < planes.order.size(); i += 4) {
        uint32_t column = 0;
        for (size_t j = 0; j < 4; ++j) column |= uint32_t(planes.order[i + j]) << 8 * j;
        weight.order.push_back(int32_t(column));
    }
    return weight;
}

}  // namespace reference
