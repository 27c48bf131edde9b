#include "cuda/gru_harness.hpp"

#include "gru/border.hpp"

namespace cuda_test {
namespace {

qk_context *make_context(qk_device device) {
    qk_context_options options = QK_CONTEXT_OPTIONS_INIT;
    options.device = device;
    qk_context *context = nullptr;
    EXPECT_EQ(qk_context_create(&options, &context), QK_OK);
    return context;
}

qk_format code_format(int32_t bytes) { return bytes == 1 ? QK_FORMAT_I8 : QK_FORMAT_I16; }

std::vector<float> random_h(const qk::gru::Cell &cell, int batch, Rng &rng) {
    std::vector<float> h(size_t(batch) * size_t(cell.hidden_size));
    const float factor = qk::gru::power_of_two(-cell.h_scale);
    for (float &value : h) {
        const auto code = int32_t(cell.h_min + int64_t(rng() % uint64_t(cell.h_max - cell.h_min)));
        value = qk::gru::code_to_real(code, factor, cell.h_zero);
    }
    return h;
}

}  // namespace

qk_tensor *wrap_rows(qk_context *context, qk_format format, int64_t t, int64_t b, int64_t columns,
                     void *data) {
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.format = format;
    desc.rank = 3;
    desc.shape[0] = t;
    desc.shape[1] = b;
    desc.shape[2] = columns;
    qk_tensor *tensor = nullptr;
    EXPECT_EQ(qk_tensor_wrap(context, &desc, &data, 1, &tensor), QK_OK)
        << qk_context_error(context);
    return tensor;
}

std::vector<uint8_t> random_x(const qk::gru::Cell &cell, bool is_float, int64_t count, Rng &rng) {
    std::vector<uint8_t> x(size_t(count) * (is_float ? 4 : size_t(cell.x_bytes)));
    if (!is_float) {
        for (uint8_t &byte : x) byte = uint8_t(rng());
        return x;
    }
    const float reach = 1.2f * float(cell.x_max) * qk::gru::power_of_two(-cell.x_scale);
    std::uniform_real_distribution<float> uniform(-reach, reach);
    for (int64_t i = 0; i < count; ++i) {
        const float value = rng() % 64 == 0 ? NAN : uniform(rng);
        memcpy(&x[size_t(i) * 4], &value, 4);
    }
    return x;
}

GruPair::GruPair() : cpu(make_context(QK_DEVICE_CPU)), cuda(make_context(QK_DEVICE_CUDA)) {}

GruPair::~GruPair() {
    clear();
    qk_context_destroy(cpu);
    qk_context_destroy(cuda);
}

void GruPair::clear() {
    qk_gru_destroy(cpu_gru);
    qk_gru_destroy(cuda_gru);
    cpu_gru = cuda_gru = nullptr;
}

bool GruPair::create(const qk_gru_model &model) {
    clear();
    const qk_status status = qk_gru_create_from_model(cpu, &model, &cpu_gru);
    EXPECT_EQ(qk_gru_create_from_model(cuda, &model, &cuda_gru), status) << qk_context_error(cuda);
    return status == QK_OK;
}

void GruPair::create(qk_gru_preset preset, uint32_t flags, int c, int h, Rng &rng) {
    clear();
    qk_gru_config config = QK_GRU_CONFIG_INIT;
    config.input_size = c;
    config.hidden_size = h;
    config.preset = preset;
    config.flags = flags;
    std::uniform_real_distribution<float> uniform(-1, 1);
    const auto fill = [&](int64_t count, float size) {
        std::vector<float> values(static_cast<size_t>(count));
        for (float &value : values) value = uniform(rng) * size;
        return values;
    };
    const int64_t rows = int64_t{3} * h;
    const auto w = fill(rows * c, 1 / std::sqrt(float(c)));
    const auto r = fill(rows * h, 1.5f / std::sqrt(float(h)));
    const auto bw = fill(rows, 0.2f), br = fill(rows, 0.2f);
    auto x = fill(int64_t{6} * c, 2);
    ASSERT_EQ(qk_gru_create(cpu, &config, w.data(), r.data(), bw.data(), br.data(), &cpu_gru),
              QK_OK)
        << qk_context_error(cpu);
    qk_tensor *const tensor = wrap_rows(cpu, QK_FORMAT_F32, 6, 1, c, x.data());
    ASSERT_EQ(qk_gru_calibrate(cpu, cpu_gru, tensor, nullptr), QK_OK) << qk_context_error(cpu);
    qk_tensor_destroy(tensor);
    ASSERT_EQ(qk_gru_freeze(cpu, cpu_gru), QK_OK) << qk_context_error(cpu);
    size_t bytes = 0;
    ASSERT_EQ(qk_gru_save(cpu_gru, nullptr, 0, &bytes), QK_OK);
    std::vector<uint8_t> file(bytes);
    ASSERT_EQ(qk_gru_save(cpu_gru, file.data(), bytes, &bytes), QK_OK);
    ASSERT_EQ(qk_gru_load(cuda, file.data(), bytes, &cuda_gru), QK_OK) << qk_context_error(cuda);
}

GruRun GruPair::run_cpu(const GruCase &c, std::vector<uint8_t> x, const std::vector<float> &h) {
    const qk::gru::Cell &cell = cpu_gru->cell;
    const int64_t n = cell.hidden_size, rows = int64_t{c.steps} * c.batch;
    const qk_format x_format = c.x_is_float ? QK_FORMAT_F32 : code_format(cell.x_bytes);
    const qk_format y_format = c.y_is_float ? QK_FORMAT_F32 : code_format(cell.h_bytes);
    GruRun run = {
        std::vector<uint8_t>(size_t(rows * n) * (c.y_is_float ? 4 : size_t(cell.h_bytes))),
        std::vector<uint8_t>(c.with_gates ? size_t(rows * n) * 16 : 0), h};
    qk_tensor *const tx = wrap_rows(cpu, x_format, c.steps, c.batch, cell.input_size, x.data());
    qk_tensor *const ty = wrap_rows(cpu, y_format, c.steps, c.batch, n, run.y.data());
    qk_gru_state *state = nullptr;
    EXPECT_EQ(qk_gru_state_create(cpu, cpu_gru, c.batch, &state), QK_OK);
    EXPECT_EQ(qk_gru_state_write(cpu, state, h.data()), QK_OK);
    if (c.with_gates) {
        qk_tensor *const tg =
            wrap_rows(cpu, QK_FORMAT_F32, c.steps, c.batch, 4 * n, run.gates.data());
        EXPECT_EQ(qk_gru_run_gates(cpu, cpu_gru, state, tx, ty, tg), QK_OK)
            << qk_context_error(cpu);
        qk_tensor_destroy(tg);
    } else {
        EXPECT_EQ(qk_gru_run(cpu, cpu_gru, state, tx, ty), QK_OK) << qk_context_error(cpu);
    }
    EXPECT_EQ(qk_gru_state_read(cpu, state, run.h.data()), QK_OK);
    qk_gru_state_destroy(state);
    qk_tensor_destroy(tx);
    qk_tensor_destroy(ty);
    return run;
}

GruRun GruPair::run_cuda(const qk::Kernel<qk::GruArgs> &kernel, qk::GruArgs args, const GruCase &c,
                         const std::vector<uint8_t> &x, const std::vector<float> &h) {
    const int64_t n = args.cell->hidden_size, rows = args.steps * args.batch;
    const size_t y_bytes = c.y_is_float ? 4 : size_t(args.cell->h_bytes);
    DeviceBuffer dx(x, c.offset),
        dy(std::vector<uint8_t>(size_t(rows * n) * y_bytes, 0xcd), c.offset),
        dg(std::vector<uint8_t>(c.with_gates ? size_t(rows * n) * 16 : 0, 0xcd), c.offset);
    qk_gru_state *state = nullptr;
    EXPECT_EQ(qk_gru_state_create(cuda, cuda_gru, c.batch, &state), QK_OK)
        << qk_context_error(cuda);
    EXPECT_EQ(qk_gru_state_write(cuda, state, h.data()), QK_OK);
    args.x = dx.data();
    args.y = dy.data();
    args.gates = dg.data();
    qk::gru_state_fill(*state, &args);
    qk::ErrorText error = {};
    qk::Launch launch = device_launch(&error);
    const DeviceBuffer workspace =
        give_workspace(qk::workspace_of(kernel, args, launch.device), &launch);
    EXPECT_EQ(kernel.run(args, launch), QK_OK) << error.text;
    EXPECT_EQ(cudaStreamSynchronize(nullptr), cudaSuccess) << kernel.name;
    GruRun run = {dy.read(), dg.read(), h};
    workspace.read();
    EXPECT_EQ(qk_gru_state_read(cuda, state, run.h.data()), QK_OK);
    qk_gru_state_destroy(state);
    return run;
}

qk::GruArgs GruPair::arguments(const GruCase &c) const {
    const qk::gru::Cell &cell = cuda_gru->cell;
    qk::GruArgs args = {};
    args.cell = &cell;
    args.steps = c.steps;
    args.batch = c.batch;
    args.x_format = qk::find_format(c.x_is_float ? QK_FORMAT_F32 : code_format(cell.x_bytes));
    args.y_format = qk::find_format(c.y_is_float ? QK_FORMAT_F32 : code_format(cell.h_bytes));
    return args;
}

int GruPair::check_codes(const GruCase &c, const std::vector<uint8_t> &x,
                         const std::vector<uint8_t> &y) {
    const qk::GruArgs args = arguments(c);
    const std::vector<float> h(size_t(c.batch) * size_t(cuda_gru->cell.hidden_size), 0.0f);
    const auto &list = qk::kCudaBackend.gru;
    int ran = 0;
    for (int32_t i = 0; i < list.count; ++i) {
        if (!list.kernels[i]->can_run(args, device_0())) continue;
        ++ran;
        if (!harness::wanted("cuda", list.kernels[i]->name)) continue;
        EXPECT_TRUE(run_cuda(*list.kernels[i], args, c, x, h).y == y) << list.kernels[i]->name;
    }
    return ran;
}

int GruPair::check(const GruCase &c, Rng &rng) {
    const qk::gru::Cell &cell = cuda_gru->cell;
    const int64_t count = int64_t{c.steps} * c.batch * cell.input_size;
    const std::vector<uint8_t> x = random_x(cell, c.x_is_float, count, rng);
    const std::vector<float> h = random_h(cell, c.batch, rng);
    const GruRun expected = run_cpu(c, x, h);
    qk::GruArgs args = arguments(c);
    uint8_t some = 0;
    args.gates = c.with_gates ? &some : nullptr;  // can_run asks whether there are gates
    const auto &list = qk::kCudaBackend.gru;
    int ran = 0;
    for (int32_t i = 0; i < list.count; ++i) {
        if (!list.kernels[i]->can_run(args, device_0())) continue;
        ++ran;
        if (!harness::wanted("cuda", list.kernels[i]->name)) continue;
        const GruRun actual = run_cuda(*list.kernels[i], args, c, x, h);
        EXPECT_TRUE(actual.y == expected.y) << list.kernels[i]->name << ": y";
        EXPECT_TRUE(actual.gates == expected.gates) << list.kernels[i]->name << ": gates";
        EXPECT_TRUE(actual.h == expected.h) << list.kernels[i]->name << ": h";
    }
    return ran;
}

}  // namespace cuda_test
