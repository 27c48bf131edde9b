/* A language model: loads a Llama-, Mistral-, Qwen2- or Qwen3-style checkpoint in any dialect that
 * qk reads, dense ones included, and generates tokens. Products are qk's, everything between them
 * is plain f32 loops.
 *
 *   cc -std=c99 -O3 llama.c -lqk_io -lqk -ljansson -lpthread -lm -o llama
 *   ./llama MODEL --ids 1,15043,29892        token ids in, token ids out
 *   ./llama MODEL --prompt "Once upon"       text in, text out, where the tokens are bytes
 *
 * It has no tokenizer: ids of other models come from the tokenizer that belongs to them. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime, threads */
#include <math.h>
#include <pthread.h>
#include <qk_io.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FAILED = 1, USAGE = 2 }; /* exit codes */
enum { CHUNK = 256 };           /* tokens of the prompt that are multiplied at once */

static qk_checkpoint *file;
static qk_context *context;
static size_t workspace_bytes; /* that the fastest kernels need */
static int64_t token_bytes;    /* of the weights that each token reads */

static void fail(int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("llama: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    va_end(arguments);
    exit(code);
}

static void check(qk_status status, const char *why) {
    if (status != QK_OK) fail(FAILED, "%s: %s", qk_status_string(status), why);
}

static void *allocate(int64_t count, size_t size) {
    void *memory = calloc((size_t)count, size);
    if (memory == NULL) fail(FAILED, "out of memory: %lld x %zu bytes", (long long)count, size);
    return memory;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- the command line ---------------------------------------------------------------------- */

static const char kUsage[] =
    "usage: llama MODEL --prompt TEXT | --ids 1,2,3 [options]\n"
    "  --tokens N       how many to generate; default: 64, fewer at the context's end\n"
    "  --temperature T  0, the default: the likeliest token; else drawn from softmax(logits / T)\n"
    "  --top-p P        drawn among the likeliest tokens that have P together; default: 1\n"
    "  --seed N         of the drawing; default: 0\n"
    "  --threads N      0, the default: one a core\n"
    "  --ignore-end     goes on after a token that ends a text\n"
    "  --int8, --bf16   faster products, a little less exact\n";

enum { PROMPT, IDS, TOKENS, TEMPERATURE, TOP_P, SEED, THREADS, IGNORE_END, INT8, BF16, OPTIONS };
static const struct {
    const char *name;
    enum { TEXT, WHOLE, NUMBER, FLAG } kind;
    double preset, most;
} kOptions[OPTIONS] = {{"--prompt", TEXT, 0, 0},      {"--ids", TEXT, 0, 0},
                       {"--tokens", WHOLE, 64, 1e7},  {"--temperature", NUMBER, 0, 1e6},
                       {"--top-p", NUMBER, 1, 1},     {"--seed", WHOLE, 0, 0x1p53},
                       {"--threads", WHOLE, 0, 1024}, {"--ignore-end", FLAG, 0, 0},
                       {"--int8", FLAG, 0, 0},        {"--bf16", FLAG, 0, 0}};
static const char *given[OPTIONS], *model_path;

static double option(int which) {
    const char *const text = given[which];
    char *end;
    const double value = text == NULL ? kOptions[which].preset : strtod(text, &end);
    if (text == NULL) return value;
    if (end == text || *end != 0 || !(value >= 0 && value <= kOptions[which].most) ||
        (kOptions[which].kind == WHOLE && value != floor(value))) {
        fail(USAGE, "%s: \"%s\"; accepted are %s from 0 to %.0f", kOptions[which].name, text,
             kOptions[which].kind == WHOLE ? "whole numbers" : "numbers", kOptions[which].most);
    }
    return value;
}

static void read_options(int argc, char **argv) {
    for (int i = 1; i < argc; ++i) {
        const char *const name = argv[i];
        int which = 0;
        while (which < OPTIONS && strcmp(name, kOptions[which].name) != 0) ++which;
        if (which < OPTIONS) {
            if (kOptions[which].kind != FLAG && ++i == argc) fail(USAGE, "%s: of what?", name);
            given[which] = argv[i];
        } else if (model_path != NULL || strncmp(name, "--", 2) == 0) {
            fail(USAGE, "\"%s\" is neither an option nor the only MODEL\n%s", name, kUsage);
        } else {
            model_path = name;
        }
    }
    if (model_path == NULL || (given[PROMPT] == NULL) == (given[IDS] == NULL)) {
        fail(USAGE, "a MODEL and one of --prompt and --ids are needed\n%s", kUsage);
    }
    if (given[INT8] != NULL && given[BF16] != NULL) fail(USAGE, "--int8 or --bf16, not both");
    for (int i = TOKENS; i <= THREADS; ++i) option(i);
}

/* ---- config.json --------------------------------------------------------------------------- */

static struct {
    int hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, positions;
    float eps;
} config;
static double ends[16]; /* tokens that end a text */
static int end_count;

static double number(const char *key, double fallback) { /* NAN: the key must be there */
    qk_io_message message;
    double value;
    const qk_status status = qk_checkpoint_config_number(file, key, &value, &message);
    if (status == QK_ERROR_ARGUMENT && !isnan(fallback)) return fallback;
    check(status, message.text);
    return value;
}

static int size(const char *key, double fallback) {
    const double value = number(key, fallback);
    if (!(value >= 1 && value <= 1 << 24) || value != floor(value)) {
        fail(FAILED, "config.json: \"%s\" is %g; accepted are 1 to %d", key, value, 1 << 24);
    }
    return (int)value;
}

static void word(const char *key, const char *fallback, char *text) {
    qk_io_message message;
    const qk_status status = qk_checkpoint_config_text(file, key, text, 64, &message);
    if (status != QK_ERROR_ARGUMENT) check(status, message.text);
    if (status == QK_ERROR_ARGUMENT && fallback != text) strcpy(text, fallback);
}

/* Newer files keep rope's values in "rope_parameters", older ones in "rope_scaling". */
static double rope(const char *key, double fallback) {
    char name[96];
    double value;
    snprintf(name, sizeof name, "rope_parameters.%s", key);
    value = number(name, HUGE_VAL);
    snprintf(name, sizeof name, "rope_scaling.%s", key);
    return value != HUGE_VAL ? value : number(name, fallback);
}

static void read_config(void) {
    char type[64], act[64];
    word("model_type", "of no model_type", type);
    word("hidden_act", "silu", act);
    if (strcmp(type, "llama") != 0 && strcmp(type, "mistral") != 0 && strcmp(type, "qwen2") != 0 &&
        strcmp(type, "qwen3") != 0) {
        fail(FAILED, "the model is %s; known are llama, mistral, qwen2 and qwen3", type);
    }
    if (strcmp(act, "silu") != 0) fail(FAILED, "hidden_act is %s; known is silu", act);
    if (rope("partial_rotary_factor", number("partial_rotary_factor", 1)) != 1) {
        fail(FAILED, "partial_rotary_factor: known are heads that rotate as a whole");
    }
    config.hidden = size("hidden_size", NAN);
    config.layers = size("num_hidden_layers", NAN);
    config.heads = size("num_attention_heads", NAN);
    config.kv_heads = size("num_key_value_heads", config.heads);
    config.head_dim = size("head_dim", (double)config.hidden / config.heads);
    config.intermediate = size("intermediate_size", NAN);
    config.vocab = size("vocab_size", NAN);
    config.positions = size("max_position_embeddings", NAN);
    config.eps = (float)number("rms_norm_eps", 1e-6);
    if (config.heads % config.kv_heads != 0 || config.head_dim % 2 != 0) {
        fail(FAILED, "config.json: %d heads of %d values do not share %d keys evenly, in pairs",
             config.heads, config.head_dim, config.kv_heads);
    }
}

/* eos_token_id is a number or a list of numbers. */
static void read_ends(void) {
    char key[32];
    qk_io_message message;
    const qk_status status = qk_checkpoint_config_number(file, "eos_token_id", ends, &message);
    end_count = status == QK_OK;
    while (status == QK_ERROR_FORMAT && end_count < 16) {
        snprintf(key, sizeof key, "eos_token_id.%d", end_count);
        if ((ends[end_count] = number(key, -1)) < 0) return;
        ++end_count;
    }
}

static int ends_text(int token) {
    int i = 0;
    while (i < end_count && ends[i] != token) ++i;
    return i < end_count;
}

/* ---- rotary positions ---------------------------------------------------------------------- */

/* Radians a position for each pair of a head's values; returns what cosines and sines are times.
 * "dynamic" is the default up to max_position_embeddings, where this program stops. */
static float read_frequencies(float *f) {
    const double pi = 3.14159265358979323846, dim = config.head_dim;
    const double theta = rope("rope_theta", number("rope_theta", 10000));
    const double original = rope("original_max_position_embeddings", config.positions);
    char type[64] = "default";
    double factor, low, high;
    word("rope_scaling.type", type, type);
    word("rope_scaling.rope_type", type, type);
    word("rope_parameters.rope_type", type, type);
    for (int i = 0; i < config.head_dim / 2; ++i) f[i] = (float)pow(theta, -2 * i / dim);
    if (strcmp(type, "default") == 0 || strcmp(type, "dynamic") == 0) return 1;
    factor = rope("factor", NAN);
    if (strcmp(type, "linear") == 0) {
        for (int i = 0; i < config.head_dim / 2; ++i) f[i] = (float)(f[i] / factor);
        return 1;
    }
    if (strcmp(type, "llama3") == 0) { /* short waves stay, long ones stretch, a ramp between */
        low = rope("low_freq_factor", NAN), high = rope("high_freq_factor", NAN);
        for (int i = 0; i < config.head_dim / 2; ++i) {
            const double waves = original * f[i] / (2 * pi);
            const double kept = fmin(1, fmax(0, (waves - low) / (high - low)));
            f[i] = (float)(f[i] * (kept + (1 - kept) / factor));
        }
        return 1;
    }
    if (strcmp(type, "yarn") != 0 || rope("mscale", 0) != 0) {
        fail(FAILED, "rope type %s%s; known are default, linear, dynamic, llama3 and yarn", type,
             strcmp(type, "yarn") == 0 ? " with mscale" : "");
    }
    /* The ramp is between the pairs whose waves fit beta times into the original context. */
    low = dim * log(original / (rope("beta_fast", 32) * 2 * pi)) / (2 * log(theta));
    high = dim * log(original / (rope("beta_slow", 1) * 2 * pi)) / (2 * log(theta));
    if (rope("truncate", 1) != 0) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, dim - 1);
    for (int i = 0; i < config.head_dim / 2; ++i) {
        const double stretched = fmin(1, fmax(0, (i - low) / fmax(high - low, 0.001)));
        f[i] = (float)(f[i] * (1 - stretched + stretched / factor));
    }
    return (float)rope("attention_factor", 0.1 * log(fmax(factor, 1)) + 1);
}

/* [positions][head_dim]: cosines, then sines. */
static float *make_rotations(int positions) {
    const int dim = config.head_dim, half = dim / 2;
    float *f = allocate(half, sizeof *f);
    float *rotations = allocate((int64_t)positions * dim, sizeof *rotations);
    const float scale = read_frequencies(f);
    for (int64_t t = 0; t < positions; ++t) {
        for (int i = 0; i < half; ++i) {
            rotations[t * dim + i] = (float)cos((float)t * f[i]) * scale;
            rotations[t * dim + half + i] = (float)sin((float)t * f[i]) * scale;
        }
    }
    free(f);
    return rotations;
}

/* ---- the model ----------------------------------------------------------------------------- */

enum { X, QS, KS, VS, MIX, OUT, GATES, UPS, ARRAYS }; /* what a layer's products read and write */
enum { Q, K, V, O, GATE, UP, DOWN, PRODUCTS };
static const struct {
    const char *name;
    int from, to;
} kProducts[PRODUCTS] = {{"self_attn.q_proj", X, QS},  {"self_attn.k_proj", X, KS},
                         {"self_attn.v_proj", X, VS},  {"self_attn.o_proj", MIX, OUT},
                         {"mlp.gate_proj", X, GATES},  {"mlp.up_proj", X, UPS},
                         {"mlp.down_proj", GATES, OUT}};

struct linear {
    qk_tensor *w, *bias; /* bias: NULL for none */
};

struct layer {
    struct linear linear[PRODUCTS];
    float *input_norm, *middle_norm, *q_norm, *k_norm; /* q_norm and k_norm: NULL for none */
    float *keys, *values; /* [kv_heads][head_dim][positions] and [kv_heads][positions][head_dim] */
};

static struct {
    struct layer *layers;
    struct linear head;
    qk_file_tensor embedding;
    float *norm, *rotations, *residual, *scores, *logits, *array[ARRAYS];
    qk_tensor *tensor[ARRAYS], *last, *logits_tensor; /* over the arrays; last: a row of X */
    int width[ARRAYS], rows, positions;
} model;

static void to_f32(const qk_file_tensor *tensor, int64_t first, int count, float *out) {
    const char *at = (const char *)tensor->data + first * (tensor->dtype == QK_DTYPE_F32 ? 4 : 2);
    const int is_bf16 = tensor->dtype == QK_DTYPE_BF16;
    for (int i = 0; i < count && tensor->dtype != QK_DTYPE_F32; ++i) {
        uint16_t half;
        uint32_t bits;
        memcpy(&half, at + 2 * (size_t)i, sizeof half);
        bits = is_bf16 ? (uint32_t)half << 16 : (half & 0x8000u) << 16 | (half & 0x7fffu) << 13;
        memcpy(out + i, &bits, sizeof bits);
        if (!is_bf16) out[i] *= 0x1p112f; /* the exponents' biases differ by 112 */
    }
    if (tensor->dtype == QK_DTYPE_F32) memcpy(out, at, (size_t)count * sizeof *out);
}

/* layer: -1 for none. */
static const char *name_of(int layer, const char *part) {
    static char name[128];
    if (layer < 0) snprintf(name, sizeof name, "%s", part);
    if (layer >= 0) snprintf(name, sizeof name, "model.layers.%d.%s", layer, part);
    return name;
}

static qk_file_tensor find(const char *name, int64_t count) {
    qk_file_tensor tensor;
    int64_t have = 1;
    if (qk_checkpoint_find_tensor(file, name, &tensor) != QK_OK) {
        fail(FAILED, "there is no tensor \"%s\"", name);
    }
    for (int i = 0; i < tensor.rank; ++i) have *= tensor.shape[i];
    if (have != count || (tensor.dtype != QK_DTYPE_F32 && tensor.dtype != QK_DTYPE_F16 &&
                          tensor.dtype != QK_DTYPE_BF16)) {
        fail(FAILED, "%s: %lld values of %s; accepted are %lld of F32, F16 or BF16", name,
             (long long)have, tensor.dtype_name, (long long)count);
    }
    return tensor;
}

static float *load_norm(int layer, const char *part, int count) {
    const qk_file_tensor tensor = find(name_of(layer, part), count);
    float *values = allocate(count, sizeof *values);
    to_f32(&tensor, 0, count, values);
    token_bytes += tensor.bytes;
    return values;
}

/* 4-bit weights in the layout that is fastest here; dense ones stay in the mapped file. */
static struct linear load_linear(const char *name, int n, int k) {
    struct linear linear = {NULL, NULL};
    qk_tensor *packed;
    qk_io_message message;
    qk_layer layer;
    size_t bytes;
    check(qk_checkpoint_load(file, context, name, QK_LOAD_IN_PLACE, &linear.w, &linear.bias,
                             &message),
          message.text);
    check(qk_checkpoint_find_layer(file, name, &layer, sizeof layer), name);
    if (layer.desc.shape[0] != n || layer.desc.shape[1] != k) {
        fail(FAILED, "%s: %lld x %lld; config.json says %d x %d", name,
             (long long)layer.desc.shape[0], (long long)layer.desc.shape[1], n, k);
    }
    if (layer.dialect != QK_DIALECT_DENSE) {
        layer.desc.layout = QK_LAYOUT_PACKED;
        check(qk_tensor_create(context, &layer.desc, &packed), qk_context_error(context));
        check(qk_repack(context, linear.w, packed), qk_context_error(context));
        qk_tensor_destroy(linear.w);
        linear.w = packed;
    }
    check(qk_linear_workspace(context, linear.w, CHUNK, &bytes), qk_context_error(context));
    if (bytes > workspace_bytes) workspace_bytes = bytes;
    token_bytes += layer.bytes;
    return linear;
}

static void load_layer(int index) {
    struct layer *const layer = model.layers + index;
    const int64_t cached = (int64_t)config.kv_heads * config.head_dim * model.positions;
    qk_file_tensor unused;
    for (int i = 0; i < PRODUCTS; ++i) {
        layer->linear[i] =
            load_linear(name_of(index, kProducts[i].name), model.width[kProducts[i].to],
                        model.width[kProducts[i].from]);
    }
    layer->input_norm = load_norm(index, "input_layernorm.weight", config.hidden);
    layer->middle_norm = load_norm(index, "post_attention_layernorm.weight", config.hidden);
    if (qk_checkpoint_find_tensor(file, name_of(index, "self_attn.q_norm.weight"), &unused) ==
        QK_OK) {
        layer->q_norm = load_norm(index, "self_attn.q_norm.weight", config.head_dim);
        layer->k_norm = load_norm(index, "self_attn.k_norm.weight", config.head_dim);
    }
    layer->keys = allocate(cached, sizeof(float));
    layer->values = allocate(cached, sizeof(float));
}

static qk_tensor *wrap(float *values, int rows, int columns) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    qk_tensor *tensor;
    void *const planes[] = {values};
    desc.rank = 2, desc.shape[0] = rows, desc.shape[1] = columns;
    check(qk_tensor_wrap(context, &desc, planes, 1, &tensor), qk_context_error(context));
    return tensor;
}

