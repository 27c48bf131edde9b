// Safetensors bytes for tests, written without the library under test.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
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
        const auto all = std::filesystem::temp_directory_path();
        std::random_device number;
        do {
            path_ = (all / ("qk_io_test_" + std::to_string(number()))).generic_string();
        } while (!std::filesystem::create_directory(path_));
    }
    Folder(const Folder &) = delete;
    ~Folder() {
        std::error_code error;
        std::filesystem::remove_all(path_, error);
        if (error) fprintf(stderr, "%s: %s\n", path_.c_str(), error.message().c_str());
    }
    std::string path(const std::string &name = "") const {
        return name.empty() ? path_ : path_ + "/" + name;
    }
    void make(const std::string &name) const { std::filesystem::create_directory(path(name)); }
    void remove(const std::string &name) const { std::filesystem::remove(path(name)); }
    std::vector<std::string> names() const {
        std::vector<std::string> all;
        for (const auto &entry : std::filesystem::directory_iterator(path_)) {
            all.push_back(entry.path().filename().string());
        }
        std::sort(all.begin(), all.end());
        return all;
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
