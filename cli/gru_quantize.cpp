#include <algorithm>
#include <cmath>
#include <cstdio>

#include "arrays.hpp"
#include "commands.hpp"
#include "gru.hpp"
#include "gru_ranges.hpp"
#include "json.hpp"
#include "layers.hpp"
#include "progress.hpp"

namespace {

struct Weights {
    std::string name;
    int64_t input_size = 0, hidden_size = 0;
    std::vector<float> w_ih, w_hh, b_ih, b_hh;  // biases: empty when there are none
};

std::string join(const std::string &name, const std::string &tensor) {
    return name.empty() ? tensor : name + "." + tensor;
}

// The module's name: as given, or that of the only weight_ih of this cell in the file.
std::string choose_name(const Checkpoint &checkpoint, const GruQuantizeOptions &options) {
    if (!options.name.empty()) return options.name;
    const std::string wanted = "weight_ih_" + options.cell;
    std::vector<std::string> found;
    for (const qk_file_tensor &tensor : all_tensors(checkpoint)) {
        const std::string name = tensor.name;
        if (name == wanted) found.push_back("");
        const size_t at = name.rfind("." + wanted);
        if (at != std::string::npos && at + 1 + wanted.size() == name.size()) {
            found.push_back(name.substr(0, at));
        }
    }
    if (found.size() == 1) return found[0];
    if (found.empty()) {
        throw Failure(kUsage,
                      options.input + " has no tensor named " + wanted + " or NAME." + wanted);
    }
    throw Failure(kUsage, options.input + " has " + std::to_string(found.size()) +
                              " GRUs, among them '" + found[0] + "' and '" + found[1] +
                              "': choose one with --name");
}

std::vector<float> to_floats(const qk_file_tensor &tensor) {
    const qk_format format = tensor.dtype == QK_DTYPE_F32    ? QK_FORMAT_F32
                             : tensor.dtype == QK_DTYPE_F16  ? QK_FORMAT_F16
                             : tensor.dtype == QK_DTYPE_BF16 ? QK_FORMAT_BF16
                                                             : 0;
    if (format == 0) {
        throw Failure(kUnsupported, std::string(tensor.name) + ": its type is " +
                                        tensor.dtype_name + ", accepted are F32, F16 and BF16");
    }
    const int32_t size = element_bytes(format);
    std::vector<float> values(static_cast<size_t>(tensor.bytes / size));
    for (size_t i = 0; i < values.size(); ++i) {
        const char *element =
            static_cast<const char *>(tensor.data) + i * static_cast<size_t>(size);
        values[i] = static_cast<float>(float_value(format, element));
    }
    return values;
}

qk_file_tensor find(const Checkpoint &checkpoint, const std::string &name, int32_t rank) {
    qk_file_tensor tensor;
    if (qk_checkpoint_find_tensor(checkpoint.get(), name.c_str(), &tensor) != QK_OK) {
        throw Failure(kUsage, "no tensor '" + name + "' in the file");
    }
    if (tensor.rank != rank) {
        throw Failure(kUnsupported, name + " has " + std::to_string(tensor.rank) +
                                        " dimensions, a GRU's has " + std::to_string(rank));
    }
    return tensor;
}

std::vector<float> load_bias(const Checkpoint &checkpoint, const std::string &name, int64_t rows) {
    qk_file_tensor tensor;
    if (qk_checkpoint_find_tensor(checkpoint.get(), name.c_str(), &tensor) != QK_OK) return {};
    tensor = find(checkpoint, name, 1);
    if (tensor.shape[0] != rows) {
        throw Failure(kUnsupported, name + " has " + std::to_string(tensor.shape[0]) +
                                        " values, 3h is " + std::to_string(rows));
    }
    return to_floats(tensor);
}

Weights load_weights(const GruQuantizeOptions &options) {
    const Checkpoint checkpoint = open_checkpoint(options.input);
    Weights weights;
    weights.name = choose_name(checkpoint, options);
    const auto full = [&](const char *kind) { return join(weights.name, kind + options.cell); };
    const qk_file_tensor ih = find(checkpoint, full("weight_ih_"), 2);
    const qk_file_tensor hh = find(checkpoint, full("weight_hh_"), 2);
    weights.input_size = ih.shape[1];
    weights.hidden_size = hh.shape[1];
    const int64_t rows = ih.shape[0];
    // A product of sizes in the file could overflow; 65535 is the library's limit as well.
    if (weights.hidden_size < 1 || weights.hidden_size > 65535 || weights.input_size < 1 ||
        weights.input_size > 65535 || rows != 3 * weights.hidden_size || hh.shape[0] != rows) {
        throw Failure(kUnsupported, full("weight_ih_") + " is " + shape_name(ih.shape, 2) +
                                        " and weight_hh " + shape_name(hh.shape, 2) +
                                        ", a GRU's are 3h x c and 3h x h up to 65535");
    }
    weights.w_ih = to_floats(ih);
    weights.w_hh = to_floats(hh);
    weights.b_ih = load_bias(checkpoint, full("bias_ih_"), rows);
    weights.b_hh = load_bias(checkpoint, full("bias_hh_"), rows);
    if (weights.b_ih.empty() != weights.b_hh.empty()) {
        throw Failure(kUnsupported, "no tensor '" +
                                        full(weights.b_ih.empty() ? "bias_ih_" : "bias_hh_") +
                                        "' in the file; PyTorch's GRUs have both biases or none");
    }
    return weights;
}

struct Width {
    int32_t tensor, bits;
};

// "new_in=12"
Width width_of(const std::string &text) {
    const size_t equals = text.find('=');
    for (int32_t i = 0; i < QK_GRU_TENSOR_COUNT && equals != std::string::npos; ++i) {
        if (text.substr(0, equals) != kGruTensors[i]) continue;
        const std::string digits = text.substr(equals + 1);
        const bool is_number = !digits.empty() && digits.size() < 3 &&
                               digits.find_first_not_of("0123456789") == std::string::npos;
        const int32_t bits = is_number ? std::stoi(digits) : 0;
        const bool is_bias = i == QK_GRU_BW || i == QK_GRU_BR;
        if (bits >= 4 && bits <= (is_bias ? 32 : 16)) return {i, bits};
        throw Failure(kUsage, "--bits " + text + ": " + kGruTensors[i] + " has 4 to " +
                                  (is_bias ? "32" : "16") + " bits");
    }
    throw Failure(kUsage, "--bits " + text +
                              ": write TENSOR=BITS with one of the names that "
                              "'qk gru info' shows");
}

// What the preset says, with the widths and the granularity asked for.
void set_quants(const Gru &gru, const GruQuantizeOptions &options) {
    for (int32_t i = 0; i < QK_GRU_TENSOR_COUNT; ++i) {
        const bool is_weight = i == QK_GRU_W || i == QK_GRU_R;
        const bool is_bias = i == QK_GRU_BW || i == QK_GRU_BR;
        qk_gru_quant quant = {};
        // The preset's, of what --granularity sets; all else is set by --bits alone.
        quant.bits =
            is_bias ? (options.preset == "w8a8" ? 8 : 16) : (options.preset == "w16a16" ? 16 : 8);
        quant.is_unsigned = i == QK_GRU_UPDATE_OUT || i == QK_GRU_RESET_OUT;
        quant.is_symmetric = is_weight || is_bias || i == QK_GRU_NEW_OUT;
        if (is_weight || is_bias) {
            quant.granularity = options.granularity == "tensor" ? 0
                                : options.granularity == "gate" ? 1
                                                                : 2;
        }
        bool is_set = options.granularity != "channel" && (is_weight || is_bias);
        for (const std::string &text : options.bits) {
            const Width width = width_of(text);
            if (width.tensor != i) continue;
            quant.bits = width.bits;
            is_set = true;
        }
        if (is_set) check(qk_gru_set_quant(gru.get(), i, &quant), kGruTensors[i], nullptr);
    }
}

Gru create_gru(const Context &context, const Weights &weights, const GruQuantizeOptions &options) {
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    config.input_size = static_cast<int32_t>(weights.input_size);
    config.hidden_size = static_cast<int32_t>(weights.hidden_size);
    config.preset = options.preset == "w8a8"    ? QK_GRU_W8A8
                    : options.preset == "w8h16" ? QK_GRU_W8H16
                    : options.preset == "w8a16" ? QK_GRU_W8A16
                                                : QK_GRU_W16A16;
    config.calibration = options.ranges == "minmax"   ? QK_GRU_CALIBRATE_MIN_MAX
                         : options.ranges == "moving" ? QK_GRU_CALIBRATE_MOVING
                                                      : QK_GRU_CALIBRATE_MSE;
    if (options.uniform_tables) config.flags |= QK_GRU_UNIFORM_TABLES;
    if (options.bias_correction) config.flags |= QK_GRU_BIAS_CORRECTION;
    if (options.headroom) config.flags |= QK_GRU_HEADROOM;
    if (options.h_view_8) config.flags |= QK_GRU_H_VIEW_8;
    const auto pointer = [](const std::vector<float> &values) {
        return values.empty() ? nullptr : values.data();
    };
    qk_gru *gru = nullptr;
    check(qk_gru_create(context.get(), &config, weights.w_ih.data(), weights.w_hh.data(),
                        pointer(weights.b_ih), pointer(weights.b_hh), &gru),
          options.input, qk_context_error(context.get()));
    Gru created(gru);
    set_quants(created, options);
    return created;
}

// One file of sequences and what the float GRU makes of them.
struct Sequences {
    std::string path;
    SequenceShape shape;
    std::vector<float> x, y;
};

Sequences run_float(const Context &context, const Gru &gru, const Weights &weights,
                    const std::string &path, int64_t batch) {
    SequenceReader reader(path, batch, weights.input_size);
    Sequences data{path, reader.shape(), reader.read_floats(), {}};
    data.y.resize(static_cast<size_t>(data.shape.steps * data.shape.batch * weights.hidden_size));
    const Tensor x =
        wrap_sequence(context, data.shape.steps, data.shape.batch, data.shape.size, data.x.data());
    const Tensor y = wrap_sequence(context, data.shape.steps, data.shape.batch, weights.hidden_size,
                                   data.y.data());
    check(qk_gru_run_float(context.get(), gru.get(), x.get(), nullptr, y.get()), path,
          qk_context_error(context.get()));
    return data;
}

struct Accuracy {
    int64_t steps = 0;
    double signal = 0, noise = 0, worst = 0;
    double sqnr() const { return 10 * std::log10(signal / noise); }
};

void measure(const Gru &gru, const CommonOptions &common, Sequences *data, Accuracy *accuracy) {
    const int32_t batch = static_cast<int32_t>(data->shape.batch);
    const int64_t hidden_size = describe(gru).hidden_size;
    Context context = create_context(common);
    size_t workspace = 0;
    check(qk_gru_workspace(context.get(), gru.get(), batch, data->shape.steps, &workspace),
          data->path, qk_context_error(context.get()));
    context = create_context(common, QK_DEVICE_CPU, 0, workspace);
    qk_gru_state *created = nullptr;
    check(qk_gru_state_create(context.get(), gru.get(), batch, &created), data->path,
          qk_context_error(context.get()));
    const GruState state(created);
    std::vector<float> y(data->y.size());
    const Tensor in =
        wrap_sequence(context, data->shape.steps, batch, data->shape.size, data->x.data());
    const Tensor out = wrap_sequence(context, data->shape.steps, batch, hidden_size, y.data());
    check(qk_gru_run(context.get(), gru.get(), state.get(), in.get(), out.get()), data->path,
          qk_context_error(context.get()));
    accuracy->steps += data->shape.steps;
    for (size_t i = 0; i < y.size(); ++i) {
        const double error = double(data->y[i]) - double(y[i]);
        accuracy->signal += double(data->y[i]) * double(data->y[i]);
        accuracy->noise += error * error;
        accuracy->worst = std::max(accuracy->worst, std::fabs(error));
    }
}

// The model, and what calibration saw where that is asked for: both, or neither.
int64_t save(const Gru &gru, const GruQuantizeOptions &options, const std::string &ranges) {
    size_t bytes = 0;
    check(qk_gru_save(gru.get(), nullptr, 0, &bytes), options.output, nullptr);
    std::vector<char> image(bytes);
    check(qk_gru_save(gru.get(), image.data(), bytes, &bytes), options.output, nullptr);
    NewFile file(options.output, options.force);
    file.write(image.data(), bytes);
    if (options.ranges_out.empty()) {
        commit({&file});
    } else {
        NewFile other(options.ranges_out, options.force);
        other.write(ranges.data(), ranges.size());
        commit({&file, &other});
    }
    return static_cast<int64_t>(bytes);
}

Json accuracy_json(const Accuracy &accuracy) {
    Json object = json_new_object();
    json_set(object, "steps", accuracy.steps);
    json_set(object, "sqnr_db", accuracy.sqnr());
    json_set(object, "worst_error", accuracy.worst);
    return object;
}

void print_accuracy(const char *name, const Accuracy &accuracy) {
    std::printf("%-12s %6.2f dB SQNR over %s, worst error %.3g\n", name, accuracy.sqnr(),
                plural(accuracy.steps, "step").c_str(), accuracy.worst);
}

void report(const CommonOptions &common, const GruQuantizeOptions &options, const Weights &weights,
            int64_t bytes, const Accuracy &calibration, const Accuracy &test) {
    const int64_t before = static_cast<int64_t>(4 * (weights.w_ih.size() + weights.w_hh.size() +
                                                     weights.b_ih.size() + weights.b_hh.size()));
    if (common.json) {
        const Json root = json_new_object();
        json_set(root, "file", options.output);
        json_set(root, "name", weights.name);
        json_set(root, "cell", options.cell);
        json_set(root, "input_size", weights.input_size);
        json_set(root, "hidden_size", weights.hidden_size);
        json_set(root, "preset", options.preset);
        json_set(root, "ranges", options.ranges);
        json_set(root, "f32_bytes", before);
        json_set(root, "bytes", bytes);
        if (calibration.steps > 0) json_set(root, "calibration", accuracy_json(calibration));
        if (!options.test.empty()) json_set(root, "test", accuracy_json(test));
        json_print(root);
        return;
    }
    std::printf("%s: GRU of %lld inputs and %lld units in %s, %s from %s of f32\n",
                printable(options.output).c_str(), static_cast<long long>(weights.input_size),
                static_cast<long long>(weights.hidden_size), options.preset.c_str(),
                human_bytes(double(bytes)).c_str(), human_bytes(double(before)).c_str());
    if (calibration.steps > 0) print_accuracy("calibration", calibration);
    if (!options.test.empty()) print_accuracy("test", test);
}

}  // namespace