static void load_model(void) {
    const int heads = config.heads * config.head_dim, shared = config.kv_heads * config.head_dim;
    const int width[ARRAYS] = {
        config.hidden,      heads, shared, shared, heads, config.hidden, config.intermediate,
        config.intermediate};
    qk_context_options wanted = QK_CONTEXT_OPTIONS_INIT;
    qk_context *loader;
    qk_layer head;
    const char *embedding = "model.embed_tokens";
    wanted.thread_count = (int32_t)option(THREADS);
    wanted.flags = (given[INT8] ? QK_CONTEXT_INT8_ACTIVATIONS : 0) |
                   (given[BF16] ? QK_CONTEXT_BF16_PRODUCTS : 0);
    check(qk_context_create(&wanted, &context), "no context");
    memcpy(model.width, width, sizeof width);
    model.rotations = make_rotations(model.positions);
    model.layers = allocate(config.layers, sizeof *model.layers);
    for (int i = 0; i < config.layers; ++i) load_layer(i);
    model.norm = load_norm(-1, "model.norm.weight", config.hidden);
    model.embedding = find("model.embed_tokens.weight", (int64_t)config.vocab * config.hidden);
    if (qk_checkpoint_find_layer(file, "lm_head", &head, sizeof head) == QK_OK)
        embedding = "lm_head";
    model.head = load_linear(embedding, config.vocab, config.hidden); /* tied where it has no own */
    wanted.workspace_bytes = workspace_bytes;
    loader = context;
    check(qk_context_create(&wanted, &context), "no memory for the workspace");
    qk_context_destroy(loader);
    for (int i = 0; i < ARRAYS; ++i)
        model.array[i] = allocate((int64_t)CHUNK * width[i], sizeof(float));
    model.residual = allocate((int64_t)CHUNK * config.hidden, sizeof(float));
    model.scores = allocate(model.positions, sizeof(float));
    model.logits = allocate(config.vocab, sizeof(float));
    model.last = wrap(model.array[X], 1, config.hidden);
    model.logits_tensor = wrap(model.logits, 1, config.vocab);
}

