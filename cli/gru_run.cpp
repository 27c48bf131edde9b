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

void report(const CommonOptions &common, const GruRunOptions &options, const SequenceShape &shape,
            int32_t hidden_size, double seconds) {
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
        json_print(root);
        return;
    }
    std::printf("%s: %s of %lld x %d values, %.3g us a step\n", printable(options.output).c_str(),
                plural(shape.steps, "step").c_str(), static_cast<long long>(shape.batch),
                hidden_size, seconds / double(shape.steps) * 1e6);
}

}  // namespace

ExitCode run_gru_run(const CommonOptions &common, const GruRunOptions &options) {
    using Clock = std::chrono::steady_clock;
    Context context = create_context(common.threads);
    const LoadedGru loaded = load_gru(context, options.file);
    const int32_t hidden_size = loaded.model.hidden_size;
    SequenceReader reader(options.input, options.batch, loaded.model.input_size);
    SequenceShape shape = reader.shape();
    const int32_t batch = static_cast<int32_t>(shape.batch);
    const int64_t piece = piece_steps(shape, hidden_size);

    size_t workspace = 0;
    check(qk_gru_workspace(context.get(), loaded.gru.get(), batch, piece, &workspace), options.file,
          qk_context_error(context.get()));
    context = create_context(common.threads, QK_DEVICE_CPU, 0, workspace);
    qk_gru_state *created = nullptr;
    check(qk_gru_state_create(context.get(), loaded.gru.get(), batch, &created), options.file,
          qk_context_error(context.get()));
    const GruState state(created);

    shape.size = hidden_size;
    SequenceWriter writer(options.output, shape, options.force);
    std::vector<float> x(static_cast<size_t>(piece * batch * loaded.model.input_size));
    std::vector<float> y(static_cast<size_t>(piece * batch * hidden_size));
    Progress progress(common, shape.steps);
    Clock::duration elapsed{};
    for (int64_t at = 0; at < shape.steps; at += piece) {
        const int64_t steps = std::min(piece, shape.steps - at);
        progress.advance(steps, options.output);
        reader.read(x.data(), steps);
        const Tensor in = wrap_sequence(context, steps, batch, loaded.model.input_size, x.data());
        const Tensor out = wrap_sequence(context, steps, batch, hidden_size, y.data());
        const Clock::time_point start = Clock::now();
        check(qk_gru_run(context.get(), loaded.gru.get(), state.get(), in.get(), out.get()),
              options.input, qk_context_error(context.get()));
        elapsed += Clock::now() - start;
        writer.write(y.data(), steps);
    }
    writer.commit();
    report(common, options, reader.shape(), hidden_size,
           std::chrono::duration<double>(elapsed).count());
    return kOk;
}
