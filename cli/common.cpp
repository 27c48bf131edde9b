#include "common.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "mapped.hpp"
#include "os.hpp"
#include "trace.hpp"

ExitCode exit_code(qk_status status) {
    switch (status) {
        case QK_OK: return kOk;
        case QK_ERROR_CORRUPT:
        case QK_ERROR_FILE: return kFile;
        case QK_ERROR_UNSUPPORTED:
        case QK_ERROR_NO_DEVICE: return kUnsupported;
        default: return kFailed;
    }
}

void check(qk_status status, const std::string &subject, const char *why) {
    check_readable();  // first: pages that could not be read explain any other failure
    if (status == QK_OK) return;
    const bool said = why != nullptr && why[0] != 0;
    const std::string sentence = said ? why : qk_status_string(status);
    throw Failure(exit_code(status), subject.empty() ? sentence : subject + ": " + sentence);
}

Checkpoint open_checkpoint(const std::string &path) {
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message = {};
    const Opening opening(path);
    const qk_status status = qk_checkpoint_open(path.c_str(), nullptr, &checkpoint, &message);
    Checkpoint result(checkpoint);
    check(status, "", message.text);
    watch_files(path, checkpoint);
    check_files_whole();
    return result;
}

Context create_context(const CommonOptions &common, qk_device device, int device_index,
                       size_t workspace_bytes, uint32_t flags) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.device = device;
    options.device_index = device_index;
    options.thread_count = common.threads;
    options.instruction_sets = common.instruction_sets;
    options.flags = flags;
    options.workspace_bytes = workspace_bytes;
    trace_if_asked(&options);
    qk_context *context = nullptr;
    check(qk_context_create(&options, &context), "cannot use the device", nullptr);
    return Context(context);
}

int thread_count(const Context &context) {
    qk_context_info info = QK_CONTEXT_INFO_INIT;
    check(qk_context_describe(context.get(), &info), "context", nullptr);
    return info.thread_count;
}

LoadedLayer load_layer(const Checkpoint &checkpoint, const Context &context,
                       const std::string &name, uint32_t flags) {
    qk_tensor *weight = nullptr, *bias = nullptr;
    qk_io_message message = {};
    check(qk_checkpoint_load(checkpoint.get(), context.get(), name.c_str(), flags, &weight, &bias,
                             &message),
          name, message.text);
    return {Tensor(weight), Tensor(bias)};
}

namespace {

qk_tensor_desc dense_desc(qk_format format, int64_t rows, int64_t columns) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.rank = 2;
    desc.shape[0] = rows;
    desc.shape[1] = columns;
    return desc;
}

}  // namespace

Tensor create_dense(const Context &context, qk_format format, int64_t rows, int64_t columns) {
    const qk_tensor_desc desc = dense_desc(format, rows, columns);
    qk_tensor *tensor = nullptr;
    check(qk_tensor_create(context.get(), &desc, &tensor), "cannot create a tensor",
          qk_context_error(context.get()));
    return Tensor(tensor);
}

Tensor wrap_dense(const Context &context, qk_format format, int64_t rows, int64_t columns,
                  void *data) {
    const qk_tensor_desc desc = dense_desc(format, rows, columns);
    qk_tensor *tensor = nullptr;
    check(qk_tensor_wrap(context.get(), &desc, &data, 1, &tensor), "cannot wrap a tensor",
          qk_context_error(context.get()));
    return Tensor(tensor);
}

namespace {

// Bytes of the UTF-8 character at text[at], 0 where there is none.
size_t character_bytes(const std::string &text, size_t at) {
    const auto byte = [&](size_t i) {
        return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u;
    };
    const unsigned lead = byte(at), second = byte(at + 1);
    const size_t bytes = lead < 0x80   ? 1
                         : lead < 0xc2 ? 0
                         : lead < 0xe0 ? 2
                         : lead < 0xf0 ? 3
                         : lead < 0xf5 ? 4
                                       : 0;
    for (size_t i = 1; i < bytes; ++i) {
        if ((byte(at + i) & 0xc0) != 0x80) return 0;
    }
    const bool is_long = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
    const bool is_surrogate = lead == 0xed && second >= 0xa0;
    return is_long || is_surrogate || (lead == 0xf4 && second >= 0x90) ? 0 : bytes;
}

// The controls C0, DEL and C1, which terminals obey, and those that turn the direction of text.
bool is_control(const std::string &text, size_t at, size_t bytes) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[at + i]); };
    if (bytes == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
    if (bytes == 2) return byte(0) == 0xc2 && byte(1) < 0xa0;
    if (bytes != 3 || byte(0) != 0xe2) return false;
    return (byte(1) == 0x80 && byte(2) >= 0xa8 && byte(2) <= 0xae) ||
           (byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9);
}

}  // namespace