/* ---- one step ------------------------------------------------------------------------------ */

static void normalize(const float *x, const float *weight, int count, float *y) {
    double sum = 0;
    float scale;
    for (int i = 0; i < count; ++i) sum += (double)x[i] * x[i];
    scale = (float)(1 / sqrt(sum / count + config.eps));
    for (int i = 0; i < count; ++i) y[i] = x[i] * scale * weight[i];
}

static void rotate(float *head, const float *cosines) {
    const int half = config.head_dim / 2;
    const float *const sines = cosines + half;
    for (int i = 0; i < half; ++i) {
        const float a = head[i], b = head[half + i];
        head[i] = a * cosines[i] - b * sines[i];
        head[half + i] = b * cosines[i] + a * sines[i];
    }
}

/* One head over `count` positions. Inner loops run along memory: compilers make vectors of them. */
static void attend(const float *q, const float *keys, const float *values, int count,
                   float *restrict out) {
    const int dim = config.head_dim;
    const float scale = 1 / sqrtf((float)dim);
    float *restrict scores = model.scores, most, sum = 0;
    memset(scores, 0, (size_t)count * sizeof *scores);
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int d = 0; d < dim; ++d, keys += model.positions) {
        for (int t = 0; t < count; ++t) scores[t] += q[d] * scale * keys[t];
    }
    most = scores[0];
    for (int t = 1; t < count; ++t) most = scores[t] > most ? scores[t] : most;
    for (int t = 0; t < count; ++t) sum += scores[t] = expf(scores[t] - most);
    for (int t = 0; t < count; ++t, values += dim) {
        for (int d = 0; d < dim; ++d) out[d] += scores[t] / sum * values[d];
    }
}

