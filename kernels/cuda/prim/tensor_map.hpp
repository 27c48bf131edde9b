// What the copy engine wants to know of a tensor: boxes out of rows of 8- or 16-bit elements.
#pragma once
#include <cuda.h>

#include "backend/backend.hpp"

namespace qk::cuda {

// The driver's function, without linking the driver's library; null where it has none.
using EncodeTensorMap = decltype(&::cuTensorMapEncodeTiled);
EncodeTensorMap find_tensor_map_encoder();

struct TensorPlane {
    void *data;  // a multiple of 16
    int64_t columns, rows;
    int32_t bytes;      // of an element: 1 or 2
    int64_t row_bytes;  // from a row to the next: a multiple of 16
};

// Boxes whose rows are 128 bytes, or 64. Their 16-byte pieces are swizzled by the number of
// their 128 bytes, mod 8 (of 64: mod 4). Callers hold a DeviceGuard: the driver asks for a
// context, which a new thread does not have.
Status describe_tensor(const TensorPlane &plane, int32_t columns, int32_t rows, ErrorText *error,
                       CUtensorMap *map);

// Boxes of packed tiles, row_tiles x tiles of them, whose 512 bytes are four lines of 128, swizzled
// as above.
Status describe_tiles(const Weight &w, int32_t row_tiles, int32_t tiles, ErrorText *error,
                      CUtensorMap *map);

// Boxes of the scales of packed tiles, as words of 4 bytes: those of `groups` groups side by side,
// of each of row_tiles rows of tiles. Not swizzled.
Status describe_scales(const Weight &w, int32_t row_tiles, int32_t groups, ErrorText *error,
                       CUtensorMap *map);

}  // namespace qk::cuda
