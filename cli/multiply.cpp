#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "commands.hpp"
#include "json.hpp"
#include "layers.hpp"
#include "product.hpp"
#include "progress.hpp"

namespace {

using Clock = std::chrono::steady_clock;

struct Device {
    qk_device kind = QK_DEVICE_CPU;
    int index = 0;
};

Device parse_device(const std::string &name) {
    if (name == "cpu") return {};
    if (name == "cuda") return {QK_DEVICE_CUDA, 0};
    char *end = nullptr;
    const bool indexed = name.compare(0, 5, "cuda:") == 0 && name.size() > 5 && name.size() < 10;
    const long index = indexed ? std::strtol(name.c_str() + 5, &end, 10) : -1;
    if (index < 0 || *end != 0) {
        throw Failure(kUsage, "--device " + name + ": accepted are cpu, cuda and cuda:INDEX");
    }
    return {QK_DEVICE_CUDA, static_cast<int>(index)};
}

qk_layer choose_layer(const Checkpoint &checkpoint, const std::string &name) {
    qk_layer layer;
    if (!name.empty()) {
        if (qk_checkpoint_find_layer(checkpoint.get(), name.c_str(), &layer, sizeof layer) !=
            QK_OK) {
            throw Failure(kUsage, "no layer '" + name + "' in the file");
        }
        check(layer.status, name, layer.reason);
        return layer;
    }
    for (const qk_layer &candidate : all_layers(checkpoint)) {
        if (is_quantized(candidate) && is_loadable(candidate)) return candidate;
    }
    throw Failure(kUnsupported, "no quantized layer that qk can load");
}

// Multiples of 1/64 in [-1, 1): exact in f32, f16 and bf16.
std::vector<float> random_values(int64_t count) {
    std::vector<float> values(static_cast<size_t>(count));
    uint64_t state = 1;
    for (float &value : values) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        value = float(int(state >> 57) - 64) / 64;
    }
    return values;
}

// Values that the format holds exactly.
std::vector<char> encode(qk_format format, const std::vector<float> &values) {
    const size_t size = static_cast<size_t>(element_bytes(format));
    std::vector<char> bytes(values.size() * size);
    for (size_t i = 0; i < values.size(); ++i) {
        uint32_t wide;
        std::memcpy(&wide, &values[i], 4);
        const uint32_t sign = wide >> 16 & 0x8000;
        const uint32_t magnitude = wide & 0x7fffffff;
        uint16_t narrow = static_cast<uint16_t>(wide >> 16);
        if (format == QK_FORMAT_F16) {
            const uint32_t rebiased = magnitude == 0 ? 0 : (magnitude - (112u << 23)) >> 13;
            narrow = static_cast<uint16_t>(sign | rebiased);
        }
        if (format == QK_FORMAT_F32) {
            std::memcpy(&bytes[i * size], &wide, 4);
        } else {
            std::memcpy(&bytes[i * size], &narrow, 2);
        }
    }
    return bytes;
}

std::vector<float> download_f32(const Context &context, const qk_tensor *tensor, qk_format format,
                                int64_t count) {
    std::vector<char> bytes(static_cast<size_t>(count * element_bytes(format)));
    check(qk_tensor_download(context.get(), tensor, QK_PLANE_DATA, bytes.data(), bytes.size()),
          "download", qk_context_error(context.get()));
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
        values[i] = float(
            float_value(format, bytes.data() + i * static_cast<size_t>(element_bytes(format))));
    }
    return values;
}

std::vector<float> dequantize(const Context &context, const qk_tensor *weight,
                              const qk_layer &layer) {
    const int64_t n = layer.desc.shape[0], k = layer.desc.shape[1];
    const Tensor dense = create_dense(context, QK_FORMAT_F32, n, k);
    check(qk_dequantize(context.get(), weight, dense.get()), layer.name,
          qk_context_error(context.get()));
    return download_f32(context, dense.get(), QK_FORMAT_F32, n * k);
}

// The weight decoded: dense layers are what they are.
std::vector<float> decode(const Context &context, const qk_tensor *weight, const qk_layer &layer) {
    if (is_quantized(layer)) return dequantize(context, weight, layer);
    return download_f32(context, weight, layer.desc.format,
                        layer.desc.shape[0] * layer.desc.shape[1]);
}

// What the weight would decode to if every byte of its codes were this one.
std::vector<float> decode_filled(const Context &context, const qk_tensor *weight,
                                 const qk_layer &layer, int byte) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    check(qk_tensor_describe(weight, &desc), layer.name, nullptr);
    qk_tensor *made = nullptr;
    check(qk_tensor_create(context.get(), &desc, &made), layer.name,
          qk_context_error(context.get()));
    const Tensor filled(made);
    for (qk_plane plane = 0; plane < QK_PLANE_COUNT; ++plane) {
        size_t bytes = 0;
        check(qk_tensor_plane_bytes(&desc, plane, &bytes), layer.name, nullptr);
        if (bytes == 0) continue;
        std::vector<char> content(bytes, static_cast<char>(byte));
        if (plane != QK_PLANE_DATA) {
            check(qk_tensor_download(context.get(), weight, plane, content.data(), bytes),
                  layer.name, qk_context_error(context.get()));
        }
        check(qk_tensor_upload(context.get(), made, plane, content.data(), bytes), layer.name,
              qk_context_error(context.get()));
    }
    return dequantize(context, made, layer);
}

