/* A language model: loads a Llama-, Mistral-, Qwen2- or Qwen3-style checkpoint in any dialect that
 * qk reads, dense ones included, and generates tokens. Products are qk's, the rest is f32 loops.
 *
 *   cc -std=c99 -O3 llama.c -lqk_io -lqk -ljansson -lpthread -lm -o llama
 *   ./llama MODEL --ids 1,15043,29892        token ids in, token ids out
 *   ./llama MODEL --prompt "Once upon"       text in, text out, where the tokens are bytes
 *
 * It has no tokenizer: ids of other models come from their own. */
#include "llama_program.h"

enum { CHUNK = 256 }; /* tokens of the prompt that are multiplied at once */

/* ---- config.json --------------------------------------------------------------------------- */
static qk_checkpoint *file;
static struct {
    int hidden, layers, heads, kv_heads, head_dim, intermediate, vocab, positions;
    int has_head_norms; /* of queries and keys */
    float eps;
} config;

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
        FAIL(FAILED, "config.json: \"%s\" is %g; accepted are 1 to %d", key, value, 1 << 24);
    }
    return (int)value;
}

/* text: what it is where the key is missing; "": it must be there. known: names between spaces. */
static void word(const char *key, const char *known, char *text) {
    qk_io_message message;
    char name[68];
    const qk_status status = qk_checkpoint_config_text(file, key, text, 64, &message);
    if (status != QK_ERROR_ARGUMENT || *text == 0) check(status, message.text);
    snprintf(name, sizeof name, " %s ", text);
    if (strstr(known, name) == NULL) {
        FAIL(FAILED, "config.json: \"%s\" is \"%s\"; known are%s", key, text, known);
    }
}

/* Newer files keep rope's values in "rope_parameters", older ones in "rope_scaling". */
static double rope(const char *key, double fallback) {
    char name[2][64];
    snprintf(name[0], sizeof name[0], "rope_parameters.%s", key);
    snprintf(name[1], sizeof name[1], "rope_scaling.%s", key);
    const double value = number(name[0], HUGE_VAL);
    return value != HUGE_VAL ? value : number(name[1], fallback);
}

static void read_config(void) {
    char type[64] = "", act[64] = "silu";
    word("model_type", " llama mistral qwen2 qwen3 ", type);
    word("hidden_act", " silu ", act);
    if (rope("partial_rotary_factor", number("partial_rotary_factor", 1)) != 1) {
        FAIL(FAILED, "partial_rotary_factor is not 1: known are heads that rotate as a whole");
    }
    config.has_head_norms = strcmp(type, "qwen3") == 0;
    config.hidden = size("hidden_size", NAN), config.layers = size("num_hidden_layers", NAN);
    config.heads = size("num_attention_heads", NAN);
    config.kv_heads = size("num_key_value_heads", config.heads);
    config.head_dim = size("head_dim", (double)config.hidden / config.heads);
    config.intermediate = size("intermediate_size", NAN);
    config.vocab = size("vocab_size", NAN), config.positions = size("max_position_embeddings", NAN);
    config.eps = (float)number("rms_norm_eps", 1e-6);
    if (config.heads % config.kv_heads != 0 || config.head_dim % 2 != 0) {
        FAIL(FAILED, "config.json: %d heads of %d values do not share %d keys evenly, in pairs",
             config.heads, config.head_dim, config.kv_heads);
    }
    if (config.heads > (1 << 24) / config.head_dim) FAIL(FAILED, "config.json: heads too wide");
}

/* ---- rotary positions ---------------------------------------------------------------------- */
/* [positions][head_dim]: cosines, then sines, of the angles that positions turn pairs by. "dynamic"
 * is the default as far as max_position_embeddings, where this program stops. */
