#include "layer_error.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <system_error>
#include <thread>

namespace {

constexpr int64_t kLanes = 8, kPiece = 512;

float as_float(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

uint32_t as_bits(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Without branches, so that the compiler makes vectors of it. Multiplying moves the exponent and
// makes subnormals normal.
float from_f16(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
    const float magnitude = as_float(static_cast<uint32_t>(half & 0x7fff) << 13) * 0x1p112f;
    const uint32_t not_finite = magnitude >= 0x1p16f ? 0x7f800000u : 0;
    return as_float(as_bits(magnitude) | not_finite | sign);
}

float from_bf16(uint16_t half) { return as_float(static_cast<uint32_t>(half) << 16); }

template <class Read>
void widen(const char *halves, int64_t count, float *values, Read read) {
    for (int64_t i = 0; i < count; ++i) {
        uint16_t half;
        std::memcpy(&half, halves + 2 * i, sizeof half);
        values[i] = read(half);
    }
}

// Some values from the place `at` on as floats, filled up with zeros, which change no sum.
void read_piece(const Values &from, int64_t at, int64_t count, float *values) {
    const char *data = static_cast<const char *>(from.data) + at * element_bytes(from.format);
    std::fill(values + count, values + kPiece, 0.0f);
    if (from.format == QK_FORMAT_F32) {
        std::memcpy(values, data, static_cast<size_t>(count) * sizeof(float));
    } else if (from.format == QK_FORMAT_F16) {
        widen(data, count, values, from_f16);
    } else {
        widen(data, count, values, from_bf16);
    }
}

// The same sums in each of several lanes, which the compiler makes vectors of.
struct Lanes {
    double largest[kLanes] = {}, error[kLanes] = {}, error_square[kLanes] = {};
    double weight[kLanes] = {}, weight_square[kLanes] = {};
};

double sum(const double *lanes) {
    double total = 0;
    for (int64_t i = 0; i < kLanes; ++i) total += lanes[i];
    return total;
}

// As if all were finite: if one is not, the sum of errors is not either.
void add_piece(const float *original, const float *decoded, int64_t count, Lanes *sums) {
    Lanes lanes = *sums;
    for (int64_t at = 0; at < count; at += kLanes) {
        for (int64_t i = 0; i < kLanes; ++i) {
            const double weight = static_cast<double>(original[at + i]);
            const double error = std::fabs(weight - static_cast<double>(decoded[at + i]));
            lanes.largest[i] = error > lanes.largest[i] ? error : lanes.largest[i];
            lanes.error[i] += error;
            lanes.error_square[i] += error * error;
            lanes.weight[i] += std::fabs(weight);
            lanes.weight_square[i] += weight * weight;
        }
    }
    *sums = lanes;
}

// Counts pairs with a NaN or an infinity and makes zeros of both.
int64_t leave_out(float *original, float *decoded, int64_t count, LayerError *counts) {
    int64_t left_out = 0;
    for (int64_t i = 0; i < count; ++i) {
        if (std::isfinite(original[i]) && std::isfinite(decoded[i])) continue;
        counts->original_nan += std::isnan(original[i]);
        counts->original_infinite += std::isinf(original[i]);
        counts->decoded_nan += std::isnan(decoded[i]);
        counts->decoded_infinite += std::isinf(decoded[i]);
        original[i] = decoded[i] = 0;
        ++left_out;
    }
    return left_out;
}

LayerError compare_row(const Values &original, const Values &decoded, int64_t begin,
                       int64_t columns) {
    float weights[kPiece], values[kPiece];
    LayerError row;
    Lanes lanes;
    for (int64_t at = 0; at < columns; at += kPiece) {
        const int64_t count = std::min(kPiece, columns - at);
        const int64_t whole = (count + kLanes - 1) / kLanes * kLanes;
        read_piece(original, begin + at, count, weights);
        read_piece(decoded, begin + at, count, values);
        Lanes sums = lanes;
        add_piece(weights, values, whole, &sums);
        row.compared += count;
        if (!std::isfinite(sum(sums.error))) {
            row.compared -= leave_out(weights, values, count, &row);
            sums = lanes;
            add_piece(weights, values, whole, &sums);
        }
        lanes = sums;
    }
    row.largest = *std::max_element(lanes.largest, lanes.largest + kLanes);
    row.error = sum(lanes.error);
    row.error_square = sum(lanes.error_square);
    row.weight = sum(lanes.weight);
    row.weight_square = sum(lanes.weight_square);
    return row;
}

// work(begin, end) of the slices of `count`, each on a thread of its own but the last, and of those
// that the system has no thread for.
template <class Work>
void in_slices(int64_t count, int threads, Work work) {
    std::vector<std::thread> started;
    const int64_t slices = std::max<int64_t>(1, std::min<int64_t>(threads, count));
    for (int64_t i = 0; i < slices; ++i) {
        const int64_t begin = count * i / slices, end = count * (i + 1) / slices;
        try {
            if (i + 1 < slices) {
                started.emplace_back(work, begin, end);
                continue;
            }
        } catch (const std::system_error &) {
        }
        work(begin, end);
    }
    for (std::thread &thread : started) thread.join();
}

// One line's columns: "mean abs", "maximum", "relative", "SQNR".
void print_numbers(const LayerError &error) {
    const double ratio = error.sqnr();
    char sqnr[32];
    std::snprintf(sqnr, sizeof sqnr, ratio > 0 && std::isinf(ratio) ? "exact" : "%.2f dB", ratio);
    if (error.compared == 0) {
        std::printf("%10s  %10s  %8s  %9s", "-", "-", "-", "-");
    } else {
        std::printf("%10.3e  %10.3e  %7.3f%%  %9s", error.mean(), error.largest,
                    100 * error.relative(), sqnr);
    }
}

std::string not_finite(const LayerError &error) {
    const int64_t original = error.original_nan + error.original_infinite;
    const int64_t decoded = error.decoded_nan + error.decoded_infinite;
    std::string text;
    if (original > 0) text += plural(original, "original weight");
    if (decoded > 0) {
        text += (text.empty() ? "" : ", ") + std::to_string(decoded) + " decoded";
    }
    return text.empty() ? "" : " (NaN or infinite, left out: " + text + ")";
}

LayerError all_errors(const std::vector<ComparedLayer> &layers, int64_t *count) {
    LayerError all;
    for (const ComparedLayer &layer : layers) {
        if (!layer.reason.empty()) continue;
        all.add(layer.error);
        ++*count;
    }
    return all;
}

void set_error(const Json &object, const LayerError &error) {
    json_set(object, "compared_weights", error.compared);
    json_set(object, "mean_absolute_error", error.mean());
    json_set(object, "max_absolute_error",
             error.compared > 0 ? error.largest : std::numeric_limits<double>::quiet_NaN());
    json_set(object, "relative_error", error.relative());
    json_set(object, "sqnr_db", error.sqnr());
    Json original = json_new_object(), decoded = json_new_object();
    json_set(original, "nan", error.original_nan);
    json_set(original, "infinite", error.original_infinite);
    json_set(decoded, "nan", error.decoded_nan);
    json_set(decoded, "infinite", error.decoded_infinite);
    json_set(object, "original", std::move(original));
    json_set(object, "decoded", std::move(decoded));
}

}  // namespace

void LayerError::add(const LayerError &other) {
    compared += other.compared;
    original_nan += other.original_nan;
    original_infinite += other.original_infinite;
    decoded_nan += other.decoded_nan;
    decoded_infinite += other.decoded_infinite;
    largest = std::max(largest, other.largest);
    error += other.error;
    error_square += other.error_square;
    weight += other.weight;
    weight_square += other.weight_square;
}

double LayerError::mean() const { return error / static_cast<double>(compared); }

double LayerError::relative() const { return compared > 0 && error == 0 ? 0 : error / weight; }

double LayerError::sqnr() const {
    if (compared > 0 && error_square == 0) return std::numeric_limits<double>::infinity();
    return 10 * std::log10(weight_square / error_square);
}

void compare(const Values &original, const Values &decoded, int64_t rows, int64_t columns,
             int threads, LayerError *sum) {
    std::vector<LayerError> each(static_cast<size_t>(rows));
    in_slices(rows, threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            each[static_cast<size_t>(row)] = compare_row(original, decoded, row * columns, columns);
        }
    });
    for (const LayerError &row : each) sum->add(row);
}

