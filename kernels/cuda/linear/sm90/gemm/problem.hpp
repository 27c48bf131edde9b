// The matrix kernel's problem, and its instances. Apart from the plan, which needs no CUDA.
#pragma once
#include <cuda.h>

#include "cuda/linear/sm90/gemm/plan.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {

constexpr uint32_t kMostShared = 227 * 1024;  // that a block of sm_90 can have
constexpr uint32_t kStaticShared = 2048;      // of it: barriers and the table of nested scales
constexpr int32_t kMaxSlots = 16;

struct GemmMaps {
    CUtensorMap code_map, x_map;
};

struct GemmProblem : GemmMaps, LinearView {
    int64_t y_pitch;               // elements from a row to the next
    int32_t row_tiles, tiles;      // of 16 rows; of 64 columns; transposed: of 16 columns, 64 rows
    int32_t group_shift;           // log2 of the tiles a group
    int32_t second_shift;          // nested: log2 of second_group
    int32_t x_blocks;              // large: that rows of x are cut into
    int32_t whole_rows, cut_rows;  // large: blocks of rows of w whose k a block takes, or a cluster
    int32_t step_rows, step_x;     // large: from a block's item to its next
    int32_t split;                 // blocks of a cluster
    int32_t slots;                 // stages in the ring
    uint32_t stage_x;              // bytes of x in a stage
    int32_t group_tiles;           // 8-bit codes: tiles of a group
    int32_t parts;                 // small groups: runs of 16 columns, of a row
    int32_t part_shift;            // small groups: log2 of those of a group
    qk_format coded;               // small groups: E8M0, E4M3, or LUT8 where codes need the table
    int64_t y_columns;             // rows of w; transposed: its columns
};

// What follows from the operands and how they are cut; of a transposed product.
GemmProblem problem_of(const LinearArgs &args, const GemmPlan &plan);
GemmProblem transposed_of(const LinearArgs &args, const GemmPlan &plan);

// Describes the planes of `args` to the copy engine: boxes of row_tiles x 16 rows of w by tiles x
// 64 columns, and of x_rows rows of x by 64 columns.
Status describe_planes(const LinearArgs &args, int32_t row_tiles, int32_t tiles, int32_t x_rows,
                       ErrorText *error, GemmProblem *p);
// The same for 8-bit codes: boxes of `rows` rows of w by 64 or 128 columns.
Status describe_bytes(const LinearArgs &args, int32_t columns, int32_t rows, int32_t x_rows,
                      ErrorText *error, GemmProblem *p);

// Instances, compiled on their own.
template <Codes codes, qk_format x>
struct Sm90Gemm {
    static Status run(GemmCut cut, const LinearArgs &args, const Launch &launch, GemmProblem *p);
};
template <Codes codes, qk_format x>
struct Sm90GemmTransposed {
    static Status run(GemmCut cut, const LinearArgs &args, const Launch &launch, GemmProblem *p);
};

}  // namespace qk::cuda
