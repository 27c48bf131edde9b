// int8 mode on machines with AMX.
#include "cpu/linear/select.hpp"
#include "cpu/x86_amx/int8_groups.hpp"

namespace qk::cpu {
namespace {

template <class Codes>
Status run(const LinearArgs &args, const Launch &launch) {
    if (!tiles_allowed())
        return fail(launch.error, QK_ERROR_UNSUPPORTED, "w: the system keeps AMX's tiles back");
    return run_int8_tiles<Codes>(args, launch);
}

using Nibbles = AmxNibbles<AmxTiles>;
using Bytes = AmxBytes<AmxTiles>;

}  // namespace

const Kernel<LinearArgs> kLinearInt8AmxBatch =
    linear_kernel<row_of("amx int8 batch")>(run<Nibbles>, int8_tiles_room<Nibbles>);
const Kernel<LinearArgs> kLinearInt8AmxBytesBatch =
    linear_kernel<row_of("amx int8 bytes batch")>(run<Bytes>, int8_tiles_room<Bytes>);

}  // namespace qk::cpu
