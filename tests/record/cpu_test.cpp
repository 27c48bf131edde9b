// Every kernel of every list of the CPU gives the bits on record (record.txt), on each level of
// instruction sets that this machine has. After a kernel was added, renamed or removed, or when its
// bits change for a reason that docs/decisions.md gives: tests/record/update.
#include "backend/registry.hpp"
#include "record/measure.hpp"

namespace {

using namespace record;

// The inputs are on record too.
[[maybe_unused]] const int kSeed = putenv(const_cast<char *>("QK_TEST_SEED=20240607"));

struct Level {
    const char *name;
    uint32_t bit;
    bool aside = false;  // what follows does without it
};
// In the order in which they build on each other.
constexpr Level kLevels[] = {
    {"portable", QK_ISA_GENERIC},
#if defined(__x86_64__)
    {"avx2", QK_ISA_AVX2},
    {"avx_vnni", QK_ISA_AVX_VNNI, true},
    {"avx512", QK_ISA_AVX512},
    {"avx512_vbmi", QK_ISA_AVX512_VBMI},
    {"avx512_vnni", QK_ISA_AVX512_VNNI},
    {"avx512_bf16", QK_ISA_AVX512_BF16},
    {"amx_int8", QK_ISA_AMX_INT8},
    {"amx_bf16", QK_ISA_AMX_BF16},
#elif defined(__aarch64__)
    {"neon", QK_ISA_NEON},
    {"dotprod", QK_ISA_DOTPROD},
    {"i8mm", QK_ISA_I8MM},
#elif defined(__arm__)
    {"neon", QK_ISA_NEON},
#elif defined(__riscv)
    {"rvv", QK_ISA_RVV},
#endif
};

std::vector<std::string> level_names() {
    std::vector<std::string> names;
    for (const Level &level : kLevels) names.push_back(level.name);
    return names;
}

Place place() {
    Place place;
    uint32_t allowed = 0, aside = 0;
    for (const Level &level : kLevels) {
        place.devices.push_back(qk::device_at(qk::kCpuBackend, 0, allowed | level.bit));
        place.sets.push_back(level.name);
        (level.aside ? aside : allowed) |= level.bit;
    }
    place.devices.back() = qk::device_at(qk::kCpuBackend, 0, allowed | aside);  // everything
    return place;
}

// Whether this processor has everything up to the level of that name.
bool has_level(const std::string &name) {
    const uint32_t here = qk::device_at(qk::kCpuBackend, 0).instruction_sets;
    for (const Level &level : kLevels) {
        const bool has = (here & level.bit) != 0 || level.bit == QK_ISA_GENERIC;
        if (name == level.name) return has;
        if (!has && !level.aside) return false;
    }
    return false;
}

const std::vector<Line> &recorded() {
    static const std::vector<Line> lines = read_lines(QK_RECORD);
    return lines;
}

struct Operation {
    const char *name;
    std::vector<Line> (*measure)(const char *name);
    std::vector<std::string> (*kernels)();
};

template <auto list, auto table>
constexpr Operation operation(const char *name) {
    return {name,
            [](const char *of) {
        return measure(of, qk::kCpuBackend, qk::kCpuBackend.*list, table, place());
            },
            [] { return names_of(qk::kCpuBackend.*list); }};
}

constexpr Operation kOperations[] = {
    operation<&qk::Backend::dequantize, visit_dequantize>("dequantize"),
    operation<&qk::Backend::quantize, visit_quantize>("quantize"),
    operation<&qk::Backend::repack, visit_repack>("repack"),
    operation<&qk::Backend::linear, visit_linear>("linear"),
    operation<&qk::Backend::linear_int8, visit_linear_along_k>("linear_int8"),
    operation<&qk::Backend::linear_bf16, visit_linear_along_k>("linear_bf16"),
    operation<&qk::Backend::gru, visit_gru>("gru"),
    operation<&qk::Backend::float_product, visit_float_product>("float_product"),
    operation<&qk::Backend::float_gates, visit_float_gates>("float_gates"),
};

void PrintTo(const Operation &operation, std::ostream *out) { *out << operation.name; }

class Record : public ::testing::TestWithParam<Operation> {};

TEST_P(Record, EveryKernelGivesItsBits) {
    const char *const operation = GetParam().name;
    const std::vector<std::string> kernels = GetParam().kernels(), sets = level_names();
    if (kernels.empty()) GTEST_SKIP() << "this build has no kernel for " << operation;
    const std::vector<Line> found = GetParam().measure(operation);
    if (writes()) {
        std::vector<std::string> here;
        std::copy_if(sets.begin(), sets.end(), std::back_inserter(here), has_level);
        return merge(QK_RECORD, operation, here, found);
    }
    for (const Line &line : found) expect_recorded(recorded(), sets, line);
    for (const std::string &kernel : kernels) {
        const auto is_it = [&](const Line &line) { return line.kernel == kernel; };
        if (std::any_of(found.begin(), found.end(), is_it)) continue;
        const Line *const line = find_line(recorded(), sets, operation, kernel);
        if (line != nullptr && !has_level(line->set)) {
            std::printf("skipped: %s: this machine has no %s\n", line->key().c_str(),
                        line->set.c_str());
        } else {
            ADD_FAILURE() << operation << " / " << kernel << ": no case runs it";
        }
    }
}

// The sets of this build alone: the others' lines are checked where they run.
TEST_P(Record, EveryLineHasAKernel) {
    const std::vector<std::string> kernels = GetParam().kernels(), sets = level_names();
#if !defined(QK_RECORD_VECTORS)
    GTEST_SKIP() << "QK_CPU_SIMD is off, or the compiler has no vectors of this processor";
#endif
    if (writes()) GTEST_SKIP() << "lines are being written";
#if defined(__arm__)
    if (kernels.size() == 1) GTEST_SKIP() << "aarch64's kernel is on record; here is none";
#endif
    for (const Line &line : recorded()) {
        if (line.operation != GetParam().name || !contains(sets, line.set)) continue;
        EXPECT_TRUE(contains(kernels, line.kernel))
            << line.key() << " is on record and in no list: run tests/record/update";
    }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Record, ::testing::ValuesIn(kOperations),
                         [](const auto &info) { return std::string(info.param.name); });

}  // namespace