// |scale| of every weight, from codes that stand for 1; of affine ones from 0 and 15, whose values
// are 15 scales apart, wherever the zero is.
std::vector<float> decode_scales(const Context &context, const qk_tensor *weight,
                                 const qk_layer &layer) {
    int one = 0xff;  // two codes of NF4
    if (layer.desc.format == QK_FORMAT_FP4_BNB) one = 0x33;
    if (layer.desc.format == QK_FORMAT_FP4_E2M1) one = 0x22;
    if (layer.desc.format == QK_FORMAT_S8) one = 0x01;
    std::vector<float> scales = decode_filled(context, weight, layer, one);
    if (layer.desc.format == QK_FORMAT_U4_AFFINE) {
        const std::vector<float> low = decode_filled(context, weight, layer, 0);
        for (size_t i = 0; i < scales.size(); ++i) scales[i] = (scales[i] - low[i]) / 15;
    }
    for (float &scale : scales) scale = std::fabs(scale);
    return scales;
}

Mode parse_mode(const MultiplyOptions &options, const Device &device) {
    const Mode mode = options.mode == "bf16"   ? Mode::bf16
                      : options.mode == "int8" ? Mode::int8
                                               : Mode::exact;
    if (mode != Mode::exact && device.kind != QK_DEVICE_CPU) {
        throw Failure(kUsage, "--mode " + options.mode + ": --device " + options.device +
                                  " has no modes, accepted is exact");
    }
    return mode;
}

// docs/formats.md, "Modes of qk_linear": the library would compute such a layer exactly.
void check_mode(Mode mode, const qk_layer &layer) {
    if (mode == Mode::exact) return;
    const qk_tensor_desc &desc = layer.desc;
    const std::string start =
        std::string(layer.name) + ": " + (mode == Mode::int8 ? "int8" : "bf16") + " mode takes no ";
    const bool takes_format = desc.format == QK_FORMAT_U4_AFFINE || desc.format == QK_FORMAT_NF4 ||
                              desc.format == QK_FORMAT_FP4_BNB ||
                              desc.format == QK_FORMAT_FP4_E2M1 ||
                              (mode == Mode::int8 && desc.format == QK_FORMAT_S8);
    if (!takes_format) {
        throw Failure(kUnsupported,
                      start + format_name(desc.format) + " weights, only --mode exact");
    }
    const bool flat = desc.grouping == QK_GROUPING_FLAT ||
                      (desc.grouping == QK_GROUPING_DEFAULT && desc.layout == QK_LAYOUT_ROW_HIGH);
    if (flat && desc.group_size > 0 && desc.shape[1] % desc.group_size != 0) {
        throw Failure(kUnsupported, start + "groups that straddle rows, only --mode exact");
    }
}

// As programs do once, when they load.
Tensor repack(const Context &context, const qk_tensor *weight, const qk_layer &layer) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    check(qk_tensor_describe(weight, &desc), layer.name, nullptr);
    desc.layout = QK_LAYOUT_PACKED;
    qk_tensor *made = nullptr;
    check(qk_tensor_create(context.get(), &desc, &made), layer.name,
          qk_context_error(context.get()));
    Tensor packed(made);
    check(qk_repack(context.get(), weight, made), layer.name, qk_context_error(context.get()));
    return packed;
}

std::vector<float> download_bias(const Context &context, const qk_tensor *bias, int64_t n) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    check(qk_tensor_describe(bias, &desc), "bias", nullptr);
    return download_f32(context, bias, desc.format, n);
}

struct Timing {
    int64_t runs = 0;
    double best = 0, median = 0;
};

