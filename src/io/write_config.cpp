// config.json for what the writer wrote: the source's text, with the quantization_config that
// transformers and vLLM look for as its last member.
#include "writer.hpp"

namespace qk_io {
namespace {

struct Request {
    qk_dialect dialect;
    const qk_tensor_desc *desc;
    qk_format dense_format;
    const char *const *kept;
    int64_t kept_count;
    const qk_checkpoint *from;  // may be null
};

// Whether a layer that `from` has is not among those that stay dense.
bool quantizes(const Request &r, const char *name) {
    qk_layer layer;
    for (int64_t i = 0; i < r.kept_count; ++i) {
        if (same(r.kept[i], name)) return false;
    }
    return r.from != nullptr &&
           qk_checkpoint_find_layer(r.from, name, &layer, sizeof(layer)) == QK_OK;
}

json_t *names(const Request &r) {
    json_t *list = json_array();
    for (int64_t i = 0; i < r.kept_count; ++i) {
        if (json_array_append_new(list, json_string(r.kept[i])) == 0) continue;
        json_decref(list);
        return nullptr;
    }
    return list;
}

// The keys of transformers' BitsAndBytesConfig.to_dict(), in its order.
json_t *bnb_section(const Request &r) {
    const bool eight = r.desc->format == QK_FORMAT_S8;
    const char *type = r.desc->format == QK_FORMAT_NF4 ? "nf4" : "fp4";
    const char *compute = r.dense_format == QK_FORMAT_F32   ? "float32"
                          : r.dense_format == QK_FORMAT_F16 ? "float16"
                                                            : "bfloat16";
    json_t *kept = r.kept_count == 0 ? json_null() : names(r);
    return json_pack(
        "{s:b, s:b, s:s, s:s, s:s, s:b, s:b, s:b, s:o, s:f, s:b, s:b, s:s}",                 //
        "_load_in_4bit", !eight, "_load_in_8bit", eight, "bnb_4bit_compute_dtype", compute,  //
        "bnb_4bit_quant_storage", "uint8", "bnb_4bit_quant_type", type,                      //
        "bnb_4bit_use_double_quant", r.desc->scale_format == QK_FORMAT_LUT8 ? 1 : 0,         //
        "llm_int8_enable_fp32_cpu_offload", 0, "llm_int8_has_fp16_weight", 0,                //
        "llm_int8_skip_modules", kept, "llm_int8_threshold", 6.0, "load_in_4bit", !eight,    //
        "load_in_8bit", eight, "quant_method", "bitsandbytes");
}

// What compressed-tensors says of weights: integers, or FP4 with scales of 8 bits.
json_t *ct_weights(const Request &r) {
    const qk_tensor_desc &d = *r.desc;
    const bool rows = d.group_size == QK_GROUP_ROW, fp8 = d.format == QK_FORMAT_E4M3;
    const bool fp4 = d.format == QK_FORMAT_FP4_E2M1;
    const bool nvfp4 = fp4 && d.scale_format == QK_FORMAT_E4M3;
    const bool zeros = (d.flags & QK_TENSOR_FLOAT_MIN) != 0 ||
                       (d.format == QK_FORMAT_U4_AFFINE && (d.flags & QK_TENSOR_SYMMETRIC) == 0);
    const bool ordered = (d.flags & QK_TENSOR_ORDERED) != 0;
    json_t *weights = json_pack("{s:o, s:n, s:b, s:o, s:i, s:s, s:{}, s:s, s:b, s:s}",          //
                                "actorder", ordered ? json_string("group") : json_null(),       //
                                "block_structure", "dynamic", 0,                                //
                                "group_size", rows ? json_null() : json_integer(d.group_size),  //
                                "num_bits", fp8 || d.format == QK_FORMAT_S8 ? 8 : 4,            //
                                "observer", "minmax", "observer_kwargs",                        //
                                "strategy",
                                nvfp4  ? "tensor_group"
                                : rows ? "channel"
                                       : "group",  //
                                "symmetric", zeros ? 0 : 1, "type", fp4 || fp8 ? "float" : "int");
    if (!fp4 && d.scale_format != QK_FORMAT_E8M0) return weights;
    json_object_set_new(weights, "scale_dtype",
                        json_string(nvfp4 ? "torch.float8_e4m3fn" : "torch.uint8"));
    return weights;
}

// The keys of compressed-tensors' QuantizationConfig with one group for all Linear modules.
json_t *ct_section(const Request &r) {
    const bool e8m0 = r.desc->scale_format == QK_FORMAT_E8M0;
    const char *format = r.desc->format == QK_FORMAT_E4M3 && e8m0 ? "mxfp8-quantized"
                         : r.desc->format == QK_FORMAT_E4M3       ? "float-quantized"
                         : r.desc->format != QK_FORMAT_FP4_E2M1   ? "pack-quantized"
                         : e8m0                                   ? "mxfp4-pack-quantized"
                                                                  : "nvfp4-pack-quantized";
    return json_pack("{s:{s:{s:n, s:n, s:[s], s:o}}, s:s, s:n, s:o, s:n, s:s, s:s}",       //
                     "config_groups", "group_0", "input_activations",                      //
                     "output_activations", "targets", "Linear", "weights", ct_weights(r),  //
                     "format", format, "global_compression_ratio",                         //
                     "ignore", names(r), "kv_cache_scheme",                                //
                     "quant_method", "compressed-tensors",                                 //
                     "quantization_status", "compressed");
}

// The keys of AutoAWQ's configuration, as transformers reads them.
json_t *awq_section(const Request &r) {
    const bool gemv = r.dialect == QK_DIALECT_AWQ_GEMV;
    return json_pack("{s:s, s:i, s:i, s:b, s:s, s:o}", "quant_method", "awq", "bits", 4,   //
                     "group_size", static_cast<int>(r.desc->group_size), "zero_point", 1,  //
                     "version", gemv ? "gemv" : "gemm",                                    //
                     "modules_to_not_convert", names(r));
}

// The keys of GPTQ's configuration that its readers share; it has no list of dense modules.
json_t *gptq_section(const Request &r) {
    const bool v2 = r.dialect == QK_DIALECT_GPTQ_V2;
    const bool ordered = (r.desc->flags & QK_TENSOR_ORDERED) != 0;
    const bool eight = r.desc->format == QK_FORMAT_S8;
    const bool symmetric = eight ? (r.desc->flags & QK_TENSOR_FLOAT_MIN) == 0
                                 : (r.desc->flags & QK_TENSOR_SYMMETRIC) != 0;
    return json_pack(
        "{s:s, s:i, s:i, s:b, s:b, s:b, s:s}", "quant_method", "gptq", "bits", eight ? 8 : 4,  //
        "group_size", static_cast<int>(r.desc->group_size), "desc_act", ordered,               //
        "sym", symmetric,                                                                      //
        "lm_head", quantizes(r, "lm_head") ? 1 : 0, "checkpoint_format", v2 ? "gptq_v2" : "gptq");
}

// The keys of ModelOpt's configuration for weights alone: x stays in 16 bits.
json_t *modelopt_section(const Request &r) {
    return json_pack("{s:{s:{s:{s:b, s:i, s:s, s:i}, s:[s]}}, s:o, s:s, s:s}",  //
                     "config_groups", "group_0", "weights", "dynamic", 0,       //
                     "num_bits", 4, "type", "float", "group_size", 16,          //
                     "targets", "Linear", "ignore", names(r), "quant_algo",     //
                     "W4A16_NVFP4", "quant_method", "modelopt");
}

// The keys of DeepSeek's: FP8's, with experts of FP4.
json_t *deepseek_section(const Request &r) {
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:[i,i], s:o}", "quant_method", "fp8", "fmt",
                     "e4m3", "scale_fmt", "ue8m0", "activation_scheme", "dynamic", "expert_dtype",
                     "fp4", "weight_block_size", 128, 128, "modules_to_not_convert", names(r));
}