/* A token's keys and values go to the cache, its queries look at all up to itself. */
static void attend_row(const struct layer *layer, int row, int position) {
    const int dim = config.head_dim, shared = config.heads / config.kv_heads;
    const int64_t head_values = (int64_t)model.positions * dim;
    const float *const rotations = model.rotations + (int64_t)position * dim;
    float *q = model.array[QS] + (int64_t)row * model.width[QS];
    float *k = model.array[KS] + (int64_t)row * model.width[KS];
    const float *const v = model.array[VS] + (int64_t)row * model.width[VS];
    float *mix = model.array[MIX] + (int64_t)row * model.width[MIX];
    for (int h = 0; h < config.kv_heads; ++h, k += dim) {
        float *const key = layer->keys + h * head_values + position;
        if (layer->k_norm != NULL) normalize(k, layer->k_norm, dim, k);
        rotate(k, rotations);
        for (int d = 0; d < dim; ++d) key[(int64_t)d * model.positions] = k[d];
        memcpy(layer->values + h * head_values + (int64_t)position * dim, v + h * dim,
               (size_t)dim * sizeof *v);
    }
    for (int h = 0; h < config.heads; ++h, q += dim, mix += dim) {
        const int64_t at = h / shared * head_values;
        if (layer->q_norm != NULL) normalize(q, layer->q_norm, dim, q);
        rotate(q, rotations);
        attend(q, layer->keys + at, layer->values + at, position + 1, mix);
    }
}