void print_errors(const std::vector<ComparedLayer> &layers) {
    int64_t count = 0;
    const LayerError all = all_errors(layers, &count);
    std::printf("%10s  %10s  %8s  %9s  layer\n", "mean error", "largest", "relative", "SQNR");
    for (const ComparedLayer &layer : layers) {
        if (layer.reason.empty()) {
            print_numbers(layer.error);
            std::printf("  %s%s\n", printable(layer.name).c_str(), not_finite(layer.error).c_str());
        } else {
            std::printf("%43s  %s: %s\n", "not compared", printable(layer.name).c_str(),
                        printable(layer.reason).c_str());
        }
    }
    print_numbers(all);
    std::printf("  all of %s%s\n", plural(count, "layer").c_str(), not_finite(all).c_str());
}

void set_errors(const Json &root, const std::vector<ComparedLayer> &layers) {
    int64_t count = 0;
    const LayerError all = all_errors(layers, &count);
    Json list = json_new_array(), whole = json_new_object();
    for (const ComparedLayer &layer : layers) {
        Json object = json_new_object();
        json_set(object, "name", layer.name);
        json_set(object, "reason", layer.reason);
        if (layer.reason.empty()) set_error(object, layer.error);
        json_append(list, std::move(object));
    }
    json_set(whole, "compared_layers", count);
    set_error(whole, all);
    json_set(root, "error", std::move(whole));
    json_set(root, "layers", std::move(list));
}
