#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "commands.hpp"
#include "layers.hpp"
#include "mapped.hpp"
#include "multiply_report.hpp"
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

Chosen find_layer(const Checkpoint &checkpoint, const std::string &name) {
    Chosen chosen = {};
    qk_layer &layer = chosen.layer;
    const char *const text = name.c_str();
    if (qk_checkpoint_find_layer(checkpoint.get(), text, &layer, sizeof layer) != QK_OK) {
        if (qk_checkpoint_find_expert_layer(checkpoint.get(), text, &layer, sizeof layer) !=
            QK_OK) {
            std::vector<qk_layer> layers = all_layers(checkpoint);
            for (const qk_layer &experts : all_expert_layers(checkpoint)) layers.push_back(experts);
            fail_unknown_layer("no layer '" + name + "' in the file", name, layers);
        }
        chosen.experts = layer.desc.shape[0];
    }
    check(layer.status, name, layer.reason);
    join_rows(&layer.desc);
    return chosen;
}

qk_layer choose_layer(const Checkpoint &checkpoint) {
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

LoadedLayer load(const Checkpoint &checkpoint, const Context &context, const Chosen &chosen,
                 uint32_t flags) {
    const char *const name = chosen.layer.name;
    if (chosen.experts == 0) return load_layer(checkpoint, context, name, flags);
    qk_tensor *weight = nullptr, *bias = nullptr;
    qk_io_message message = {};
    check(qk_checkpoint_load_experts(checkpoint.get(), context.get(), name, nullptr, 0, &weight,
                                     &bias, &message),
          name, message.text);
    return {Tensor(weight), Tensor(bias)};
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

// docs/formats.md, "Modes of qk_linear": the library would compute such a layer exactly, or the
// mode's bound is not known here.
void check_mode(Mode mode, const Chosen &chosen) {
    if (mode == Mode::exact) return;
    const qk_layer &layer = chosen.layer;
    const qk_tensor_desc &desc = layer.desc;
    const std::string start =
        std::string(layer.name) + ": " + (mode == Mode::int8 ? "int8" : "bf16") + " mode takes no ";
    if (chosen.experts != 0) {
        throw Failure(kUnsupported, start + "layers of experts here, only --mode exact");
    }
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
        throw Failure(kUnsupported, start + "groups that straddle rows here, only --mode exact");
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

// y of a product: [m,n], of experts a row for each of them.
Tensor create_y(const Context &context, const Product &p, int64_t experts) {
    if (experts == 0) return create_dense(context, p.format, p.m, p.n);
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = p.format;
    desc.rank = 3;
    desc.shape[0] = p.m;
    desc.shape[1] = experts;
    desc.shape[2] = p.n / experts;
    qk_tensor *y = nullptr;
    check(qk_tensor_create(context.get(), &desc, &y), "y", qk_context_error(context.get()));
    return Tensor(y);
}

// Every row of x takes every expert, so that y has the columns of their rows one after the other.
Tensor route_to_all(const Context &context, int64_t rows, int64_t experts) {
    std::vector<char> ids(static_cast<size_t>(rows * experts) * sizeof(int32_t));
    for (int64_t i = 0; i < rows * experts; ++i) {
        const int32_t id = static_cast<int32_t>(i % experts);
        std::memcpy(&ids[static_cast<size_t>(i) * sizeof id], &id, sizeof id);
    }
    Tensor routing = create_dense(context, QK_FORMAT_I32, rows, experts);
    upload(context, routing.get(), ids);
    return routing;
}

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

// Runs it on the device; fills p's x, y and bias.
Timing multiply(const CommonOptions &common, const MultiplyOptions &options, const Device &device,
                const Checkpoint &checkpoint, const Chosen &chosen, Product *p) {
    const qk_layer &layer = chosen.layer;
    const uint32_t flags = p->mode == Mode::bf16   ? QK_CONTEXT_BF16_PRODUCTS
                           : p->mode == Mode::int8 ? QK_CONTEXT_INT8_ACTIVATIONS
                                                   : 0;
    check_device(device);
    Context context = create_context(common, device.kind, device.index, 0, flags);
    // On the CPU the weight stays in the file's mapping, as a program would leave it there.
    const LoadedLayer loaded =
        load(checkpoint, context, chosen, device.kind == QK_DEVICE_CPU ? QK_LOAD_IN_PLACE : 0);
    Tensor packed;
    if (options.packed) packed = repack(context, loaded.weight.get(), layer);
    const qk_tensor *const weight = options.packed ? packed.get() : loaded.weight.get();
    const Tensor x = create_dense(context, p->format, p->m, p->k);
    const Tensor y = create_y(context, *p, chosen.experts);
    p->x = random_values(p->m * p->k);
    upload(context, x.get(), encode(p->format, p->x));
    qk_product product = {sizeof(qk_product), 0,       x.get(), weight,
                          loaded.bias.get(),  y.get(), nullptr};
    Tensor routing;
    qk_experts experts = QK_EXPERTS_INIT;
    if (chosen.experts != 0) {
        routing = route_to_all(context, p->m, chosen.experts);
        experts.expert = routing.get();
        product.experts = &experts;
    }
    size_t workspace = 0;
    check(qk_multiply_workspace(context.get(), &product, 1, &workspace), layer.name,
          qk_context_error(context.get()));
    if (workspace > 0) {  // tensors are at home in any context of the device
        context = create_context(common, device.kind, device.index, workspace, flags);
    }
    const Timing timing = run_timed(common, context, product, options.repeat);
    p->y = download_f32(context, y.get(), p->format, p->m * p->n);
    if (loaded.bias != nullptr) p->bias = download_bias(context, loaded.bias.get(), p->n);
    return timing;
}

// With the weight decoded again, in blocks of rows, by the CPU.
Error compare_all(const CommonOptions &common, const Checkpoint &checkpoint, const Chosen &chosen,
                  const Product &p) {
    const Context context = create_context(common);
    LayerRows rows(context, chosen.layer.name,
                   load(checkpoint, context, chosen, QK_LOAD_IN_PLACE).weight);
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
    const Chosen chosen = options.layer.empty() ? Chosen{choose_layer(checkpoint), 0}
                                                : find_layer(checkpoint, options.layer);
    const qk_layer &layer = chosen.layer;
    Product p;
    p.format = float_format_of(options.dtype);
    p.weight_format = layer.desc.format;
    p.m = options.rows;
    p.n = layer.desc.shape[0];
    p.k = layer.desc.shape[1];
    p.group = layer.desc.group_size > 0 ? layer.desc.group_size : p.k;
    p.mode = parse_mode(options, device);
    check_mode(p.mode, chosen);
    if (options.packed && !is_quantized(layer)) {
        throw Failure(kUnsupported, std::string(layer.name) + ": dense weights are not repacked");
    }
    const Timing timing = multiply(common, options, device, checkpoint, chosen, &p);
    const Error error = compare_all(common, checkpoint, chosen, p);
    check_files_whole();
    report_product(common, options, chosen, timing, p, error);
    if (error.share <= 1) return kOk;
    throw Failure(kFailed, std::string(layer.name) + ": the product is outside its error bound");
}