/* `count` of a layer's products from `first` on, in one call. */
static void multiply(const struct layer *layer, int first, int count) {
    qk_product list[PRODUCTS];
    for (int i = 0; i < count; ++i) {
        const struct linear *const linear = layer->linear + first + i;
        list[i] = (qk_product){sizeof *list,
                               0,
                               model.tensor[kProducts[first + i].from],
                               linear->w,
                               linear->bias,
                               model.tensor[kProducts[first + i].to]};
    }
    check(qk_multiply(context, list, count), qk_context_error(context));
}

static void normalize_rows(const float *weight) {
    for (int64_t at = 0; at < (int64_t)model.rows * config.hidden; at += config.hidden) {
        normalize(model.residual + at, weight, config.hidden, model.array[X] + at);
    }
}

static void add_out(void) {
    const int64_t count = (int64_t)model.rows * config.hidden;
    for (int64_t i = 0; i < count; ++i) model.residual[i] += model.array[OUT][i];
}

static void set_rows(int rows) {
    for (int i = 0; i < ARRAYS && rows != model.rows; ++i) {
        qk_tensor_destroy(model.tensor[i]);
        model.tensor[i] = wrap(model.array[i], rows, model.width[i]);
    }
    model.rows = rows;
}

/* Up to CHUNK tokens from `position` on; leaves the logits after the last one. */
static void step(const int *tokens, int count, int position) {
    const int hidden = config.hidden;
    float *const gates = model.array[GATES], *const ups = model.array[UPS];
    set_rows(count);
    for (int64_t row = 0; row < count; ++row) {
        to_f32(&model.embedding, (int64_t)tokens[row] * hidden, hidden,
               model.residual + row * hidden);
    }
    for (const struct layer *layer = model.layers; layer < model.layers + config.layers; ++layer) {
        normalize_rows(layer->input_norm);
        multiply(layer, Q, 3);
        for (int row = 0; row < count; ++row) attend_row(layer, row, position + row);
        multiply(layer, O, 1);
        add_out();
        normalize_rows(layer->middle_norm);
        multiply(layer, GATE, 2);
        for (int64_t i = 0; i < (int64_t)count * config.intermediate; ++i) {
            gates[i] = gates[i] / (1 + expf(-gates[i])) * ups[i];
        }
        multiply(layer, DOWN, 1);
        add_out();
    }
    normalize(model.residual + (int64_t)(count - 1) * hidden, model.norm, hidden, model.array[X]);
    check(qk_linear(context, model.last, model.head.w, model.head.bias, model.logits_tensor),
          qk_context_error(context));
}

