#include "cuda/prim/tensor_map.hpp"

#include <cuda_runtime.h>

namespace qk::cuda {

EncodeTensorMap find_tensor_map_encoder() {
    void *function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
#if CUDART_VERSION >= 12050
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                               12000, cudaEnableDefault, &found);
#else
    const cudaError_t error =
        cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found);
#endif
    if (error != cudaSuccess) cudaGetLastError();
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) return nullptr;
    return reinterpret_cast<EncodeTensorMap>(function);
}

static Status check_map(CUresult result, ErrorText *error) {
    QK_CHECK(result == CUDA_SUCCESS, error, INTERNAL,
             "linear: a tensor map was refused (driver error %d)", int(result));
    return QK_OK;
}

Status describe_tensor(const TensorPlane &plane, int32_t columns, int32_t rows, ErrorText *error,
                       CUtensorMap *map) {
    const EncodeTensorMap encode = find_tensor_map_encoder();
    QK_CHECK(encode != nullptr, error, UNSUPPORTED, "linear: the driver has no tensor maps");
    const cuuint64_t sizes[2] = {cuuint64_t(plane.columns), cuuint64_t(plane.rows)};
    const cuuint64_t strides[1] = {cuuint64_t(plane.row_bytes)};
    const cuuint32_t box[2] = {cuuint32_t(columns), cuuint32_t(rows)}, one[2] = {1, 1};
    const CUtensorMapSwizzle swizzle =
        columns * plane.bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
    const CUresult result = encode(
        map, plane.bytes == 1 ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_UINT16, 2,
        plane.data, sizes, strides, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return check_map(result, error);
}

Status describe_tiles(const Weight &w, int32_t row_tiles, int32_t tiles, ErrorText *error,
                      CUtensorMap *map) {
    const EncodeTensorMap encode = find_tensor_map_encoder();
    QK_CHECK(encode != nullptr, error, UNSUPPORTED, "linear: the driver has no tensor maps");
    const cuuint32_t one[3] = {1, 1, 1};
    // The 4 lines of 128 bytes of a tile, the tiles of a row of tiles, the rows of tiles.
    const Geometry &s = w.geometry;
    const cuuint64_t of_row = cuuint64_t(ceil_div(s.k, 64));
    const cuuint64_t sizes[3] = {32, of_row * 4, cuuint64_t(ceil_div(s.n, 16))};
    const cuuint64_t strides[2] = {128, of_row * 512};
    const cuuint32_t box[3] = {32, cuuint32_t(tiles) * 4, cuuint32_t(row_tiles)};
    const CUresult result =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 3, w.data, sizes, strides, box, one,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return check_map(result, error);
}

Status describe_scales(const Weight &w, int32_t row_tiles, int32_t groups, ErrorText *error,
                       CUtensorMap *map) {
    const EncodeTensorMap encode = find_tensor_map_encoder();
    QK_CHECK(encode != nullptr, error, UNSUPPORTED, "linear: the driver has no tensor maps");
    const Geometry &s = w.geometry;
    const cuuint32_t words = cuuint32_t(w.scale.format->bits) / 2;  // of a group of 16 rows
    const cuuint64_t of_row = cuuint64_t(s.groups_per_row) * words;
    const cuuint64_t sizes[2] = {of_row, cuuint64_t(ceil_div(s.n, 16))};
    const cuuint64_t strides[1] = {of_row * 4};
    const cuuint32_t box[2] = {cuuint32_t(groups) * words, cuuint32_t(row_tiles)}, one[2] = {1, 1};
    const CUresult result =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_UINT32, 2, w.scale.data, sizes, strides, box, one,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return check_map(result, error);
}

}  // namespace qk::cuda
