// Dequantize GPTQ: codes are [k / 8, n] in words along k, the output is [n, k]. A block takes 128
// rows x 256 columns: it copies 512-byte lines of codes to shared memory (parts.cuh), from
// where a lane takes the words of 4 rows at once and stores 16 bytes of each; 32 lanes store 512
// neighbouring bytes. Their scales and zeros are loaded before the wait for codes. Blocks in a
// row write on where the one before ends. (code - zero) * scale is one fp32 product, rounded once.
// Bytes per output: half a code, the output, a share of scale and zero, each moved once.
//
// Rows that do not come in fours or begin at multiples of 16 bytes, groups that do not end with a
// word, tables and nested scales: the same way to shared memory, from there a lane an element.
#include "cuda/convert/parts.cuh"
#include "cuda/kernels.hpp"
#include "cuda/runtime.hpp"
#include "cuda/view.cuh"

namespace qk::cuda {
namespace {

constexpr uint32_t kColumns = kGptqLines * 8;

struct Problem {
    GptqCodes codes;
    const uint8_t *scale, *zero;  // of the first row; zero may be null
    qk_format scale_format;
    uint32_t zero_offset;
    int64_t n, zero_pitch;  // of a group; in bytes
    uint32_t k, group_size, blocks_along_k;
    void *out;
};

// Scales as they are stored and zeros of 4 rows.
struct Quad {
    uint4 scales;  // f32; else 16 bits each in x and y
    uint32_t zeros;
};

__device__ Quad load_quad(const Problem &p, uint32_t row, int64_t group) {
    Quad q = {{0, 0, 0, 0}, 0x8888u};
    const int64_t at = group * p.n + row;
    if (p.scale_format == QK_FORMAT_F32) {
        q.scales = __ldg(reinterpret_cast<const uint4 *>(p.scale + at * 4));
    } else {
        const uint2 both = __ldg(reinterpret_cast<const uint2 *>(p.scale + at * 2));
        q.scales.x = both.x, q.scales.y = both.y;
    }
    if (p.zero == nullptr) return q;
    const uint8_t *const zeros = p.zero + group * p.zero_pitch + row / 2;
    q.zeros = __ldg(reinterpret_cast<const uint16_t *>(zeros));
    return q;
}

__device__ float scale_in(uint4 four, int i, qk_format format) {
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
    return format == QK_FORMAT_F32 ? __uint_as_float(words[i]) : half_in(four, i, format);
}

template <class Out>
__global__ void __launch_bounds__(kGptqThreads) transpose(const __grid_constant__ Problem p) {
    __shared__ uint4 shared[kGptqLines * kGptqRows / 4];
    constexpr uint32_t kCodes = Store<Out>::kCodes, kUnits = kColumns / kCodes;
    constexpr uint32_t kStep = kGptqThreads / kUnits * 4, kQuads = kGptqRows / kStep;
    const uint32_t band = blockIdx.x / p.blocks_along_k;
    const uint32_t run = blockIdx.x - band * p.blocks_along_k;
    const uint32_t unit = threadIdx.x % kUnits * kCodes, row = threadIdx.x / kUnits * 4;
    const uint32_t first_row = band * kGptqRows, column = run * kColumns + unit;
    const int64_t group = min(column, p.k - 1) / p.group_size;
    Quad quads[kQuads];
    stage_gptq<uint4>(p.codes, first_row, run * kGptqLines, &shared[0].x, [&] {
#pragma unroll
        for (uint32_t i = 0; i < kQuads; ++i) {
            if (first_row + row + i * kStep >= p.codes.rows) break;
            quads[i] = load_quad(p, first_row + row + i * kStep, group);
        }
    });
    if (column >= p.k) return;
#pragma unroll
    for (uint32_t i = 0; i < kQuads; ++i) {
        const uint32_t at = row + i * kStep;
        if (first_row + at >= p.codes.rows) break;
        const uint4 four = shared[gptq_place(unit / 8, at) / 4];
        const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (uint32_t r = 0; r < 4; ++r) {
            const float scale = scale_in(quads[i].scales, int(r), p.scale_format);
            const float zero = biased((quads[i].zeros >> 4 * r) + p.zero_offset);
            const uint32_t word = words[r] >> unit % 8 * 4;
            float values[kCodes];
#pragma unroll
            for (uint32_t c = 0; c < kCodes; ++c) {
                values[c] = __fmul_rn(__fadd_rn(biased(word >> 4 * c), -zero), scale);
            }
            const int64_t to = int64_t(first_row + at + r) * p.k + column;
            __stcs(static_cast<uint4 *>(p.out) + to / kCodes, Store<Out>::pack(values));
        }
    }
}

__global__ void __launch_bounds__(kGptqThreads)
    transpose_elements(const __grid_constant__ WeightView w,
                       const __grid_constant__ GptqCodes codes, qk_format to, void *out,
                       int64_t skipped, uint32_t blocks_along_k) {
    __shared__ uint4 shared[kGptqLines * kGptqRows / 4];
    __shared__ float entries[256];
    fill_entries(w, entries);
    const uint32_t *const words = &shared[0].x;
    const uint32_t band = blockIdx.x / blocks_along_k, run = blockIdx.x - band * blocks_along_k;
    const uint32_t first_row = band * kGptqRows, k = uint32_t(w.geometry.k);
    stage_gptq<uint32_t>(codes, first_row, run * kGptqLines, &shared[0].x, [] {});
    const uint32_t warp = threadIdx.x / 32, rows = min(codes.rows - first_row, kGptqRows);
    for (uint32_t at = threadIdx.x % 32; at < kColumns && run * kColumns + at < k; at += 32) {
        const uint32_t column = run * kColumns + at;
        const int64_t group = column / uint32_t(w.geometry.group_size);
        for (uint32_t row = warp; row < rows; row += kGptqThreads / 32) {
            const GroupIndex index = {skipped + first_row + row, group};
            const uint32_t code = words[gptq_place(at / 8, row)] >> at % 8 * 4 & 15;
            const float zero = w.kind == FormatKind::kU4 ? float(zero_of(w, index)) : 0.0f;
            const float value = __fmul_rn(__fadd_rn(entries[code], -zero), scale_of(w, index));
            store_float(to, out, int64_t(first_row + row) * k + column, value);
        }
    }
}

GptqCodes codes_of(const DequantizeArgs &args) {
    const Geometry &s = args.from.geometry;
    return {static_cast<const uint8_t *>(args.from.data) + args.first_row * 4, s.n * 4,
            uint32_t(args.to.rows), uint32_t(ceil_div(s.k, 8))};
}

// Whether rows come in fours and begin at whole stores, and a word of codes has one scale and zero.
bool is_whole(const DequantizeArgs &args) {
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    return w.format->kind == FormatKind::kU4 && !has_coded_scales(w.scale) && s.n % 4 == 0 &&
           args.to.rows % 4 == 0 && s.k % 8 == 0 &&
           (s.group_size % 8 == 0 || s.groups_per_row == 1) && aligned(w.data) &&
           aligned(w.scale.data) && aligned(w.zero, 2) && aligned(args.to.data);
}

Problem problem_of(const DequantizeArgs &args) {
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    const int64_t scale_bytes = w.scale.format->bits / 8;
    const auto plane = [&](void *data, int64_t bytes) {
        return data == nullptr ? nullptr : static_cast<const uint8_t *>(data) + bytes;
    };
    return {codes_of(args),
            plane(w.scale.data, args.first_row * scale_bytes),
            plane(w.zero, args.first_row / 2),
            w.scale.format->id,
            w.zero == nullptr ? 0u : uint32_t(w.layout->zero_offset),
            s.n,
            round_up(s.n, 8) / 2,
            uint32_t(s.k),
            uint32_t(min64(s.group_size, s.k)),
            uint32_t(ceil_div(s.k, kColumns)),
            args.to.data};
}

Status run(const DequantizeArgs &args, const Launch &launch) {
    const int64_t along_k = ceil_div(args.from.geometry.k, kColumns);
    const int64_t bands = ceil_div(args.to.rows, kGptqRows);
    const Shape3 shape = {dim3(uint32_t(along_k * bands)), kGptqThreads};
    if (!is_whole(args)) {
        return launch_kernel(launch, "dequantize", transpose_elements, shape, view_of(args.from),
                             codes_of(args), args.to.format->id, args.to.data, args.first_row,
                             uint32_t(along_k));
    }
    switch (args.to.format->id) {
        case QK_FORMAT_F16:
            return launch_kernel(launch, "dequantize", transpose<__half>, shape, problem_of(args));
        case QK_FORMAT_BF16:
            return launch_kernel(launch, "dequantize", transpose<__nv_bfloat16>, shape,
                                 problem_of(args));
        default:
            return launch_kernel(launch, "dequantize", transpose<float>, shape, problem_of(args));
    }
}

bool can_run(const DequantizeArgs &args, const Device &) {
    const Weight &w = args.from;
    const Geometry &s = w.geometry;
    return is_compact(args.to) && !has_minimum(w) &&
           (w.layout->id == QK_LAYOUT_GPTQ || w.layout->id == QK_LAYOUT_GPTQ_V1) &&
           args.first_row % 16 == 0 && s.k < (int64_t{1} << 31) && s.n < (int64_t{1} << 31) &&
           ceil_div(s.k, kColumns) * ceil_div(s.n, kGptqRows) < (int64_t{1} << 31) &&
           aligned(w.data, 4);
}

}  // namespace

const Kernel<DequantizeArgs> kDequantizeGptq = {"gptq", can_run, nullptr, run};

}  // namespace qk::cuda