// The keys of gpt-oss's, whose experts alone are quantized.
json_t *gpt_oss_section(const Request &r) {
    return json_pack("{s:o, s:s}", "modules_to_not_convert", names(r), "quant_method", "mxfp4");
}

struct Section {
    qk_dialect dialect;
    json_t *(*make)(const Request &r);
};
constexpr Section kSections[] = {
    {QK_DIALECT_BITSANDBYTES, bnb_section},  {QK_DIALECT_COMPRESSED_TENSORS, ct_section},
    {QK_DIALECT_AWQ_GEMM, awq_section},      {QK_DIALECT_AWQ_GEMV, awq_section},
    {QK_DIALECT_GPTQ_V1, gptq_section},      {QK_DIALECT_GPTQ_V2, gptq_section},
    {QK_DIALECT_MODELOPT, modelopt_section}, {QK_DIALECT_DEEPSEEK, deepseek_section},
    {QK_DIALECT_GPT_OSS, gpt_oss_section},   {QK_DIALECT_DENSE, nullptr}};

const Section *section_of(qk_dialect dialect) {
    for (const Section &section : kSections) {
        if (section.dialect == dialect) return &section;
    }
    return nullptr;
}

constexpr const char *kKeys[] = {"quantization_config",
                                 "compression_config"};  // the older name of the same section

qk_status check(const Request &r, qk_io_message *message) {
    if (r.desc == nullptr || (r.kept == nullptr && r.kept_count > 0)) {
        return fail(message, QK_ERROR_NULL, "%s: NULL", r.desc == nullptr ? "desc" : "kept");
    }
    if (section_of(r.dialect) == nullptr) {
        return fail(message, QK_ERROR_UNSUPPORTED, "dialect: %d; those of qk_dialect are accepted",
                    static_cast<int>(r.dialect));
    }
    if (r.kept_count < 0) {
        return fail(message, QK_ERROR_ARGUMENT, "kept_count: %lld; at least 0",
                    static_cast<long long>(r.kept_count));
    }
    for (int64_t i = 0; i < r.kept_count; ++i) {
        if (r.kept[i] == nullptr) {
            return fail(message, QK_ERROR_NULL, "kept[%lld]: NULL", static_cast<long long>(i));
        }
        if (!is_utf8(r.kept[i])) {
            return fail(message, QK_ERROR_ARGUMENT, "kept[%lld]: not UTF-8",
                        static_cast<long long>(i));
        }
    }
    return QK_OK;
}

