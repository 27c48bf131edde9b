// Seeded random data. QK_TEST_SEED picks another seed; every program prints the one it used.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace harness {

inline uint64_t seed() {
    static const uint64_t value = [] {
        const char *const text = std::getenv("QK_TEST_SEED");
        const uint64_t chosen = text != nullptr ? std::strtoull(text, nullptr, 0) : 20240607u;
        std::printf("QK_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
        return chosen;
    }();
    return value;
}

// SplitMix64 (Steele, Lea, Flood, 2014): one line of state, the same numbers on every machine.
class Random {
  public:
    explicit Random(uint64_t stream) : state_(seed() ^ stream * 0x9E3779B97F4A7C15u) {}

    uint64_t next() {
        uint64_t z = state_ += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        return z ^ z >> 31;
    }
    int64_t below(int64_t limit) { return int64_t(next() % uint64_t(limit)); }
    int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
    bool one_in(int64_t count) { return below(count) == 0; }
    double unit() { return double(next() >> 11) * 0x1p-53; }

    // Bell-shaped (the sum of four uniforms), with the heavy tail that weights have: one number in
    // a hundred is an outlier, up to 30 times larger.
    float weight_like() {
        const double bell = unit() + unit() + unit() + unit() - 2.0;
        return float(bell * (one_in(100) ? 30.0 * unit() : 1.0) * 0.05);
    }
    // Across many binades, both signs.
    float any_magnitude(int low_exponent, int high_exponent) {
        const int exponent = int(between(low_exponent, high_exponent));  // first, whatever compiler
        const double value = std::ldexp(1.0 + unit(), exponent);
        return float(one_in(2) ? -value : value);
    }

  private:
    uint64_t state_;
};

}  // namespace harness
