// How far a layer's decoded weights are from the original ones, and the report that says so.
#pragma once
#include <string>
#include <vector>

#include "common.hpp"
#include "json.hpp"

// Sums over pairs of an original and a decoded weight. Pairs in which either is NaN or infinite are
// counted and enter no sum.
struct LayerError {
    int64_t compared = 0;                             // pairs of finite numbers
    int64_t original_nan = 0, original_infinite = 0;  // counted, as the next two, pair or not
    int64_t decoded_nan = 0, decoded_infinite = 0;
    double largest = 0;                    // |difference|
    double error = 0, error_square = 0;    // sums of |difference|, of its square
    double weight = 0, weight_square = 0;  // the same of the original

    void add(const LayerError &other);
    double mean() const;      // NaN where nothing was compared, as all three
    double relative() const;  // mean |difference| over mean |original|; 0 where there is no error
    double sqnr() const;      // dB: infinite without an error, -infinite without a signal
};

struct Values {  // row after row
    qk_format format;
    const void *data;
};
// Adds the rows in their order: sums depend neither on threads nor on how rows are divided.
void compare(const Values &original, const Values &decoded, int64_t rows, int64_t columns,
             int threads, LayerError *sum);

struct ComparedLayer {
    std::string name;
    std::string reason;  // why it was not compared; "" where it was
    LayerError error;
};
// A line a layer, and one of all.
void print_errors(const std::vector<ComparedLayer> &layers);
// "error" of all layers and "layers", each with its own.
void set_errors(const Json &root, const std::vector<ComparedLayer> &layers);
