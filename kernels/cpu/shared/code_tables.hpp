// The entries that 4-bit codes stand for, as tables of one instruction set.
#pragma once
#include "cpu/access.hpp"
#include "cpu/isa.hpp"

namespace qk::cpu {
namespace {

// A format whose entries are the same for every group.
template <class Isa>
class TableCodes {
  public:
    explicit TableCodes(const Weight &w) {
        float entries[16];
        entries_of(w, 8, entries);
        table_ = Isa::load_table(entries);
    }
    Table<Isa> table(const uint8_t *, int64_t, int) const { return table_; }

  private:
    Table<Isa> table_;
};

// The same where bytes of entries are looked up and scaled after: their products round as those of
// a scaled table do.
template <class Isa>
class PlaneCodes : public TableCodes<Isa> {
  public:
    explicit PlaneCodes(const Weight &w) : TableCodes<Isa>(w) {
        float entries[16];
        entries_of(w, 8, entries);
        planes_ = Isa::load_planes(entries);
    }
    const typename Isa::Planes &planes() const { return planes_; }

  private:
    typename Isa::Planes planes_;
};

// Codes as they are, in the place of zeros the f32 minima of 8 rows a group.
template <class Isa>
class LoweredCodes {
  public:
    static constexpr bool kLowers = true;

    explicit LoweredCodes(const Weight &w) {
        float entries[16];
        entries_of(w, 0, entries);
        table_ = Isa::load_table(entries);
    }
    Table<Isa> table(const uint8_t *, int64_t, int) const { return table_; }

  private:
    Table<Isa> table_;
};
struct NoPanel {  // in the place of minima where there are none
    NoPanel(const Weight &, const ScalePlane &, const Device &) {}
};
template <class Codes>
constexpr bool kLowers = requires {
    Codes::kLowers;
};

// Entries by zero: code - zero, or 16 times the same where there are no zeros (which read as 0).
template <class Isa>
class AffineCodes {
  public:
    QK_NOINLINE explicit AffineCodes(const Weight &w) {
        for (int zero = 0; zero < 16; ++zero) {
            entries_of(w, w.zero != nullptr ? zero : common_zero(w), entries_[zero]);
        }
    }
    // `zeros`: 4 bytes a group, a nibble a row.
    Table<Isa> table(const uint8_t *zeros, int64_t group, int row) const {
        return of_zero(zeros[group * 4 + (row >> 1)] >> (row & 1) * 4 & 15);
    }
    Table<Isa> of_zero(int zero) const { return Isa::load_table(entries_[zero]); }

  private:
    alignas(64) float entries_[16][16];
};

}  // namespace
}  // namespace qk::cpu