Timing run_timed(const Context &context, const qk_tensor *x, const qk_tensor *weight,
                 const qk_tensor *bias, qk_tensor *y, int repeat) {
    std::vector<double> seconds;
    const Clock::time_point start = Clock::now();
    const auto elapsed = [&] {
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    while (repeat > 0 ? int(seconds.size()) < repeat : seconds.empty() || elapsed() < 0.25) {
        const double before = elapsed();
        check(qk_linear(context.get(), x, weight, bias, y), "multiply",
              qk_context_error(context.get()));
        check(qk_context_synchronize(context.get()), "multiply", qk_context_error(context.get()));
        seconds.push_back(elapsed() - before);
    }
    std::sort(seconds.begin(), seconds.end());
    return {static_cast<int64_t>(seconds.size()), seconds[0], seconds[seconds.size() / 2]};
}

void report(const CommonOptions &common, const MultiplyOptions &options, const qk_layer &layer,
            const Timing &timing, const Error &error) {
    const double rate = double(layer.bytes) / timing.best / 1e9;
    if (common.json) {
        const Json root = json_new_object();
        json_set(root, "layer", layer.name);
        json_set(root, "dialect", qk_dialect_name(layer.dialect));
        json_set(root, "format", format_name(layer.desc.format));
        json_set(root, "shape", json_shape(layer.desc.shape, 2));
        json_set(root, "rows", options.rows);
        json_set(root, "dtype", options.dtype);
        json_set(root, "device", options.device);
        json_set(root, "mode", options.mode);
        json_set(root, "packed", options.packed);
        json_set(root, "runs", timing.runs);
        json_set(root, "best_seconds", timing.best);
        json_set(root, "median_seconds", timing.median);
        json_set(root, "weight_bytes", layer.bytes);
        json_set(root, "gigabytes_per_second", rate);
        json_set(root, "checksum", error.checksum);
        json_set(root, "worst_error", error.worst);
        json_set(root, "share_of_bound", error.share);
        json_print(root);
        return;
    }
    std::printf("%s: %s %s%s, y [%lld,%lld] = x [%lld,%lld] . transpose(w), %s on %s%s\n",
                printable(layer.name).c_str(), qk_dialect_name(layer.dialect),
                format_name(layer.desc.format), options.packed ? " repacked" : "",
                static_cast<long long>(options.rows), static_cast<long long>(layer.desc.shape[0]),
                static_cast<long long>(options.rows), static_cast<long long>(layer.desc.shape[1]),
                options.dtype.c_str(), options.device.c_str(),
                options.mode == "exact" ? "" : (", " + options.mode + " mode").c_str());
    std::printf("time      best %.1f us, median %.1f us of %lld runs, %.2f GB/s of weights\n",
                timing.best * 1e6, timing.median * 1e6, static_cast<long long>(timing.runs), rate);
    std::printf("checksum  %.9g (sum of y)\n", error.checksum);
    std::printf("error     %.3g against the product in double, %s its bound\n", error.worst,
                error.share <= 1 ? "within" : "OUTSIDE");
}

}  // namespace

ExitCode run_multiply(const CommonOptions &common, const MultiplyOptions &options) {
    const Checkpoint checkpoint = open_checkpoint(options.file);
    const qk_layer layer = choose_layer(checkpoint, options.layer);
    Product p;
    p.format = float_format_of(options.dtype);
    p.m = options.rows;
    p.n = layer.desc.shape[0];
    p.k = layer.desc.shape[1];
    const Device device = parse_device(options.device);
    p.mode = parse_mode(options, device);
    check_mode(p.mode, layer);
    if (options.packed && !is_quantized(layer)) {
        throw Failure(kUnsupported, std::string(layer.name) + ": dense weights are not repacked");
    }
    const uint32_t flags = p.mode == Mode::bf16   ? QK_CONTEXT_BF16_PRODUCTS
                           : p.mode == Mode::int8 ? QK_CONTEXT_INT8_ACTIVATIONS
                                                  : 0;
    Context context = create_context(common.threads, device.kind, device.index, 0, flags);
    const LoadedLayer loaded = load_layer(checkpoint, context, layer.name, 0);
    Tensor packed;
    if (options.packed) packed = repack(context, loaded.weight.get(), layer);
    const qk_tensor *const weight = options.packed ? packed.get() : loaded.weight.get();
    size_t workspace = 0;
    check(qk_linear_workspace(context.get(), weight, p.m, &workspace), layer.name,
          qk_context_error(context.get()));
    if (workspace > 0) {
        context = create_context(common.threads, device.kind, device.index, workspace, flags);
    }
    const Tensor x = create_dense(context, p.format, p.m, p.k);
    const Tensor y = create_dense(context, p.format, p.m, p.n);
    p.x = random_values(p.m * p.k);
    const std::vector<char> bytes = encode(p.format, p.x);
    check(qk_tensor_upload(context.get(), x.get(), QK_PLANE_DATA, bytes.data(), bytes.size()),
          "upload", qk_context_error(context.get()));
    const Timing timing =
        run_timed(context, x.get(), weight, loaded.bias.get(), y.get(), options.repeat);
    p.y = download_f32(context, y.get(), p.format, p.m * p.n);
    p.weights = decode(context, loaded.weight.get(), layer);
    p.weight_format = layer.desc.format;
    p.group = layer.desc.group_size > 0 ? layer.desc.group_size : p.k;
    if (p.mode != Mode::exact) p.scales = decode_scales(context, loaded.weight.get(), layer);
    if (loaded.bias != nullptr) p.bias = download_bias(context, loaded.bias.get(), p.n);
    const Error error = compare(p);
    report(common, options, layer, timing, error);
    if (error.share <= 1) return kOk;
    throw Failure(kFailed, std::string(layer.name) + ": the product is outside its error bound");
}
