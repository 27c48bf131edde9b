// FNV-1a, 64 bits, over what a kernel left in its output planes.
#pragma once
#include <cstdint>
#include <cstring>
#include <vector>

#include "reference/reference.hpp"

namespace record {

using Bytes = std::vector<uint8_t>;

class Digest {
  public:
    uint64_t value() const { return value_; }

    void byte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3u; }
    void bytes(const Bytes &bytes) {
        for (const uint8_t each : bytes) byte(each);
    }
    void number(uint64_t number) {
        for (int shift = 0; shift < 64; shift += 8) byte(uint8_t(number >> shift));
    }
    // Every NaN counts as one: which of them comes out is not promised.
    void floats(reference::Format format, const Bytes &bytes) {
        const bool wide = format == reference::Format::f32;
        const uint32_t infinity = wide                               ? 0x7f800000u
                                  : format == reference::Format::f16 ? 0x7c00u
                                                                     : 0x7f80u;
        const size_t size = wide ? 4 : 2;
        for (size_t i = 0; i + size <= bytes.size(); i += size) {
            uint32_t bits = 0;
            std::memcpy(&bits, &bytes[i], size);
            if ((bits & (wide ? 0x7fffffffu : 0x7fffu)) > infinity) bits = infinity + 1;
            for (size_t part = 0; part < size; ++part) byte(uint8_t(bits >> 8 * part));
        }
    }

  private:
    uint64_t value_ = 0xcbf29ce484222325u;
};

}  // namespace record