qk_status checked(Text text, const qk_checkpoint *from, qk_io_message *message) {
    qk_status status = QK_ERROR_MEMORY;
    json_t *root =
        json_parse(text, from->limits.json_depth, kMaxJsonValues, "config.json", message, &status);
    if (root == nullptr) return status;
    status = json_is_object(root) ? QK_OK
                                  : fail(message, QK_ERROR_CORRUPT, "config.json is not an object");
    json_decref(root);
    return status;
}

// A name may be written with escapes.
bool is_section(Text key) {
    json_t *name = json_loadb(key.data, key.size, JSON_DECODE_ANY, nullptr);
    const char *text = json_string_value(name);
    bool found = false;
    for (const char *other : kKeys) found = found || (text != nullptr && same(text, other));
    json_decref(name);
    return found;
}

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// The other members as they are written, byte for byte, in their order, without the braces.
qk_status append_members(qk_writer *w, Text text, int32_t max_depth, bool *any,
                         qk_io_message *message) {
    while (text.size > 0 && is_space(*text.data)) ++text.data, --text.size;
    JsonMembers members = json_members(text, max_depth);
    Text key, value;
    while (json_next(&members, &key, &value) == 1) {
        if (is_section(key)) continue;
        if (*any) QK_IO_TRY(qk_writer_append(w, ",", 1, message));
        const char *begin = key.data, *end = value.data + value.size;
        while (is_space(begin[-1])) --begin;  // the text begins with a brace
        QK_IO_TRY(qk_writer_append(w, begin, static_cast<size_t>(end - begin), message));
        *any = true;
    }
    return QK_OK;
}

// One member: an object of its own without the braces.
qk_status append_section(qk_writer *w, const Request &r, bool any, qk_io_message *message) {
    json_t *root = json_pack("{s:o}", kKeys[0], section_of(r.dialect)->make(r));
    const size_t bytes = json_dumpb(root, nullptr, 0, JSON_INDENT(2));
    char *text = bytes > 0 ? static_cast<char *>(w->memory.allocate(bytes, 1)) : nullptr;
    qk_status status = text == nullptr ? out_of_memory(message) : QK_OK;
    if (status == QK_OK && any) status = qk_writer_append(w, ",", 1, message);
    if (status == QK_OK) {
        json_dumpb(root, text, bytes, JSON_INDENT(2));
        status = qk_writer_append(w, text + 1, bytes - 3, message);  // "{" and "\n}"
    }
    w->memory.release(text);
    json_decref(root);
    return status;
}

qk_status append(qk_writer *w, const qk_checkpoint *from, const Request &request,
                 qk_io_message *message) {
    const bool empty = from == nullptr || from->config_json.data == nullptr;
    if (!empty) QK_IO_TRY(checked(from->config_json, from, message));
    QK_IO_TRY(qk_writer_append(w, "{", 1, message));
    bool any = false;
    if (!empty) {
        QK_IO_TRY(append_members(w, from->config_json, from->limits.json_depth, &any, message));
    }
    if (request.dialect != QK_DIALECT_DENSE) {
        QK_IO_TRY(append_section(w, request, any, message));
    }
    return qk_writer_append(w, "\n}\n", 3, message);
}

}  // namespace
}  // namespace qk_io

using namespace qk_io;

qk_status qk_writer_append_config(qk_writer *writer, const qk_checkpoint *from, qk_dialect dialect,
                                  const qk_tensor_desc *desc, qk_format dense_format,
                                  const char *const *kept, int64_t kept_count,
                                  qk_io_message *message) {
    clear(message);
    if (writer == nullptr) return fail(message, QK_ERROR_NULL, "writer: NULL");
    const Request request = {dialect, desc, dense_format, kept, kept_count, from};
    QK_IO_TRY(check(request, message));
    return append(writer, from, request, message);
}

qk_status qk_checkpoint_write_config(const qk_checkpoint *from, const char *path,
                                     qk_dialect dialect, const qk_tensor_desc *desc,
                                     qk_format dense_format, const char *const *kept,
                                     int64_t kept_count, qk_io_message *message) {
    clear(message);
    const Request request = {dialect, desc, dense_format, kept, kept_count, from};
    if (path == nullptr) return fail(message, QK_ERROR_NULL, "path: NULL");
    QK_IO_TRY(check(request, message));
    qk_writer *writer = nullptr;
    QK_IO_TRY(qk_writer_create(path, from == nullptr ? nullptr : &from->memory.allocator, &writer,
                               message));
    qk_status status = append(writer, from, request, message);
    if (status == QK_OK) status = qk_writer_finish(writer, message);
    qk_writer_destroy(writer);
    return status;
}
