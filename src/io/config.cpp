// Four files, five methods, two generations of key names; anything of an unexpected type is
// refused, anything unknown is left to the dialects to refuse by name.
#include "config.hpp"

#include <cstdio>

#include "checkpoint.hpp"

namespace qk_io {
namespace {

// Every layer is compared with every scheme.
constexpr int64_t kMaxSchemes = 256;

struct Reader {
    const char *what;
    qk_io_message *message;
};

const json_t *get(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? nullptr : value;
}

qk_status wrong_type(const Reader &r, const char *key, const char *wanted) {
    return fail(r.message, QK_ERROR_CORRUPT, "%.128s: \"%s\" must be %s", r.what, key, wanted);
}

qk_status get_int(const Reader &r, const json_t *object, const char *key, int64_t *out) {
    const json_t *value = get(object, key);
    if (value == nullptr) return QK_OK;
    if (!json_is_integer(value)) return wrong_type(r, key, "an integer");
    *out = json_integer_value(value);
    return QK_OK;
}

qk_status get_bool(const Reader &r, const json_t *object, const char *key, bool *out) {
    const json_t *value = get(object, key);
    if (value == nullptr) return QK_OK;
    if (!json_is_boolean(value)) return wrong_type(r, key, "true or false");
    *out = json_is_true(value);
    return QK_OK;
}

qk_status get_text(const Reader &r, const json_t *object, const char *key, char *out, size_t size) {
    const json_t *value = get(object, key);
    if (value == nullptr) return QK_OK;
    if (!json_is_string(value)) return wrong_type(r, key, "a string");
    snprintf(out, size, "%s", json_string_value(value));
    return QK_OK;
}

// Lower case: AutoAWQ has written "GEMM" and "gemm".
qk_status get_word(const Reader &r, const json_t *object, const char *key, char *out, size_t size) {
    QK_IO_TRY(get_text(r, object, key, out, size));
    for (char *c = out; *c != 0; ++c) {
        if (*c >= 'A' && *c <= 'Z') *c = static_cast<char>(*c - 'A' + 'a');
    }
    return QK_OK;
}

// Rows and columns of a block: [128,128], in old files "128x128". Of another form it says nothing:
// the tensors' shapes decide.
void get_block(const json_t *object, const char *key, int64_t block[2]) {
    const json_t *list = get(object, key);
    const char *text = json_string_value(list);
    for (size_t i = 0; text != nullptr && i < 2; ++i) {
        for (; *text >= '0' && *text <= '9' && block[i] < 100000; ++text) {
            block[i] = block[i] * 10 + (*text - '0');
        }
        if (*text == 'x') ++text;
    }
    if (json_array_size(list) != 2) return;
    for (size_t i = 0; i < 2; ++i) {
        const json_int_t size = json_integer_value(json_array_get(list, i));
        block[i] = size > 0 ? size : 0;
    }
}

// actorder is a word, null, or in old files a boolean.
qk_status get_actorder(const Reader &r, const json_t *weights, Scheme *scheme) {
    const json_t *value = get(weights, "actorder");
    if (json_is_boolean(value)) {
        snprintf(scheme->actorder, sizeof scheme->actorder, "%s",
                 json_is_true(value) ? "group" : "");
        return QK_OK;
    }
    return get_word(r, weights, "actorder", scheme->actorder, sizeof scheme->actorder);
}

qk_status read_scheme(const Reader &r, const json_t *group, const Config &config, Scheme *scheme) {
    *scheme = Scheme{};
    scheme->symmetric = true;
    snprintf(scheme->format, sizeof scheme->format, "%s", config.checkpoint_format);
    if (!json_is_object(group)) return wrong_type(r, "config_groups", "an object of objects");
    QK_IO_TRY(get_word(r, group, "format", scheme->format, sizeof scheme->format));
    const json_t *weights = get(group, "weights");
    if (weights == nullptr) return QK_OK;  // a group that leaves its weights alone: bits 0
    if (!json_is_object(weights)) return wrong_type(r, "weights", "an object");
    QK_IO_TRY(get_int(r, weights, "num_bits", &scheme->bits));
    QK_IO_TRY(get_int(r, weights, "group_size", &scheme->group_size));
    get_block(weights, "block_structure", scheme->block);
    QK_IO_TRY(get_bool(r, weights, "symmetric", &scheme->symmetric));
    QK_IO_TRY(get_word(r, weights, "type", scheme->type, sizeof scheme->type));
    QK_IO_TRY(get_word(r, weights, "strategy", scheme->strategy, sizeof scheme->strategy));
    return get_actorder(r, weights, scheme);
}

// Groups differ in the layers they are for, too, which is not read: equal ones count once.
bool is_known(const Config &config, const Scheme &scheme) {
    for (int64_t i = 0; i < config.scheme_count; ++i) {
        const Scheme &other = config.schemes[i];
        if (other.bits == scheme.bits && other.group_size == scheme.group_size &&
            other.block[0] == scheme.block[0] && other.block[1] == scheme.block[1] &&
            other.symmetric == scheme.symmetric && same(other.type, scheme.type) &&
            same(other.strategy, scheme.strategy) && same(other.actorder, scheme.actorder) &&
            same(other.format, scheme.format)) {
            return true;
        }
    }
    return false;
}

qk_status read_schemes(qk_checkpoint *c, const Reader &r, const json_t *section, Config *config) {
    json_t *groups = json_object_get(section, "config_groups");
    if (groups == nullptr || json_is_null(groups)) return QK_OK;
    if (!json_is_object(groups)) return wrong_type(r, "config_groups", "an object of objects");
    size_t most = json_object_size(groups);
    if (most > static_cast<size_t>(kMaxSchemes)) most = static_cast<size_t>(kMaxSchemes);
    Scheme *schemes = static_cast<Scheme *>(c->arena.take(&c->memory, most * sizeof(Scheme)));
    if (schemes == nullptr) return out_of_memory(r.message);
    config->schemes = schemes;
    for (void *at = json_object_iter(groups); at != nullptr;
         at = json_object_iter_next(groups, at)) {
        Scheme scheme;
        QK_IO_TRY(read_scheme(r, json_object_iter_value(at), *config, &scheme));
        if (is_known(*config, scheme)) continue;
        if (config->scheme_count == kMaxSchemes) {
            return fail(r.message, QK_ERROR_CORRUPT,
                        "%.128s: more than %lld different config_groups, the limit", r.what,
                        static_cast<long long>(kMaxSchemes));
        }
        schemes[config->scheme_count++] = scheme;
    }
    return QK_OK;
}

// An object or a list with something in it.
bool has_members(const json_t *section, const char *key) {
    const json_t *value = get(section, key);
    return json_object_size(value) + json_array_size(value) > 0;
}

struct MethodRow {
    const char *name;
    Method method;
    const char *detail;  // the key that says more; NULL: none
};
constexpr MethodRow kMethods[] = {{"awq", Method::kAwq, nullptr},
                                  {"gptq", Method::kGptq, nullptr},
                                  {"compressed-tensors", Method::kCompressedTensors, "format"},
                                  {"bitsandbytes", Method::kBitsandbytes, nullptr},
                                  {"auto-round", Method::kAutoRound, "packing_format"},
                                  {"intel/auto-round", Method::kAutoRound, "packing_format"},
                                  {"modelopt", Method::kOther, "quant_algo"}};

// AutoRound packs as others do, and its packing format says as whom.
struct PackingRow {
    const char *name;
    Method method;
    const char *checkpoint_format;
};
constexpr PackingRow kPackings[] = {{"", Method::kGptq, "gptq"},
                                    {"auto_round:gptq", Method::kGptq, "gptq"},
                                    {"auto_round:auto_gptq", Method::kGptq, "gptq"},
                                    {"auto_round", Method::kGptq, "gptq_v2"},
                                    {"auto_round:gptqmodel", Method::kGptq, "gptq_v2"},
                                    {"auto_round:awq", Method::kAwq, ""},
                                    {"auto_round:auto_awq", Method::kAwq, ""}};

// Old files do not name their method; their keys do.
const char *guess_method(const json_t *section) {
    if (get(section, "config_groups") != nullptr) return "compressed-tensors";
    if (get(section, "load_in_4bit") != nullptr || get(section, "load_in_8bit") != nullptr) {
        return "bitsandbytes";
    }
    if (get(section, "quant_algo") != nullptr) return "modelopt";
    if (get(section, "desc_act") != nullptr) return "gptq";
    const bool awq = get(section, "w_bit") != nullptr || get(section, "q_group_size") != nullptr ||
                     get(section, "zero_point") != nullptr;
    return awq ? "awq" : "";
}

// AutoRound is one of the two from here on, or a method of its own.
void resolve_packing(Config *config) {
    config->method = Method::kOther;
    for (const PackingRow &row : kPackings) {
        if (!same(row.name, config->detail)) continue;
        config->method = row.method;
        snprintf(config->checkpoint_format, sizeof config->checkpoint_format, "%s",
                 row.checkpoint_format);
    }
}

// Of AWQ and GPTQ. Other methods may have keys of these names and other types.
qk_status read_words(const Reader &r, const json_t *section, Config *config) {
    QK_IO_TRY(get_int(r, section, "w_bit", &config->bits));
    QK_IO_TRY(get_int(r, section, "q_group_size", &config->group_size));
    QK_IO_TRY(get_int(r, section, "bits", &config->bits));
    QK_IO_TRY(get_int(r, section, "group_size", &config->group_size));
    QK_IO_TRY(get_bool(r, section, "desc_act", &config->desc_act));
    QK_IO_TRY(get_word(r, section, "version", config->version, sizeof config->version));
    QK_IO_TRY(get_word(r, section, "checkpoint_format", config->checkpoint_format,
                       sizeof config->checkpoint_format));
    config->differs = has_members(section, "dynamic") || has_members(section, "extra_config");
    bool marlin = false;
    QK_IO_TRY(get_bool(r, section, "is_marlin_format", &marlin));
    if (marlin) snprintf(config->checkpoint_format, sizeof config->checkpoint_format, "marlin");
    return QK_OK;
}

qk_status read_section(qk_checkpoint *c, const Reader &r, const json_t *section, bool *found) {
    Config config = {};
    snprintf(config.method_name, sizeof config.method_name, "%s", guess_method(section));
    QK_IO_TRY(get_word(r, section, "quant_method", config.method_name, sizeof config.method_name));
    if (config.method_name[0] == 0) return QK_OK;
    config.method = Method::kOther;
    for (const MethodRow &row : kMethods) {
        if (!same(row.name, config.method_name)) continue;
        config.method = row.method;
        config.detail_key = row.detail;
    }
    if (config.detail_key != nullptr && json_is_string(get(section, config.detail_key))) {
        QK_IO_TRY(get_text(r, section, config.detail_key, config.detail, sizeof config.detail));
    }
    if (config.method == Method::kAutoRound) resolve_packing(&config);
    get_block(section, "weight_block_size", config.block);
    config.transforms =
        has_members(section, "transform_config") || has_members(section, "rotation_config");
    if (config.method == Method::kAwq || config.method == Method::kGptq) {
        QK_IO_TRY(read_words(r, section, &config));
    }
    if (config.method == Method::kCompressedTensors) {
        QK_IO_TRY(get_word(r, section, "format", config.checkpoint_format,
                           sizeof config.checkpoint_format));
        QK_IO_TRY(read_schemes(c, r, section, &config));
    }
    c->config = config;
    *found = true;
    return QK_OK;
}

// ModelOpt's hf_quant_config.json and MLX's config.json have "quantization". MLX's repeats it as
// "quantization_config", without a quant_method.
// Models of text and images may have the one of the text in its configuration.
const json_t *section_of(const json_t *root) {
    static constexpr const char *kKeys[] = {"quantization_config", "compression_config"};
    for (const char *key : kKeys) {
        const json_t *section = get(root, key);
        if (section == nullptr) section = get(get(root, "text_config"), key);
        if (section != nullptr) return section;
    }
    const json_t *section = get(root, "quantization");  // of other programs: any value
    return json_is_object(section) ? section : root;
}

// The type of the weights before they were quantized, and of what stayed dense.
qk_format model_format(const json_t *root) {
    static constexpr const char *kKeys[] = {"dtype", "torch_dtype"};
    for (const char *key : kKeys) {
        const json_t *value = get(root, key);
        if (value == nullptr) value = get(get(root, "text_config"), key);
        if (json_is_string(value)) return format_named(json_string_value(value));
    }
    return 0;
}

}  // namespace

qk_format format_named(const char *dtype) {
    return same(dtype, "float32")    ? QK_FORMAT_F32
           : same(dtype, "float16")  ? QK_FORMAT_F16
           : same(dtype, "bfloat16") ? QK_FORMAT_BF16
                                     : 0;
}

qk_status read_config(qk_checkpoint *c, const char *text, size_t bytes, const char *what,
                      bool *found, qk_io_message *message) {
    qk_status status = QK_OK;
    json_t *root =
        json_parse(Text{text, bytes}, c->limits.json_depth, kMaxJsonValues, what, message, &status);
    if (root == nullptr) return status;
    const Reader reader{what, message};
    if (c->model_format == 0) c->model_format = model_format(root);
    const json_t *section = section_of(root);
    status = json_is_object(section)
                 ? read_section(c, reader, section, found)
                 : fail(message, QK_ERROR_CORRUPT, "%.128s: %s must be an object", what,
                        section == root ? "its JSON" : "the quantization configuration");
    json_decref(root);
    return status;
}

}  // namespace qk_io
