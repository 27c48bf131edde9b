#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "commands.hpp"
#include "json.hpp"
#include "layers.hpp"
#include "mapped.hpp"
#include "product.hpp"
#include "progress.hpp"
#include "rows.hpp"

namespace {

using Clock = std::chrono::steady_clock;

struct Device {
    qk_device kind = QK_DEVICE_CPU;
    int index = 0;
};

Device parse_device(const std::string &name) {
    if (name == "cpu") return {};
    if (name == "cuda") return {QK_DEVICE_CUDA, 0};
    const std::string index = name.compare(0, 5, "cuda:") == 0 ? name.substr(5) : "";
    if (index.empty() || index.size() > 4 ||
        index.find_first_not_of("0123456789") != std::string::npos) {
        throw Failure(kUsage, "--device " + (name.empty() ? "''" : name) +
                                  ": accepted are cpu, cuda and cuda:INDEX");
    }
    return {QK_DEVICE_CUDA, std::stoi(index)};
}

// Says more than the library's status can.
void check_device(const Device &device) {
    if (device.kind != QK_DEVICE_CUDA) return;
    int32_t count = 0;
    check(qk_device_count(QK_DEVICE_CUDA, &count), "cannot count devices", nullptr);
    if (device.index < count) return;
    const std::string start = "--device cuda: ";
    if (std::strstr(qk_build_info(), "cuda") == nullptr) {
        throw Failure(kUnsupported, start +
                                        "this qk was built without CUDA; configure it with "
                                        "-DQK_CUDA=ON");
    }
    if (count == 0) {
        throw Failure(kUnsupported, start +
                                        "no GPU, or no driver for it, was found; nvidia-smi "
                                        "tells which");
    }
    throw Failure(kUnsupported, "--device cuda:" + std::to_string(device.index) + ": there are " +
                                    plural(count, "GPU") + ", counted from 0");
}

qk_layer choose_layer(const Checkpoint &checkpoint, const std::string &name) {
    qk_layer layer;
    if (!name.empty()) {
        if (qk_checkpoint_find_layer(checkpoint.get(), name.c_str(), &layer, sizeof layer) !=
            QK_OK) {
            fail_unknown_layer("no layer '" + name + "' in the file", name, all_layers(checkpoint));
        }
        check(layer.status, name, layer.reason);
        join_rows(&layer.desc);
        return layer;
    }
    const std::vector<qk_layer> layers = all_layers(checkpoint);
    for (const qk_layer &candidate : layers) {
        if (is_quantized(candidate) && is_loadable(candidate)) return candidate;
    }
    for (const qk_layer &candidate : layers) {
        if (!is_plain_data(checkpoint, candidate)) {
            check(candidate.status, candidate.name, candidate.reason);
        }
    }
    refuse_unknown_method(checkpoint);
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
    if (layer.dialect == QK_DIALECT_GGUF) {
        throw Failure(kUnsupported, start + "layers of a GGUF file, only --mode exact");
    }
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
    desc.flags &= ~QK_TENSOR_READ_ONLY;
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

void upload(const Context &context, qk_tensor *tensor, const std::vector<char> &bytes) {
    check(qk_tensor_upload(context.get(), tensor, QK_PLANE_DATA, bytes.data(), bytes.size()),
          "upload", qk_context_error(context.get()));
}

struct Timing {
    qk_plan plan = QK_PLAN_INIT;
    int64_t runs = 0;
    double best = 0, median = 0;
};

Timing run_timed(const CommonOptions &common, const Context &context, const qk_product &product,
                 int repeat) {
    std::vector<double> seconds;
    Progress progress(common, repeat);
    const Clock::time_point start = Clock::now();
    const auto elapsed = [&] {
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    while (repeat > 0 ? int(seconds.size()) < repeat : seconds.empty() || elapsed() < 0.25) {
        progress.advance(1, "multiplying");
        const double before = elapsed();
        check(qk_multiply(context.get(), &product, 1), "multiply", qk_context_error(context.get()));
        check(qk_context_synchronize(context.get()), "multiply", qk_context_error(context.get()));
        seconds.push_back(elapsed() - before);
    }
    std::sort(seconds.begin(), seconds.end());
    qk_plan plan = QK_PLAN_INIT;
    check(qk_explain(context.get(), &product, &plan), "explain", qk_context_error(context.get()));
    return {plan, static_cast<int64_t>(seconds.size()), seconds[0], seconds[seconds.size() / 2]};
}

// "1 row", "17 to 24 rows", "2 rows or more"
std::string batch_class(const qk_plan &plan) {
    if (plan.batch_first == plan.batch_last) return plural(plan.batch_first, "row");
    if (plan.batch_last == INT32_MAX) return plural(plan.batch_first, "row") + " or more";
    return std::to_string(plan.batch_first) + " to " + std::to_string(plan.batch_last) + " rows";
}

Json json_plan(const qk_plan &plan) {
    Json json = json_new_object();
    json_set(json, "kernel", plan.kernel);
    json_set(json, "batch_first", plan.batch_first);
    json_set(json, "batch_last", plan.batch_last);
    json_set(json, "workspace_bytes", static_cast<int64_t>(plan.workspace_bytes));
    json_set(json, "reason", plan.reason);
    return json;
}

void print_plan(const qk_plan &plan) {
    std::printf("kernel    %s, %s of workspace\n", plan.kernel,
                human_bytes(double(plan.workspace_bytes)).c_str());
    std::printf("batch     %s (a row of y has the same bits)\n", batch_class(plan).c_str());
    std::printf("faster    %s\n", *plan.reason == 0 ? "nothing is" : plan.reason);
}

void report(const CommonOptions &common, const MultiplyOptions &options, const qk_layer &layer,
            const Timing &timing, const Product &product, const Error &error) {
    const double checksum = sum_of_y(product);
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
        json_set(root, "checksum", checksum);
        json_set(root, "worst_error", error.worst);
        json_set(root, "share_of_bound", error.share);
        json_set(root, "not_finite", error.not_finite);
        if (options.explain) json_set(root, "plan", json_plan(timing.plan));
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
    if (options.explain) print_plan(timing.plan);
    std::printf("checksum  %.9g (sum of y)\n", checksum);
    std::printf("error     %.3g against the product in double, %s its bound\n", error.worst,
                error.share <= 1 ? "within" : "OUTSIDE");
    if (error.not_finite > 0) {
        std::printf("          %s of y NaN or infinite, as in double: the weight has such values\n",
                    plural(error.not_finite, "value").c_str());
    }
}

// Runs it on the device; fills p's x, y and bias.
Timing multiply(const CommonOptions &common, const MultiplyOptions &options, const Device &device,
                const Checkpoint &checkpoint, const qk_layer &layer, Product *p) {
    const uint32_t flags = p->mode == Mode::bf16   ? QK_CONTEXT_BF16_PRODUCTS
                           : p->mode == Mode::int8 ? QK_CONTEXT_INT8_ACTIVATIONS
                                                   : 0;
    check_device(device);
    Context context = create_context(common, device.kind, device.index, 0, flags);
    // On the CPU the weight stays in the file's mapping, as a program would leave it there.
    const LoadedLayer loaded = load_layer(checkpoint, context, layer.name,
                                          device.kind == QK_DEVICE_CPU ? QK_LOAD_IN_PLACE : 0);
    Tensor packed;
    if (options.packed) packed = repack(context, loaded.weight.get(), layer);
    const qk_tensor *const weight = options.packed ? packed.get() : loaded.weight.get();
    size_t workspace = 0;
    check(qk_linear_workspace(context.get(), weight, p->m, &workspace), layer.name,
          qk_context_error(context.get()));
    if (workspace > 0) {
        context = create_context(common, device.kind, device.index, workspace, flags);
    }
    const Tensor x = create_dense(context, p->format, p->m, p->k);
    const Tensor y = create_dense(context, p->format, p->m, p->n);
    p->x = random_values(p->m * p->k);
    upload(context, x.get(), encode(p->format, p->x));
    const qk_product product = {sizeof(qk_product), 0,       x.get(), weight,
                                loaded.bias.get(),  y.get(), nullptr};
    const Timing timing = run_timed(common, context, product, options.repeat);
    p->y = download_f32(context, y.get(), p->format, p->m * p->n);
    if (loaded.bias != nullptr) p->bias = download_bias(context, loaded.bias.get(), p->n);
    return timing;
}

// With the weight decoded again, in blocks of rows, by the CPU.
Error compare_all(const CommonOptions &common, const Checkpoint &checkpoint, const qk_layer &layer,
                  const Product &p) {
    const Context context = create_context(common);
    LayerRows rows(checkpoint, context, layer);
    Progress progress(common, p.n * p.m);
    Error error;
    for (int64_t at = 0; at < p.n;) {
        const RowBlock block = rows.block(at);
        std::vector<float> scales;
        if (p.mode != Mode::exact) scales = rows.decode_scales(block);
        const ProductRows part = {at, block.count, rows.decode_f32(block), scales.data()};
        for (int64_t i = 0; i < p.m; ++i) {
            progress.advance(block.count, "comparing");
            compare(p, part, i, &error);
        }
        at += block.count;
    }
    return error;
}

}  // namespace

ExitCode run_multiply(const CommonOptions &common, const MultiplyOptions &options) {
    const Device device = parse_device(options.device);
    const Checkpoint checkpoint = open_checkpoint(options.file);
    const qk_layer layer = choose_layer(checkpoint, options.layer);
    Product p;
    p.format = float_format_of(options.dtype);
    p.weight_format = layer.desc.format;
    p.m = options.rows;
    p.n = layer.desc.shape[0];
    p.k = layer.desc.shape[1];
    p.group = layer.desc.group_size > 0 ? layer.desc.group_size : p.k;
    p.mode = parse_mode(options, device);
    check_mode(p.mode, layer);
    if (options.packed && !is_quantized(layer)) {
        throw Failure(kUnsupported, std::string(layer.name) + ": dense weights are not repacked");
    }
    const Timing timing = multiply(common, options, device, checkpoint, layer, &p);
    const Error error = compare_all(common, checkpoint, layer, p);
    check_files_whole();
    report(common, options, layer, timing, p, error);
    if (error.share <= 1) return kOk;
    throw Failure(kFailed, std::string(layer.name) + ": the product is outside its error bound");
}
