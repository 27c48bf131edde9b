// Batches in bf16 mode on machines with AMX.
#include "cpu/linear/select.hpp"
#include "cpu/x86_amx/bf16_strip.hpp"

namespace qk::cpu {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    if (!tiles_allowed())
        return fail(launch.error, QK_ERROR_UNSUPPORTED, "w: the system keeps AMX's tiles back");
    return run_bf16_strips<AmxTiles>(args, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearBf16AmxBatch =
    linear_kernel<row_of("amx bf16 batch")>(run, bf16_tiles_bytes);

}  // namespace qk::cpu