ExitCode run_gru_quantize(const CommonOptions &common, const GruQuantizeOptions &options) {
    if (options.calibration.empty() && options.ranges_in.empty()) {
        throw Failure(kUsage,
                      "gru quantize needs --calibrate or --ranges-in "
                      "('qk gru quantize --help')");
    }
    const Weights weights = load_weights(options);
    const Context context = create_context(common);
    const Gru gru = create_gru(context, weights, options);
    std::vector<Sequences> files;
    Progress progress(common, static_cast<int64_t>(options.calibration.size()) + 1);
    for (const std::string &path : options.calibration) {
        progress.advance(1, path);
        files.push_back(run_float(context, gru, weights, path, options.batch));
        Sequences &data = files.back();
        const Tensor x = wrap_sequence(context, data.shape.steps, data.shape.batch, data.shape.size,
                                       data.x.data());
        check(qk_gru_calibrate(context.get(), gru.get(), x.get(), nullptr), path,
              qk_context_error(context.get()));
    }
    Sequences test;
    if (!options.test.empty()) {
        test = run_float(context, gru, weights, options.test, options.batch);
    }
    for (const std::string &path : options.ranges_in) {
        merge_ranges(context, gru, path, weights.input_size, weights.hidden_size);
    }
    std::string ranges;
    if (!options.ranges_out.empty()) {
        ranges = ranges_text(context, gru, weights.input_size, weights.hidden_size);
    }
    check(qk_gru_freeze(context.get(), gru.get()), options.input, qk_context_error(context.get()));
    Accuracy calibration_accuracy, test_accuracy;
    for (Sequences &data : files) measure(gru, common, &data, &calibration_accuracy);
    if (!options.test.empty()) measure(gru, common, &test, &test_accuracy);
    progress.advance(1, options.output);
    report(common, options, weights, save(gru, options, ranges), calibration_accuracy,
           test_accuracy);
    return kOk;
}