/* ---- choosing a token ---------------------------------------------------------------------- */

struct choice {
    double weight;
    int token;
};

static int by_weight(const void *a, const void *b) {
    const struct choice *const x = a, *const y = b;
    return x->weight != y->weight ? (x->weight > y->weight ? -1 : 1) : x->token - y->token;
}

/* splitmix64: the same numbers everywhere, in 0 to 1. */
static double draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static int choose(struct choice *choices, uint64_t *seed) {
    const float *const logits = model.logits;
    double sum = 0, kept = 0;
    int i, best = 0, count = 0;
    for (i = 1; i < config.vocab; ++i) best = logits[i] > logits[best] ? i : best;
    if (option(TEMPERATURE) == 0) return best;
    for (i = 0; i < config.vocab; ++i) {
        choices[i].weight = exp((logits[i] - logits[best]) / option(TEMPERATURE));
        choices[i].token = i;
        sum += choices[i].weight;
    }
    qsort(choices, (size_t)config.vocab, sizeof *choices, by_weight);
    do kept += choices[count++].weight;
    while (count < config.vocab && kept < option(TOP_P) * sum);
    kept *= draw(seed);
    for (i = 0; i + 1 < count && kept >= choices[i].weight; ++i) kept -= choices[i].weight;
    return choices[i].token;
}

