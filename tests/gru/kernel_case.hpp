// One frozen random model and one run of it through every GRU kernel of the CPU, compared with the
// generic kernel byte by byte. Every buffer ends at a page that faults.
#pragma once
#include <cstdint>
#include <random>

#include "backend/backend.hpp"
#include "backend/registry.hpp"
#include "owned_model.hpp"

namespace gru_test {

struct KernelRun {
    std::int64_t steps = 8, batch = 1;
    int threads = 1;
    bool f32 = false;     // x and y
    bool lowest = false;  // every code of x and of the first state at the low end
    bool gates = false;   // too
};

struct KernelCounts {
    std::int64_t models = 0, refused = 0, packed = 0, wide = 0, words = 0, steps = 0;
    std::int64_t compared = 0, compared_gates = 0;
    std::uint64_t digest = 14695981039346656037u;  // FNV-1a of every generic output
    void print() const;
};

// Why there is nothing to compare: this build has no vector kernels, or the machine under it is an
// emulator that errs. Null where there is.
const char *why_no_vector_kernels();

// randomize() and a run; counts what became of it. Fails the test on any difference.
void run_random_case(std::mt19937_64 &random, const RandomOptions &options, const KernelRun &run,
                     KernelCounts &counts);
// The same with the model given: its arrays are read as they are.
void run_case(OwnedModel &model, std::mt19937_64 &random, bool extreme, const KernelRun &run,
              KernelCounts &counts);
// Draws shapes, widths, batches and steps until `wanted` steps of a sequence were compared.
void run_random_cases(std::uint64_t seed, bool extreme, std::int64_t wanted, int largest,
                      KernelCounts &counts);

}  // namespace gru_test
