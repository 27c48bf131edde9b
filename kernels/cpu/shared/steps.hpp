// The eight steps of a chunk, each with its number as a constant: body.operator()<step>().
#pragma once

namespace qk::cpu {
namespace {

template <class Body>
__attribute__((always_inline)) inline void for_each_step(const Body &body) {
    body.template operator()<0>();
    body.template operator()<1>();
    body.template operator()<2>();
    body.template operator()<3>();
    body.template operator()<4>();
    body.template operator()<5>();
    body.template operator()<6>();
    body.template operator()<7>();
}

}  // namespace
}  // namespace qk::cpu