bool ends_with(const std::string &text, const std::string &end) {
    return text.size() >= end.size() &&
           text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::string path_in(const std::string &directory, const std::string &name) {
    const bool ends = os::name_start(directory) == directory.size();
    return directory + (ends ? "" : "/") + name;
}

std::string printable(const std::string &text) {
    std::string result;
    for (size_t i = 0; i < text.size();) {
        const size_t bytes = character_bytes(text, i);
        const bool shown = bytes > 0 && !is_control(text, i, bytes);
        result += shown ? text.substr(i, bytes) : "?";
        i += std::max<size_t>(bytes, 1);
    }
    return result;
}

size_t columns_of(const std::string &text) {
    size_t columns = 0;
    for (const char c : text) columns += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    return columns;
}

std::string human_bytes(double bytes) {
    static const char *const kUnits[] = {"B", "kB", "MB", "GB", "TB"};
    size_t unit = 0;
    while (bytes >= 1000 && unit < 4) {
        bytes /= 1000;
        ++unit;
    }
    char text[32];
    std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
    return text;
}

std::string plural(int64_t count, const char *noun) {
    return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
}

const char *format_name(qk_format format) {
    switch (format) {
        case QK_FORMAT_F32: return "f32";
        case QK_FORMAT_F16: return "f16";
        case QK_FORMAT_BF16: return "bf16";
        case QK_FORMAT_I8: return "i8";
        case QK_FORMAT_I16: return "i16";
        case QK_FORMAT_U4_AFFINE: return "int4";
        case QK_FORMAT_NF4: return "nf4";
        case QK_FORMAT_FP4_BNB: return "fp4";
        case QK_FORMAT_FP4_E2M1: return "e2m1";
        case QK_FORMAT_LUT4: return "lut4";
        case QK_FORMAT_IQ4_NL: return "iq4_nl";
        case QK_FORMAT_FP4_GGML: return "fp4_ggml";
        case QK_FORMAT_LUT8: return "lut8";
        case QK_FORMAT_E4M3: return "e4m3";
        case QK_FORMAT_E8M0: return "e8m0";
        case QK_FORMAT_S8: return "int8";
        default: return "unknown";
    }
}

const char *layout_name(qk_layout layout) {
    switch (layout) {
        case QK_LAYOUT_ROW: return "row";
        case QK_LAYOUT_ROW_HIGH: return "row_high";
        case QK_LAYOUT_AWQ_GEMM: return "awq_gemm";
        case QK_LAYOUT_AWQ_GEMV: return "awq_gemv";
        case QK_LAYOUT_GPTQ: return "gptq";
        case QK_LAYOUT_GPTQ_V1: return "gptq_v1";
        case QK_LAYOUT_WORD: return "word";
        case QK_LAYOUT_GGUF_Q4_0: return "gguf_q4_0";
        case QK_LAYOUT_GGUF_Q4_1: return "gguf_q4_1";
        case QK_LAYOUT_GGUF_Q5_0: return "gguf_q5_0";
        case QK_LAYOUT_GGUF_Q5_1: return "gguf_q5_1";
        case QK_LAYOUT_GGUF_Q8_0: return "gguf_q8_0";
        case QK_LAYOUT_GGUF_Q4_K: return "gguf_q4_k";
        case QK_LAYOUT_GGUF_Q5_K: return "gguf_q5_k";
        case QK_LAYOUT_GGUF_Q6_K: return "gguf_q6_k";
        case QK_LAYOUT_GGUF_IQ4_NL: return "gguf_iq4_nl";
        case QK_LAYOUT_GGUF_IQ4_XS: return "gguf_iq4_xs";
        case QK_LAYOUT_GGUF_MXFP4: return "gguf_mxfp4";
        default: return "unknown";
    }
}

std::string group_name(const qk_tensor_desc &desc) {
    if (desc.group_size == 0) return "-";
    return desc.group_size == QK_GROUP_ROW ? "row" : std::to_string(desc.group_size);
}

std::string shape_name(const int64_t *shape, int32_t rank) {
    std::string text;
    for (int32_t i = 0; i < rank; ++i) text += (i == 0 ? "" : " x ") + std::to_string(shape[i]);
    return rank == 0 ? "scalar" : text;
}

int32_t element_bytes(qk_format format) { return format == QK_FORMAT_F32 ? 4 : 2; }

qk_dtype dtype_of(qk_format format) {
    if (format == QK_FORMAT_F32) return QK_DTYPE_F32;
    return format == QK_FORMAT_F16 ? QK_DTYPE_F16 : QK_DTYPE_BF16;
}

qk_format float_format_of(const std::string &name) {
    if (name == "f32") return QK_FORMAT_F32;
    return name == "f16" ? QK_FORMAT_F16 : QK_FORMAT_BF16;
}

double float_value(qk_format format, const void *element) {
    if (format == QK_FORMAT_F32) {
        float value;
        std::memcpy(&value, element, 4);
        return value;
    }
    uint16_t bits;
    std::memcpy(&bits, element, 2);
    if (format == QK_FORMAT_BF16) {
        const uint32_t wide = static_cast<uint32_t>(bits) << 16;
        float value;
        std::memcpy(&value, &wide, 4);
        return value;
    }
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double value =
        exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
    if (exponent == 31) value = mantissa != 0 ? NAN : INFINITY;
    return (bits & 0x8000) != 0 ? -value : value;
}
