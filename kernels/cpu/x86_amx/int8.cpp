// int8 mode on machines with AMX.
#include "cpu/int8/batch.hpp"
#include "cpu/linear/select.hpp"
#include "cpu/x86_amx/int8_tile.hpp"

namespace qk::cpu {
namespace {

template <class Isa>
Status run(const LinearArgs &args, const Launch &launch) {
    if (!tiles_allowed())
        return fail(launch.error, QK_ERROR_UNSUPPORTED, "w: the system keeps AMX's tiles back");
    return run_int8_batch<Isa>(args, launch);
}

using Int8 = AmxInt8<AmxTiles>;
using Int8Bytes = AmxInt8Bytes<AmxTiles>;

}  // namespace

const Kernel<LinearArgs> kLinearInt8AmxBatch =
    linear_kernel<row_of("amx int8 batch")>(run<Int8>, int8_tiles_bytes<Int8>);
const Kernel<LinearArgs> kLinearInt8AmxBytesBatch =
    linear_kernel<row_of("amx int8 bytes batch")>(run<Int8Bytes>, int8_tiles_bytes<Int8Bytes>);

}  // namespace qk::cpu
