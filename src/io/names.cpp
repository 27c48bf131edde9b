#include "names.hpp"

#include "os.hpp"

namespace qk_io {
namespace {

struct Sip {
    uint64_t a, b, c, d;

    static uint64_t turn(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }
    void round() {
        a += b, c += d;
        b = turn(b, 13) ^ a, d = turn(d, 16) ^ c;
        a = turn(a, 32);
        c += b, a += d;
        b = turn(b, 17) ^ c, d = turn(d, 21) ^ a;
        c = turn(c, 32);
    }
    void take(uint64_t word) {
        d ^= word;
        round();
        a ^= word;
    }
};

}  // namespace

uint64_t siphash13(const uint64_t key[2], const void *data, size_t bytes) {
    Sip sip = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du,
               key[0] ^ 0x6c7967656e657261u, key[1] ^ 0x7465646279746573u};
    const uint8_t *at = static_cast<const uint8_t *>(data);
    uint64_t last = static_cast<uint64_t>(bytes) << 56, word = 0;
    for (; bytes >= 8; bytes -= 8, at += 8) {
        memcpy(&word, at, 8);
        sip.take(word);
    }
    for (size_t i = 0; i < bytes; ++i) last |= static_cast<uint64_t>(at[i]) << (8 * i);
    sip.take(last);
    sip.c ^= 0xff;
    for (int i = 0; i < 3; ++i) sip.round();
    return sip.a ^ sip.b ^ sip.c ^ sip.d;
}

uint64_t Names::home_of(const char *name) const {
    return siphash13(key, name, strlen(name)) & static_cast<uint64_t>(capacity - 1);
}

Names::Slot *Names::slot_of(const char *name) const {
    const uint64_t mask = static_cast<uint64_t>(capacity - 1);
    for (uint64_t at = home_of(name);; at = (at + 1) & mask) {
        if (slots[at].name == nullptr || strcmp(slots[at].name, name) == 0) return &slots[at];
    }
}

bool Names::reserve(Memory *memory) {
    if (capacity >= 2 * (count + 1)) return true;
    Names grown = *this;
    grown.capacity = capacity == 0 ? 64 : capacity * 2;
    if (capacity == 0) {  // where memory is and when: what a file written before cannot know
        const uint64_t now = os::nanoseconds();
        grown.key[0] = reinterpret_cast<uintptr_t>(this) ^ reinterpret_cast<uintptr_t>(&now) << 20;
        grown.key[1] = now;
    }
    const size_t bytes = static_cast<size_t>(grown.capacity) * sizeof(Slot);
    grown.slots = static_cast<Slot *>(memory->allocate(bytes, alignof(Slot)));
    if (grown.slots == nullptr) return false;
    memset(grown.slots, 0, bytes);
    for (int64_t i = 0; i < capacity; ++i) {
        if (slots[i].name != nullptr) *grown.slot_of(slots[i].name) = slots[i];
    }
    memory->release(slots);
    *this = grown;
    return true;
}

void Names::add(const char *name, int64_t index) {
    *slot_of(name) = Slot{name, index};
    ++count;
}

int64_t Names::find(const char *name) const {
    if (capacity == 0) return -1;
    const Slot *slot = slot_of(name);
    return slot->name == nullptr ? -1 : slot->index;
}

void Names::remove(const char *name) {
    const uint64_t mask = static_cast<uint64_t>(capacity - 1);
    uint64_t hole = static_cast<uint64_t>(slot_of(name) - slots);
    for (uint64_t at = (hole + 1) & mask; slots[at].name != nullptr; at = (at + 1) & mask) {
        // A name whose search would stop at the hole moves into it.
        if (((at - home_of(slots[at].name)) & mask) < ((at - hole) & mask)) continue;
        slots[hole] = slots[at];
        hole = at;
    }
    slots[hole] = Slot{nullptr, 0};
    --count;
}

}  // namespace qk_io
