// config.json over a file that holds a layer of every dialect that a configuration decides about.
#include "walk.hpp"

namespace {

struct Builder {
    std::string header = "{", data;

    void add(const std::string &name, const char *dtype, const std::string &shape,
             const std::string &bytes) {
        if (header.size() > 1) header += ',';
        header.append("\"").append(name).append("\":{\"dtype\":\"").append(dtype);
        header.append("\",\"shape\":[").append(shape).append("],\"data_offsets\":[");
        header.append(std::to_string(data.size())).append(",");
        data += bytes;
        header.append(std::to_string(data.size())).append("]}");
    }
    void zeros(const std::string &name, const char *dtype, const std::string &shape, size_t bytes) {
        add(name, dtype, shape, std::string(bytes, '\0'));
    }
};

std::string words(std::initializer_list<int> values) {
    std::string bytes;
    for (const int value : values) {
        for (int i = 0; i < 4; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
    }
    return bytes;
}

// n and k as small as 16-code groups allow, so that one input costs microseconds.
std::string file() {
    Builder b;
    b.zeros("gemm.qweight", "I32", "32,1", 128);  // AutoAWQ gemm: n 8, k 32, groups of 16
    b.zeros("gemm.qzeros", "I32", "2,1", 8);
    b.zeros("gemm.scales", "F16", "2,8", 32);
    b.zeros("gemv.qweight", "I32", "8,4", 128);  // AutoAWQ gemv: n 8, k 32, one group a row
    b.zeros("gemv.qzeros", "I32", "8,1", 32);
    b.zeros("gemv.scales", "F16", "8,8", 128);
    b.zeros("gptq.qweight", "I32", "4,8", 128);  // GPTQ: n 8, k 32, groups of 16
    b.zeros("gptq.qzeros", "I32", "2,1", 8);
    b.zeros("gptq.scales", "F16", "2,8", 32);
    std::string order;
    for (int i = 0; i < 32; ++i) order += words({i / 16});
    b.add("gptq.g_idx", "I32", "32", order);
    b.zeros("ct.weight_packed", "I32", "3,5", 60);  // compressed-tensors: n 3, k 33
    b.zeros("ct.weight_scale", "BF16", "3,3", 18);
    b.add("ct.weight_shape", "I64", "2", words({3, 0, 33, 0}));
    b.zeros("asym.weight_packed", "I32", "3,5", 60);
    b.zeros("asym.weight_scale", "F16", "3,1", 6);
    b.zeros("asym.weight_zero_point", "I32", "1,1", 4);
    b.add("asym.weight_shape", "I64", "2", words({3, 0, 33, 0}));
    b.zeros("dense.weight", "F32", "2,2", 16);
    return fuzz::with_length(b.header + "}", b.data);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const std::string config(reinterpret_cast<const char *>(data), size);
    fuzz::open_and_walk(file(), &config);
    return 0;
}
