#include <algorithm>
#include <chrono>
#include <cstdio>

#include "arrays.hpp"
#include "commands.hpp"
#include "gru.hpp"
#include "json.hpp"
#include "progress.hpp"

namespace {

// Steps of one piece: about 256 K values of x and y together.
int64_t piece_steps(const SequenceShape &shape, int64_t hidden_size) {
    const int64_t values = shape.batch * (shape.size + hidden_size);
    return std::min(shape.steps, std::max<int64_t>(1, (1 << 18) / values));
}

// How many codes of a tensor a sample has; 0 for weights.
int64_t codes_of(const qk_gru_model &model, int32_t which) {
    if (which >= QK_GRU_W && which <= QK_GRU_BR) return 0;
    if (which == QK_GRU_X) return model.input_size;
    return (which == QK_GRU_IH || which == QK_GRU_HH ? 3 : 1) * int64_t{model.hidden_size};
}

Json clipped_json(const qk_gru_model &model, const qk_gru_clipped &clipped) {
    Json object = json_new_object();
    for (int32_t i = 0; i < QK_GRU_TENSOR_COUNT; ++i) {
        if (codes_of(model, i) == 0) continue;
        Json counts = json_new_object();
        json_set(counts, "clipped", clipped.codes[i]);
        json_set(counts, "codes", clipped.samples * codes_of(model, i));
        json_set(object, kGruTensors[i], std::move(counts));
    }
    return object;
}

void print_clipped(const qk_gru_model &model, const qk_gru_clipped &clipped) {
    bool any = false;
    for (int32_t i = 0; i < QK_GRU_TENSOR_COUNT; ++i) {
        if (clipped.codes[i] == 0) continue;
        const int64_t codes = clipped.samples * codes_of(model, i);
        std::printf("clipped: %s, %lld of %lld codes (%.3g%%)\n", kGruTensors[i],
                    static_cast<long long>(clipped.codes[i]), static_cast<long long>(codes),
                    100 * double(clipped.codes[i]) / double(codes));
        any = true;
    }
    if (!any) std::printf("clipped: no code, all fitted the calibrated ranges\n");
}

qk_gru_clipped clipped_of(const Context &context, const qk_gru_state *state,
                          const std::string &path) {
    qk_gru_clipped clipped = QK_GRU_CLIPPED_INIT;
    check(qk_gru_state_clipped(context.get(), state, &clipped), path,
          qk_context_error(context.get()));
    return clipped;
}

void report(const CommonOptions &common, const GruRunOptions &options, const SequenceShape &shape,
            const qk_gru_model &model, double seconds, const qk_gru_clipped &clipped) {
    const int32_t hidden_size = model.hidden_size;
    if (common.json) {
        const Json root = json_new_object();
        json_set(root, "file", options.file);
        json_set(root, "input", options.input);
        json_set(root, "output", options.output);
        json_set(root, "steps", shape.steps);
        json_set(root, "batch", shape.batch);
        json_set(root, "input_size", shape.size);
        json_set(root, "hidden_size", hidden_size);
        json_set(root, "run_seconds", seconds);
        if (options.count_clipped) json_set(root, "clipped", clipped_json(model, clipped));
        json_print(root);
        return;
    }
    std::printf("%s: %s of %lld x %d values, %.3g us a step\n", printable(options.output).c_str(),
                plural(shape.steps, "step").c_str(), static_cast<long long>(shape.batch),
                hidden_size, seconds / double(shape.steps) * 1e6);
    if (options.count_clipped) print_clipped(model, clipped);
}

Element code_element(int32_t bits) { return bits <= 8 ? Element::kI8 : Element::kI16; }

const char *ending_of(Element element) { return element == Element::kI8 ? "i8" : "i16"; }

void check_codes(const std::string &path, Element element, const char *what, int32_t bits) {
    if (element == Element::kF32 || element == code_element(bits)) return;
    throw Failure(kFailed, path + ": the GRU's " + what + " has codes of " + std::to_string(bits) +
                               " bits, which qk keeps as " + ending_of(code_element(bits)));
}

Element output_element(const GruRunOptions &options, const qk_gru_model &model) {
    const int32_t bits = model.quant[QK_GRU_H].bits;
    if (is_npy(options.output)) return options.codes ? code_element(bits) : Element::kF32;
    const Element element = raw_element(options.output);
    if (options.codes && element == Element::kF32) {
        throw Failure(kUsage, options.output + ": --codes writes *.npy, *.i8 or *.i16");
    }
    check_codes(options.output, element, "state", bits);
    return element;
}

// States are [b,h], f32: what the state's codes stand for is exact there.
void write_initial_state(const Context &context, const std::string &path, qk_gru_state *state,
                         int64_t batch, int64_t hidden_size) {
    SequenceReader reader(path, 0, hidden_size);
    const std::vector<float> h = reader.read_floats();
    if (static_cast<int64_t>(h.size()) != batch * hidden_size) {
        throw Failure(kFailed, path + ": holds " + std::to_string(h.size()) +
                                   " values, states of " + plural(batch, "sequence") + " are " +
                                   std::to_string(batch * hidden_size));
    }
    check(qk_gru_state_write(context.get(), state, h.data()), path,
          qk_context_error(context.get()));
}

SequenceWriter write_final_state(const Context &context, const GruRunOptions &options,
                                 const qk_gru_state *state, int64_t batch, int64_t hidden_size) {
    std::vector<float> h(static_cast<size_t>(batch * hidden_size));
    check(qk_gru_state_read(context.get(), state, h.data()), options.final_state,
          qk_context_error(context.get()));
    SequenceWriter writer(options.final_state, {batch, 1, hidden_size, 2}, Element::kF32,
                          options.force);
    writer.write(h.data(), batch);
    return writer;
}

void check_final_state(const GruRunOptions &options) {
    if (options.final_state.empty() || is_npy(options.final_state)) return;
    if (raw_element(options.final_state) != Element::kF32) {
        throw Failure(kUsage, options.final_state + ": states are written to *.npy or *.f32");
    }
}

}  // namespace

