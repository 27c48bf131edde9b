// The table of the record: the cases that every kernel of a list is run on. Inputs depend on a
// case's number alone, so a case can be added at a table's end without a change to the others.
#pragma once
#include <functional>

#include "kernel/rig.hpp"
#include "record/digest.hpp"

namespace record {

template <class Args>
struct Case {
    uint64_t number;
    const Args &args;
    std::function<void()> clear;           // overwrites every output
    std::function<void(Digest *)> digest;  // of every output
};
template <class Args>
using Visit = std::function<void(const Case<Args> &)>;

// Calls `visit` with the cases whose number is divisible by `every`.
void visit_dequantize(sweep::Home *home, uint64_t every, const Visit<qk::DequantizeArgs> &visit);
void visit_quantize(sweep::Home *home, uint64_t every, const Visit<qk::QuantizeArgs> &visit);
void visit_repack(sweep::Home *home, uint64_t every, const Visit<qk::RepackArgs> &visit);
void visit_linear(sweep::Home *home, uint64_t every, const Visit<qk::LinearArgs> &visit);
// The modes': without groups that straddle rows, which kernel/linear_modes_test.cpp holds to the
// documented bits (int8) and bounds (bf16).
void visit_linear_along_k(sweep::Home *home, uint64_t every, const Visit<qk::LinearArgs> &visit);
// The first, and then products of whole tiles, which CUDA's kernels ask for.
void visit_linear_tiles(sweep::Home *home, uint64_t every, const Visit<qk::LinearArgs> &visit);
void visit_gru(sweep::Home *home, uint64_t every, const Visit<qk::GruArgs> &visit);
void visit_float_product(sweep::Home *home, uint64_t every,
                         const Visit<qk::FloatProductArgs> &visit);
void visit_float_gates(sweep::Home *home, uint64_t every, const Visit<qk::FloatGatesArgs> &visit);

constexpr reference::Format kQuantized[] = {reference::Format::u4,      reference::Format::nf4,
                                            reference::Format::fp4_bnb, reference::Format::fp4_e2m1,
                                            reference::Format::lut8,    reference::Format::s8};

// Of one case: tables draw from different streams.
inline harness::Random random_of(uint64_t table, uint64_t number) {
    return harness::Random(table << 32 | number);
}

// Overwrites the bytes of a slot, on the device where the backend has one.
void write(sweep::Home *home, void *to, const Bytes &bytes);
void poison(sweep::Home *home, int slot, void *data, uint8_t value = harness::kPoison);

// The same weight as QK_LAYOUT_PACKED, in slot kSecond, by the portable kernel.
qk::Weight repacked(sweep::Home *home, const qk::Weight &from, const reference::Spec &spec,
                    uint64_t number);

}  // namespace record
