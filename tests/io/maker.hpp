// Safetensors bytes for tests, written without the library under test.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

namespace io_test {

// Any header text in front of any data: the way to write hostile files.
inline std::string raw_file(const std::string &header, const std::string &data = "") {
    std::string bytes;
    for (int i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
    return bytes + header + data;
}

template <typename T>
std::string bytes_of(const std::vector<T> &values) {
    return std::string(reinterpret_cast<const char *>(values.data()), values.size() * sizeof(T));
}

struct Maker {
    std::string header = "{", data;

    Maker &add(const std::string &name, const std::string &dtype, const std::vector<int64_t> &shape,
               const std::string &bytes) {
        // Piece by piece: gcc 12 warns of overlaps in sums of strings that cannot happen.
        if (header.size() > 1) header += ',';
        header.append("\"").append(name).append("\":{\"dtype\":\"").append(dtype);
        header.append("\",\"shape\":[");
        for (size_t i = 0; i < shape.size(); ++i) {
            if (i > 0) header += ',';
            header.append(std::to_string(shape[i]));
        }
        header.append("],\"data_offsets\":[").append(std::to_string(data.size())).append(",");
        header.append(std::to_string(data.size() + bytes.size())).append("]}");
        data += bytes;
        return *this;
    }
    std::string build() const { return raw_file(header + "}", data); }
};

// A directory of its own, removed with what is in it.
class Folder {
  public:
    Folder() {
        char name[] = "/tmp/qk_io_test_XXXXXX";
        if (mkdtemp(name) == nullptr) abort();
        path_ = name;
    }
    Folder(const Folder &) = delete;
    ~Folder() {
        const std::string command = "rm -rf '" + path_ + "'";
        if (system(command.c_str()) != 0) perror("rm");
    }
    std::string path(const std::string &name = "") const {
        return name.empty() ? path_ : path_ + "/" + name;
    }
    void write(const std::string &name, const std::string &bytes) const {
        std::ofstream(path(name), std::ios::binary) << bytes;
    }

  private:
    std::string path_;
};

inline std::string read_file(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

}  // namespace io_test