/* ---- the memory's floor -------------------------------------------------------------------- */

struct reader {
    pthread_t thread;
    const uint64_t *words;
    int64_t count, repeats;
    uint64_t sum;
};

static void *read_words(void *argument) {
    struct reader *const reader = argument;
    for (int64_t repeat = 0; repeat < reader->repeats; ++repeat) {
        uint64_t sum = (uint64_t)repeat;
        for (int64_t i = 0; i < reader->count; ++i) sum += reader->words[i];
        reader->sum ^= sum;
    }
    return NULL;
}

/* Bytes a second at which `threads` read as much memory as a token does; at least 256 MB each. */
static double read_rate(int threads) {
    const int64_t count = token_bytes / threads / 8 + 1, repeats = 1 + (1 << 25) / count;
    uint64_t *const words = allocate(count * threads, sizeof *words);
    struct reader *const readers = allocate(threads, sizeof *readers);
    double best = 0;
    memset(words, 1, (size_t)(count * threads) * sizeof *words); /* pages of its own */
    for (int run = 0; run < 3; ++run) {
        const double start = seconds();
        for (int i = 0; i < threads; ++i) {
            readers[i].words = words + i * count, readers[i].count = count;
            readers[i].repeats = repeats;
            if (pthread_create(&readers[i].thread, NULL, read_words, readers + i) != 0) {
                fail(FAILED, "no thread to measure the memory with");
            }
        }
        for (int i = 0; i < threads; ++i) pthread_join(readers[i].thread, NULL);
        best = fmax(best, 8.0 * (double)(count * repeats * threads) / (seconds() - start));
    }
    free(words), free(readers);
    return best;
}

