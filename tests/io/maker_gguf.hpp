// GGUF bytes for tests, written without the library under test.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace io_test {

inline std::string little(uint64_t value, int bytes) {
    std::string text;
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
    return text;
}

inline std::string gguf_text(const std::string &text) { return little(text.size(), 8) + text; }

// A value is its type and its bytes.
inline std::string gguf_u32(uint32_t value) { return little(4, 4) + little(value, 4); }
inline std::string gguf_string(const std::string &text) { return little(8, 4) + gguf_text(text); }

struct Gguf {
    std::string pairs, infos, data;
    uint64_t pair_count = 0, tensor_count = 0;
    size_t alignment = 32;
    uint32_t version = 3;

    Gguf &pair(const std::string &key, const std::string &value) {
        pairs += gguf_text(key) + value;
        ++pair_count;
        return *this;
    }
    // ne: sizes as in the file, k first. Says nothing of the data.
    Gguf &info(const std::string &name, const std::vector<uint64_t> &ne, uint32_t type,
               uint64_t offset) {
        infos += gguf_text(name) + little(ne.size(), 4);
        for (uint64_t size : ne) infos += little(size, 8);
        infos += little(type, 4) + little(offset, 8);
        ++tensor_count;
        return *this;
    }
    Gguf &tensor(const std::string &name, const std::vector<uint64_t> &ne, uint32_t type,
                 const std::string &bytes) {
        info(name, ne, type, data.size());
        data += bytes;
        pad(&data);
        return *this;
    }
    std::string build() const {
        std::string bytes = "GGUF" + little(version, 4) + little(tensor_count, 8);
        bytes += little(pair_count, 8) + pairs + infos;
        pad(&bytes);
        return bytes + data;
    }

  private:
    void pad(std::string *bytes) const {
        while (bytes->size() % alignment != 0) *bytes += '\0';
    }
};

}  // namespace io_test
