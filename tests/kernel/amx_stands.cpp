#include "kernel/amx_stands.hpp"

#include "cpu/x86_amx/bf16_strip.hpp"
#include "cpu/x86_amx/int8_groups.hpp"
#include "kernel/plain_tiles.hpp"

namespace {

using Nibbles = qk::cpu::AmxNibbles<PlainTiles>;
using Bytes = qk::cpu::AmxBytes<PlainTiles>;
using XTile = Nibbles::Of128::XTile;

int sessions() { return PlainTiles::sessions; }

const int8_t *row_of_x(const void *tiles, int64_t j) {
    return static_cast<const XTile *>(tiles)->x[0][j];
}

}  // namespace

const AmxStands kAmxStands = {
    {"amx int8 batch", nullptr, qk::cpu::int8_tiles_room<Nibbles>,
     qk::cpu::run_int8_tiles<Nibbles>},
    {"amx int8 bytes batch", nullptr, qk::cpu::int8_tiles_room<Bytes>,
     qk::cpu::run_int8_tiles<Bytes>},
    {"amx bf16 batch", nullptr, qk::cpu::bf16_tiles_bytes, qk::cpu::run_bf16_strips<PlainTiles>},
    sessions,
    row_of_x,
    XTile::kRows};