ExitCode run_gru_run(const CommonOptions &common, const GruRunOptions &options) {
    using Clock = std::chrono::steady_clock;
    check_final_state(options);
    Context context = create_context(common);
    const LoadedGru loaded = load_gru(context, options.file);
    const int32_t hidden_size = loaded.model.hidden_size;
    SequenceReader reader(options.input, options.batch, loaded.model.input_size);
    SequenceShape shape = reader.shape();
    check_codes(options.input, reader.element(), "input", loaded.model.quant[QK_GRU_X].bits);
    const Element out_element = output_element(options, loaded.model);
    const int32_t batch = static_cast<int32_t>(shape.batch);
    const int64_t piece = piece_steps(shape, hidden_size);

    size_t workspace = 0;
    check(qk_gru_workspace(context.get(), loaded.gru.get(), batch, piece, &workspace), options.file,
          qk_context_error(context.get()));
    context = create_context(common, QK_DEVICE_CPU, 0, workspace);
    qk_gru_state *created = nullptr;
    check(qk_gru_state_create(context.get(), loaded.gru.get(), batch, &created), options.file,
          qk_context_error(context.get()));
    const GruState state(created);
    if (options.count_clipped) {
        check(qk_gru_state_count_clipped(context.get(), state.get(), 1), options.file,
              qk_context_error(context.get()));
    }
    if (!options.initial_state.empty()) {
        write_initial_state(context, options.initial_state, state.get(), batch, hidden_size);
    }

    shape.size = hidden_size;
    SequenceWriter writer(options.output, shape, out_element, options.force);
    const int64_t x_values = piece * batch * loaded.model.input_size;
    std::vector<char> x(static_cast<size_t>(x_values * bytes_of(reader.element())));
    std::vector<char> y(static_cast<size_t>(piece * batch * hidden_size * bytes_of(out_element)));
    Progress progress(common, shape.steps);
    Clock::duration elapsed{};
    for (int64_t at = 0; at < shape.steps; at += piece) {
        const int64_t steps = std::min(piece, shape.steps - at);
        progress.advance(steps, options.output);
        reader.read(x.data(), steps);
        const Tensor in = wrap_sequence(context, steps, batch, loaded.model.input_size, x.data(),
                                        format_of(reader.element()));
        const Tensor out =
            wrap_sequence(context, steps, batch, hidden_size, y.data(), format_of(out_element));
        const Clock::time_point start = Clock::now();
        check(qk_gru_run(context.get(), loaded.gru.get(), state.get(), in.get(), out.get()),
              options.input, qk_context_error(context.get()));
        elapsed += Clock::now() - start;
        writer.write(y.data(), steps);
    }
    if (options.final_state.empty()) {
        commit({&writer.file()});
    } else {
        const SequenceWriter last =
            write_final_state(context, options, state.get(), batch, hidden_size);
        commit({&writer.file(), &last.file()});
    }
    report(common, options, reader.shape(), loaded.model,
           std::chrono::duration<double>(elapsed).count(),
           clipped_of(context, state.get(), options.file));
    return kOk;
}