static void report(int prompt, double prompt_time, int steps, double time) {
    const double bytes = (double)token_bytes;
    qk_context_info info = QK_CONTEXT_INFO_INIT;
    double rate;
    check(qk_context_describe(context, &info), "context");
    rate = read_rate(info.thread_count);
    fprintf(stderr, "\nprompt: %d tokens, %.1f a second\n", prompt, prompt / prompt_time);
    if (steps == 0) return;
    fprintf(stderr, "then %.2f tokens a second of %.1f MB of weights: %.2f GB/s with %d threads\n",
            steps / time, bytes / 1e6, bytes * steps / time / 1e9, (int)info.thread_count);
    fprintf(stderr, "reading alone: %.2f GB/s, %.2f tokens a second; %.2f of it reached\n",
            rate / 1e9, rate / bytes, bytes * steps / time / rate);
}

/* ---- in and out ---------------------------------------------------------------------------- */

/* The prompt's tokens; the caller frees them. */
static int *read_prompt(int *count) {
    const char *at = given[IDS] != NULL ? given[IDS] : given[PROMPT];
    int *const tokens = allocate((int64_t)strlen(at) + 1, sizeof *tokens);
    if (given[PROMPT] != NULL && config.vocab > 256) {
        fail(USAGE, "--prompt: the model has %d tokens, only bytes are text; give --ids",
             config.vocab);
    }
    for (*count = 0; *at != 0; ++*count) {
        char *end = (char *)at + 1;
        const long id = given[IDS] != NULL ? strtol(at, &end, 10) : (unsigned char)*at;
        const int separated = given[IDS] == NULL || *end == 0 || (*end == ',' && end[1] != 0);
        if (end == at || !separated || id < 0 || id >= config.vocab) {
            fail(USAGE, "prompt: \"%.20s\"; accepted are tokens 0 to %d", at, config.vocab - 1);
        }
        tokens[*count] = (int)id;
        at = end + (given[IDS] != NULL && *end == ',');
    }
    if (*count == 0) fail(USAGE, "the prompt is empty");
    return tokens;
}

int main(int argc, char **argv) {
    qk_io_message message;
    int count, wanted, made = 0, next;
    read_options(argc, argv);
    check(qk_checkpoint_open(model_path, NULL, &file, &message), message.text);
    read_config();
    read_ends();
    int *const tokens = read_prompt(&count);
    const int room = config.positions - count;
    wanted = given[TOKENS] != NULL ? (int)option(TOKENS) : room < 64 ? room : 64;
    model.positions = count + wanted;
    if (wanted > room || room < 0) {
        fail(USAGE, "%d tokens of prompt, %d to generate: the context holds %d", count, wanted,
             config.positions);
    }
    if (model.positions > number("sliding_window", HUGE_VAL) && number("use_sliding_window", 1)) {
        fail(FAILED, "%d positions; known is attention within sliding_window, %g", model.positions,
             number("sliding_window", NAN));
    }
    load_model();
    struct choice *const choices = allocate(config.vocab, sizeof *choices);
    uint64_t seed = (uint64_t)option(SEED);
    const double start = seconds();
    for (int i = 0; i < count; i += CHUNK) {
        step(tokens + i, count - i < CHUNK ? count - i : CHUNK, i);
    }
    const double prompted = seconds();
    for (; made < wanted; ++made) {
        if (made > 0) step(&next, 1, count + made - 1);
        next = choose(choices, &seed);
        if (given[IGNORE_END] == NULL && ends_text(next)) break;
        if (given[IDS] != NULL)
            printf(made == 0 ? "%d" : ",%d", next);
        else
            putchar(next);
        fflush(stdout);
    }
    const double end = seconds();
    putchar('\n');
    if (fflush(stdout) != 0 || ferror(stdout)) fail(FAILED, "cannot write to stdout");
    report(count, prompted - start, made > 0 ? made - 1 : 0, end - prompted);
    return 0; /* the system takes memory and files back */
}
