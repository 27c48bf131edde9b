// int8 mode over packed weights on machines with AMX.
#include "cpu/int8/batch.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_amx/int8_tile.hpp"

namespace qk::cpu {
namespace {

Status run(const LinearArgs &args, const Launch &launch) {
    if (!tiles_allowed())
        return fail(launch.error, QK_ERROR_UNSUPPORTED, "w: the system keeps AMX's tiles back");
    return run_int8_batch<AmxInt8<AmxTiles>>(args, launch);
}

}  // namespace

const Kernel<LinearArgs> kLinearInt8AmxBatch =
    linear_kernel<row_of("amx int8 batch")>(run, int8_tiles_bytes<AmxInt8<AmxTiles>>);

}  // namespace qk::cpu
