// Memory with a border: every access outside what was placed is detected. The area ends on both
// sides in pages that fault; inside it, everything around the data is poisoned and checked.
#pragma once
#include <cstddef>
#include <cstdint>

namespace harness {

constexpr uint8_t kPoison = 0xA5;
// Around inputs: as floats of any width NaN, so that a stray read shows even where it is multiplied
// by zero.
constexpr uint8_t kPoisonNan = 0xFF;
// What a minimum or a maximum may take for a number, as it does not NaN: large in every width.
constexpr uint8_t kPoisonLarge = 0x77;
// In a kernel's working memory, by turns.
constexpr uint8_t working_poison(uint64_t turn) {
    return turn % 2 == 0 ? kPoisonNan : kPoisonLarge;
}

// Where data is in its area: flush against the page after it, or the page before it, or at an
// address that is `offset` modulo 64.
struct Placement {
    enum Kind { at_end, at_start, at_offset } kind = at_end;
    int offset = 0;

    // Cycles through both ends and all 64 offsets.
    static Placement turn(uint64_t number);
};

class Guarded {
  public:
    Guarded() = default;
    ~Guarded();
    Guarded(const Guarded &) = delete;
    Guarded &operator=(const Guarded &) = delete;

    // Room for `bytes` poisoned bytes. Earlier contents of this area are gone.
    uint8_t *place(size_t bytes, Placement placement, uint8_t poison = kPoison);
    uint8_t *data() const { return data_; }
    size_t bytes() const { return bytes_; }
    // Whether the poison around the data is whole.
    bool intact() const;

  private:
    void reserve(size_t bytes);

    uint8_t *pages_ = nullptr, *area_ = nullptr, *data_ = nullptr;
    size_t mapped_ = 0, capacity_ = 0, bytes_ = 0;
    uint8_t poison_ = kPoison;
};

}  // namespace harness