static float *make_rotations(int positions) {
    const int dim = config.head_dim, half = dim / 2;
    const double theta = rope("rope_theta", number("rope_theta", 1e4)), factor = rope("factor", 1);
    const double original = rope("original_max_position_embeddings", config.positions);
    const double low = rope("low_freq_factor", 1), high = rope("high_freq_factor", 4);
    static const char known[] = " default dynamic linear llama3 ";
    float *const rotations = allocate((int64_t)positions * dim, sizeof *rotations);
    char type[64] = "default"; /* under its newer name, or one of the older ones */
    word("rope_scaling.type", known, type);
    word("rope_scaling.rope_type", known, type);
    word("rope_parameters.rope_type", known, type);
    for (int i = 0; i < half; ++i) {
        const double turn = pow(theta, -(double)i / half);
        double kept = strcmp(type, "linear") != 0; /* 0: all waves are stretched */
        if (strcmp(type, "llama3") == 0) {         /* long ones are, short ones are not */
            kept = fmin(1, fmax(0, (original * turn / 6.283185307179586 - low) / (high - low)));
        }
        const float stretched = (float)(turn * (kept + (1 - kept) / factor));
        for (int64_t t = 0; t < positions; ++t) {
            rotations[t * dim + i] = (float)cos((double)((float)t * stretched));
            rotations[t * dim + half + i] = (float)sin((double)((float)t * stretched));
        }
    }
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

struct layer {
    qk_tensor *w[PRODUCTS], *bias[PRODUCTS];          /* bias: NULL for none */
    float *input_norm, *after_norm, *q_norm, *k_norm; /* q_norm and k_norm: NULL for none */
    float *keys, *values; /* [kv_heads][head_dim][positions] and [kv_heads][positions][head_dim] */
};

static qk_context *context;
static struct {
    struct layer *layers;
    qk_file_tensor embedding;
    float *norm, *rotations, *residual, *scores, *logits, *array[ARRAYS];
    qk_tensor *tensor[ARRAYS], *last, *logits_tensor; /* over the arrays; last: a row of X */
    qk_tensor *head, *head_bias;
    int width[ARRAYS], rows, positions;
    int64_t token_bytes;    /* of the weights that each token reads */
    size_t workspace_bytes; /* that the fastest kernels need */
    unsigned char *ends;    /* 1 at tokens that end a text */
    int *order;             /* room for every token */
} model;

static void to_f32(const qk_file_tensor *tensor, int64_t first, int count, float *out) {
    const char *at = (const char *)tensor->data + first * (tensor->dtype == QK_DTYPE_F32 ? 4 : 2);
    const int is_bf16 = tensor->dtype == QK_DTYPE_BF16;
    if (tensor->dtype == QK_DTYPE_F32) memcpy(out, at, (size_t)count * sizeof *out);
    for (int i = 0; i < count && tensor->dtype != QK_DTYPE_F32; ++i, at += 2) {
        uint16_t half;
        memcpy(&half, at, sizeof half);
        const uint32_t bits =
            is_bf16 ? (uint32_t)half << 16 : (half & 0x8000u) << 16 | (half & 0x7fffu) << 13;
        memcpy(out + i, &bits, sizeof bits);
        if (!is_bf16) out[i] *= 0x1p112f; /* the exponents' biases differ by 112 */
    }
}

static const char *name_of(int layer, const char *part) {
    static char name[128];
    snprintf(name, sizeof name, "model.layers.%d.%s", layer, part);
    return name;
}

static qk_file_tensor find(const char *name, int64_t count) {
    qk_file_tensor t;
    if (qk_checkpoint_find_tensor(file, name, &t) != QK_OK) FAIL(FAILED, "no tensor \"%s\"", name);
    const int narrow = t.dtype == QK_DTYPE_F16 || t.dtype == QK_DTYPE_BF16;
    if (t.bytes != count * (narrow ? 2 : 4) || (!narrow && t.dtype != QK_DTYPE_F32)) {
        FAIL(FAILED, "%s: %lld bytes of %s; accepted are %lld values of F32, F16 or BF16", name,
             (long long)t.bytes, t.dtype_name, (long long)count);
    }
    return t;
}

static float *load_norm(const char *name, int count) {
    const qk_file_tensor tensor = find(name, count);
    float *const values = allocate(count, sizeof *values);
    to_f32(&tensor, 0, count, values);
    model.token_bytes += tensor.bytes;
    return values;
}

/* 4-bit weights in the layout that is fastest here; dense ones stay in the mapped file. */
static void load_linear(const char *name, int n, int k, qk_tensor **w, qk_tensor **bias) {
    qk_io_message message;
    qk_layer layer;
    size_t bytes;
    check(qk_checkpoint_load(file, context, name, QK_LOAD_IN_PLACE, w, bias, &message),
          message.text);
    check(qk_checkpoint_find_layer(file, name, &layer, sizeof layer), name);
    if (layer.desc.shape[0] != n || layer.desc.shape[1] != k) {
        FAIL(FAILED, "%s is not %d x %d, as config.json says", name, n, k);
    }
    if (layer.dialect != QK_DIALECT_DENSE) {
        qk_tensor *const stored = *w;
        layer.desc.layout = QK_LAYOUT_PACKED;
        check(qk_tensor_create(context, &layer.desc, w), qk_context_error(context));
        check(qk_repack(context, stored, *w), qk_context_error(context));
        qk_tensor_destroy(stored);
    }
    check(qk_linear_workspace(context, *w, CHUNK, &bytes), qk_context_error(context));
    if (bytes > model.workspace_bytes) model.workspace_bytes = bytes;
    model.token_bytes += layer.bytes;
}

static void load_layer(struct layer *layer, int index) {
    const int64_t cached = (int64_t)config.kv_heads * config.head_dim * model.positions;
    for (int i = 0; i < PRODUCTS; ++i) {
        const int n = model.width[kProducts[i].to], k = model.width[kProducts[i].from];
        load_linear(name_of(index, kProducts[i].name), n, k, layer->w + i, layer->bias + i);
    }
    layer->input_norm = load_norm(name_of(index, "input_layernorm.weight"), config.hidden);
    layer->after_norm = load_norm(name_of(index, "post_attention_layernorm.weight"), config.hidden);
    if (config.has_head_norms) {
        layer->q_norm = load_norm(name_of(index, "self_attn.q_norm.weight"), config.head_dim);
        layer->k_norm = load_norm(name_of(index, "self_attn.k_norm.weight"), config.head_dim);
    }
    layer->keys = allocate(cached, sizeof(float)), layer->values = allocate(cached, sizeof(float));
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
    const int q = config.heads * config.head_dim, kv = config.kv_heads * config.head_dim;
    const int h = config.hidden, wide = config.intermediate;
    const int width[ARRAYS] = {h, q, kv, kv, q, h, wide, wide};
    qk_context_options settings = QK_CONTEXT_OPTIONS_INIT;
    qk_layer own_head;
    settings.thread_count = (int32_t)option(THREADS);
    if (given[INT8] != NULL) settings.flags = QK_CONTEXT_INT8_ACTIVATIONS;
    if (given[BF16] != NULL) settings.flags = QK_CONTEXT_BF16_PRODUCTS;
    check(qk_context_create(&settings, &context), "context");
    memcpy(model.width, width, sizeof width);
    model.rotations = make_rotations(model.positions);
    model.layers = allocate(config.layers, sizeof *model.layers);
    for (int i = 0; i < config.layers; ++i) load_layer(model.layers + i, i);
    model.norm = load_norm("model.norm.weight", h), model.ends = allocate(config.vocab, 1);
    model.order = allocate(config.vocab, sizeof(int));
    model.embedding = find("model.embed_tokens.weight", (int64_t)config.vocab * h);
    const int tied = qk_checkpoint_find_layer(file, "lm_head", &own_head, sizeof own_head) != QK_OK;
    load_linear(tied ? "model.embed_tokens" : "lm_head", config.vocab, h, &model.head,
                &model.head_bias);
    settings.workspace_bytes = model.workspace_bytes; /* now that it is known */
    qk_context_destroy(context);                      /* the weights keep what they need of it */
    check(qk_context_create(&settings, &context), "workspace");
    for (int i = 0; i < ARRAYS; ++i) model.array[i] = allocate(width[i], CHUNK * sizeof(float));
    model.residual = allocate(h, CHUNK * sizeof(float));
    model.scores = allocate(model.positions, sizeof(float));
    model.logits = allocate(config.vocab, sizeof(float));
    model.last = wrap(model.array[X], 1, h),
    model.logits_tensor = wrap(model.logits, 1, config.vocab);
}

/* ---- one step ------------------------------------------------------------------------------ */
static void normalize(const float *x, const float *weight, int count, float *y) {
    double sum = 0;
    for (int i = 0; i < count; ++i) sum += (double)x[i] * x[i];
    const float scale = (float)(1 / sqrt(sum / count + config.eps));
    for (int i = 0; i < count; ++i) y[i] = x[i] * scale * weight[i];
}

static void rotate(float *head, const float *cosines) {
    const int half = config.head_dim / 2;
    for (int i = 0; i < half; ++i) {
        const float a = head[i], b = head[half + i], c = cosines[i], s = cosines[half + i];
        head[i] = a * c - b * s, head[half + i] = b * c + a * s;
    }
}

/* One head over `count` positions. Inner loops run along memory: compilers make vectors of them. */
static void attend(const float *q, const float *keys, const float *values, int count,
                   float *restrict out) {
    const int dim = config.head_dim;
    float *restrict scores = model.scores, most, sum = 0;
    memset(scores, 0, (size_t)count * sizeof *scores);
    memset(out, 0, (size_t)dim * sizeof *out);
    for (int d = 0; d < dim; ++d, keys += model.positions) {
        const float value = q[d] / sqrtf((float)dim);
        for (int t = 0; t < count; ++t) scores[t] += value * keys[t];
    }
    most = scores[0];
    for (int t = 1; t < count; ++t) most = scores[t] > most ? scores[t] : most;
    for (int t = 0; t < count; ++t) sum += scores[t] = expf(scores[t] - most);
    for (int t = 0; t < count; ++t, values += dim) {
        const float weight = scores[t] / sum;
        for (int d = 0; d < dim; ++d) out[d] += weight * values[d];
    }
}

/* A token's keys and values go to the cache, its queries look at all up to itself. */
static void attend_row(const struct layer *layer, int64_t row, int position) {
    const int dim = config.head_dim, sharers = config.heads / config.kv_heads;
    const int64_t size = (int64_t)model.positions * dim; /* of a head's keys, or values */
    const float *const rotations = model.rotations + (int64_t)position * dim;
    float *q = model.array[QS] + row * model.width[QS];
    float *k = model.array[KS] + row * model.width[KS];
    const float *v = model.array[VS] + row * model.width[VS];
    float *mix = model.array[MIX] + row * model.width[MIX];
    for (int h = 0; h < config.kv_heads; ++h, k += dim, v += dim) {
        if (layer->k_norm != NULL) normalize(k, layer->k_norm, dim, k);
        rotate(k, rotations);
        for (int64_t d = 0; d < dim; ++d) {
            layer->keys[h * size + d * model.positions + position] = k[d];
            layer->values[h * size + (int64_t)position * dim + d] = v[d];
        }
    }
    for (int h = 0; h < config.heads; ++h, q += dim, mix += dim) {
        const int64_t at = h / sharers * size;
        if (layer->q_norm != NULL) normalize(q, layer->q_norm, dim, q);
        rotate(q, rotations);
        attend(q, layer->keys + at, layer->values + at, position + 1, mix);
    }
}

/* `count` of a layer's products from `first` on, in one call. */
static void multiply(const struct layer *layer, int first, int count) {
    qk_product list[PRODUCTS];
    for (int i = 0; i < count; ++i) {
        const int p = first + i;
        qk_tensor *const x = model.tensor[kProducts[p].from], *y = model.tensor[kProducts[p].to];
        list[i] = (qk_product)QK_PRODUCT_INIT;
        list[i].x = x, list[i].w = layer->w[p], list[i].bias = layer->bias[p], list[i].y = y;
    }
    check(qk_multiply(context, list, count), qk_context_error(context));
}

/* The residual takes in what the last products gave; X is that, normalized. */
static void add_and_normalize(const float *weight) {
    const int64_t count = (int64_t)model.rows * config.hidden;
    for (int64_t i = 0; i < count; ++i) model.residual[i] += model.array[OUT][i];
    for (int64_t at = 0; at < count; at += config.hidden) {
        normalize(model.residual + at, weight, config.hidden, model.array[X] + at);
    }
}

/* The arrays' tensors for that many tokens. */
static void set_rows(int rows) {
    for (int i = 0; i < ARRAYS && rows != model.rows; ++i) {
        qk_tensor_destroy(model.tensor[i]);
        model.tensor[i] = wrap(model.array[i], rows, model.width[i]);
    }
    model.rows = rows;
}

/* Up to CHUNK tokens from `position` on; leaves the logits after the last one. */
static void step(const int *tokens, int count, int position) {
    const int64_t hidden = config.hidden;
    float *const gates = model.array[GATES], *const x = model.array[X];
    set_rows(count);
    memset(model.residual, 0, (size_t)(count * hidden) * sizeof(float));
    for (int64_t row = 0; row < count; ++row) {
        to_f32(&model.embedding, tokens[row] * hidden, config.hidden,
               model.array[OUT] + row * hidden);
    }
    for (const struct layer *layer = model.layers; layer < model.layers + config.layers; ++layer) {
        add_and_normalize(layer->input_norm);
        multiply(layer, Q, 3);
        for (int row = 0; row < count; ++row) attend_row(layer, row, position + row);
        multiply(layer, O, 1);
        add_and_normalize(layer->after_norm);
        multiply(layer, GATE, 2);
        for (int64_t i = 0; i < (int64_t)count * config.intermediate; ++i) {
            gates[i] *= model.array[UPS][i] / (1 + expf(-gates[i]));
        }
        multiply(layer, DOWN, 1);
    }
    add_and_normalize(model.norm);
    memmove(x, x + (count - 1) * hidden, (size_t)hidden * sizeof *x);
    check(qk_linear(context, model.last, model.head, model.head_bias, model.logits_tensor),
          qk_context_error(context));
}

/* ---- choosing a token ---------------------------------------------------------------------- */
static int by_weight(const void *a, const void *b) {
    const int x = *(const int *)a, y = *(const int *)b;
    const float difference = model.logits[y] - model.logits[x];
    return difference > 0 ? 1 : difference < 0 ? -1 : x - y;
}

/* splitmix64, as a number in 0 to 1: the same everywhere. */
static double draw(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

/* Uses the logits up. */
static int choose(uint64_t *seed) {
    float *const weights = model.logits;
    int *const order = model.order;
    double sum = 0, kept = 0;
    int best = 0, count = 0, i = 0;
    for (i = 0; i < config.vocab; sum += weights[i++]) best = weights[i] > weights[best] ? i : best;
    if (!isfinite(sum)) FAIL(FAILED, "the logits are not all finite: weights or scales are not");
    if (option(TEMPERATURE) == 0) return best;
    const float most = weights[best];
    for (i = 0, sum = 0; i < config.vocab; ++i) {
        sum += weights[i] = (float)exp((weights[i] - most) / option(TEMPERATURE));
        order[i] = i;
    }
    qsort(order, (size_t)config.vocab, sizeof *order, by_weight);
    do kept += weights[order[count++]];
    while (count < config.vocab && kept < option(TOP_P) * sum);
    kept *= draw(seed);
    for (i = 0; i + 1 < count && kept >= weights[order[i]]; ++i) kept -= weights[order[i]];
    return order[i];
}

static void report(int prompt, double prompt_time, int steps, double time) {
    const double bytes = (double)model.token_bytes, rate = bytes * steps / time;
    qk_context_info info = QK_CONTEXT_INFO_INIT;
    check(qk_context_describe(context, &info), "context");
    fprintf(stderr, "%d tokens of prompt, %.1f a second\n", prompt, prompt / prompt_time);
    const double most = steps == 0 ? 0 : memory_rate((size_t)model.token_bytes, info.thread_count);
    if (most == 0) return;
    fprintf(stderr, "%.2f tokens a second, %.2f MB of weights each: %.2f GB/s\n", steps / time,
            bytes / 1e6, rate / 1e9);
    fprintf(stderr, "memory read by %d threads: %.2f GB/s, %.2f tokens a second; %.2f of that\n",
            (int)info.thread_count, most / 1e9, most / bytes, rate / most);
}

/* ---- in and out ---------------------------------------------------------------------------- */
/* The prompt's tokens. */
static int *read_prompt(int *count) {
    const char *at = given[IDS] != NULL ? given[IDS] : given[PROMPT];
    int *const tokens = allocate((int64_t)strlen(at) + 1, sizeof *tokens);
    if (*at == 0) FAIL(USAGE, "the prompt is empty");
    if (given[PROMPT] != NULL && config.vocab > 256) {
        FAIL(USAGE, "--prompt: tokens are bytes to it, and this model has %d; give --ids",
             config.vocab);
    }
    for (*count = 0; *at != 0; ++*count) {
        char *end = (char *)at + 1;
        const long id = given[IDS] != NULL ? strtol(at, &end, 10) : (unsigned char)*at;
        if (end == at || id < 0 || id >= config.vocab) {
            FAIL(USAGE, "prompt at \"%.20s\": tokens are 0 to %d", at, config.vocab - 1);
        }
        tokens[*count] = (int)id;
        at = end + (given[IDS] != NULL && *end == ',');
    }
    return tokens;
}

/* eos_token_id is a number or a list. */
static void read_ends(void) {
    double end;
    char key[32];
    for (int i = -1; i < 64 && given[IGNORE_END] == NULL; ++i) {
        snprintf(key, sizeof key, i < 0 ? "eos_token_id" : "eos_token_id.%d", i);
        const qk_status status = qk_checkpoint_config_number(file, key, &end, NULL);
        if (status == QK_OK && end >= 0 && end < config.vocab) model.ends[(int)end] = 1;
    }
}

int main(int argc, char **argv) {
    qk_io_message message;
    int prompt, made = 0, next = 0;
    read_options(argc, argv);
    check(qk_checkpoint_open(model_path, NULL, &file, &message), message.text);
    read_config();
    int *const tokens = read_prompt(&prompt), room = config.positions - prompt;
    const int wanted = given[TOKENS] == NULL && room >= 0 && room < 64 ? room : (int)option(TOKENS);
    const double window = number("sliding_window", HUGE_VAL);
    if (wanted > room) {
        FAIL(USAGE, "%d tokens and %d more: the context holds %d", prompt, wanted,
             config.positions);
    }
    if (prompt + wanted > window && number("use_sliding_window", 1) != 0) {
        FAIL(FAILED, "%d positions: sliding_window is %.0f, and known is attention within it",
             prompt + wanted, window);
    }
    model.positions = prompt + wanted;
    load_model();
    read_ends();
    uint64_t seed = (uint64_t)option(SEED);
    const double start = seconds();
    for (int i = 0; i < prompt; i += CHUNK)
        step(tokens + i, prompt - i < CHUNK ? prompt - i : CHUNK, i);
    const double prompted = seconds();
    for (; made < wanted; ++made) {
        if (made > 0) step(&next, 1, prompt + made - 1);
        next = choose(&seed);
        if (model.ends[next]) break;
        if (given[IDS] != NULL) printf(made == 0 ? "%d" : ",%d", next);
        if (given[PROMPT] != NULL) putchar(next);
        fflush(stdout);
    }
    const double end = seconds();
    putchar('\n');
    if (fflush(stdout) != 0 || ferror(stdout)) FAIL(FAILED, "cannot write to stdout");
    report(prompt, prompted - start, made > 0 ? made - 1 : 0, end - prompted);
    free(tokens);
    return 0; /* the system takes the rest back */
}
