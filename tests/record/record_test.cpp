// Every kernel of every list of the CPU gives the bits on record (record.txt), on each level of
// instruction sets that this machine has. After a kernel was added, renamed or removed, or when its
// bits change for a reason that docs/decisions.md gives: tests/record/update.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "backend/registry.hpp"
#include "record/cases.hpp"
#include "record/lines.hpp"

namespace {

using namespace record;
using sweep::Home;

struct Level {
    const char *name;
    uint32_t bit;
};
// In the order in which they build on each other.
constexpr Level kLevels[] = {
    {"portable", QK_ISA_GENERIC},
#if defined(__x86_64__)
    {"avx2", QK_ISA_AVX2},
    {"avx512", QK_ISA_AVX512},
    {"avx512_vbmi", QK_ISA_AVX512_VBMI},
    {"avx512_vnni", QK_ISA_AVX512_VNNI},
    {"avx512_bf16", QK_ISA_AVX512_BF16},
#elif defined(__aarch64__)
    {"neon", QK_ISA_NEON},
    {"dotprod", QK_ISA_DOTPROD},
    {"i8mm", QK_ISA_I8MM},
#endif
};

std::vector<std::string> level_names() {
    std::vector<std::string> names;
    for (const Level &level : kLevels) names.push_back(level.name);
    return names;
}

bool only_few() {
    const char *const every = std::getenv("QK_SWEEP_EVERY");
    return every != nullptr && std::atoi(every) > 1;
}

class Sums {
  public:
    void add(uint64_t number, uint64_t digest) {
        ++cases;
        all.number(digest);
        if (is_few(number)) few.number(digest);
    }
    bool operator==(const Sums &other) const {
        return cases == other.cases && all.value() == other.all.value();
    }

    int64_t cases = 0;
    Digest all, few;
};

// A kernel with the least instruction sets that it runs with, and with all of this processor.
struct Found {
    size_t least = 0;
    Sums with_least, with_all;
};

template <class Args>
using Table = void (*)(Home *, bool few, const Visit<Args> &);

// What this processor has up to each level.
std::vector<qk::Device> devices_of(const qk::Backend &backend) {
    std::vector<qk::Device> devices;
    uint32_t allowed = 0;
    for (const Level &level : kLevels) {
        allowed |= level.bit;
        devices.push_back(qk::device_at(backend, 0, allowed));
    }
    return devices;
}

template <class Args>
void run_on(const qk::Device &device, Home *home, const qk::Kernel<Args> &kernel,
            const Case<Args> &c, Sums *sums) {
    home->device = device;
    c.clear();
    EXPECT_EQ(run(home, kernel, c.args, c.number), QK_OK) << kernel.name;
    Digest digest;
    c.digest(&digest);
    sums->add(c.number, digest.value());
}

template <class Args>
std::vector<Line> measure(const char *operation, const qk::KernelList<Args> &list,
                          Table<Args> table) {
    Home home(qk::kCpuBackend);
    const std::vector<qk::Device> devices = devices_of(home.backend);
    std::vector<Found> found(size_t(list.count));
    table(&home, only_few(), [&](const Case<Args> &c) {
        for (int32_t i = 0; i < list.count; ++i) {
            const qk::Kernel<Args> &kernel = *list.kernels[i];
            if (!kernel.can_run(c.args, devices.back())) continue;
            size_t level = 0;
            while (!kernel.can_run(c.args, devices[level])) ++level;
            Found &each = found[size_t(i)];
            EXPECT_TRUE(each.with_all.cases == 0 || each.least == level) << kernel.name;
            each.least = level;
            run_on(devices[level], &home, kernel, c, &each.with_least);
            run_on(devices.back(), &home, kernel, c, &each.with_all);
        }
    });
    EXPECT_TRUE(home.memory.intact()) << operation;
    std::vector<Line> lines;
    for (int32_t i = 0; i < list.count; ++i) {
        const Sums &sums = found[size_t(i)].with_all;
        if (sums.cases == 0) continue;  // not for this processor
        const char *const name = list.kernels[i]->name, *const set =
                                                            kLevels[found[size_t(i)].least].name;
        EXPECT_TRUE(sums == found[size_t(i)].with_least)
            << operation << " / " << name << ": other bits with " << set << " than with all";
        lines.push_back({sums.all.value(), sums.few.value(), sums.cases, operation, set, name});
    }
    return lines;
}

// Whether this processor has everything up to the level of that name.
bool has_level(const std::string &name) {
    const uint32_t here = qk::device_at(qk::kCpuBackend, 0).instruction_sets;
    for (const Level &level : kLevels) {
        if ((here & level.bit) == 0 && level.bit != QK_ISA_GENERIC) return false;
        if (name == level.name) return true;
    }
    return false;
}

const std::vector<Line> &recorded() {
    static const std::vector<Line> lines = read_lines(QK_RECORD);
    return lines;
}

const Line *recorded(const std::string &operation, const std::string &kernel) {
    const std::vector<std::string> sets = level_names();
    for (const Line &line : recorded()) {
        const bool here = std::find(sets.begin(), sets.end(), line.set) != sets.end();
        if (here && line.operation == operation && line.kernel == kernel) return &line;
    }
    return nullptr;
}

void expect_recorded(const Line &found) {
    const Line *const line = recorded(found.operation, found.kernel);
    if (line == nullptr) {
        ADD_FAILURE() << "record.txt has no line for " << found.key()
                      << ": run tests/record/update, which writes it";
        return;
    }
    EXPECT_EQ(found.set, line->set) << found.key();
    EXPECT_EQ(found.few, line->few) << found.key() << ": other bits than on record";
    if (only_few()) return;
    EXPECT_EQ(found.cases, line->cases) << found.key() << ": takes other cases";
    EXPECT_EQ(found.all, line->all) << found.key() << ": other bits than on record";
}

struct Operation {
    const char *name;
    std::vector<Line> (*measure)(const char *name);
    std::vector<std::string> (*kernels)();
};

template <class Args>
std::vector<std::string> names_of(const qk::KernelList<Args> &list) {
    std::vector<std::string> names;
    for (int32_t i = 0; i < list.count; ++i) names.push_back(list.kernels[i]->name);
    return names;
}

template <auto list, auto table>
constexpr Operation operation(const char *name) {
    return {name, [](const char *n) { return measure(n, qk::kCpuBackend.*list, table); },
            [] { return names_of(qk::kCpuBackend.*list); }};
}

constexpr Operation kOperations[] = {
    operation<&qk::Backend::dequantize, visit_dequantize>("dequantize"),
    operation<&qk::Backend::quantize, visit_quantize>("quantize"),
    operation<&qk::Backend::repack, visit_repack>("repack"),
    operation<&qk::Backend::linear, visit_linear>("linear"),
    operation<&qk::Backend::linear_int8, visit_linear>("linear_int8"),
    operation<&qk::Backend::linear_bf16, visit_linear>("linear_bf16"),
    operation<&qk::Backend::gru, visit_gru>("gru"),
    operation<&qk::Backend::float_product, visit_float_product>("float_product"),
    operation<&qk::Backend::float_gates, visit_float_gates>("float_gates"),
};

void PrintTo(const Operation &operation, std::ostream *out) { *out << operation.name; }

class Record : public ::testing::TestWithParam<Operation> {};

TEST_P(Record, EveryKernelGivesItsBits) {
    const std::vector<std::string> kernels = GetParam().kernels();
    if (kernels.empty()) GTEST_SKIP() << "this build has no kernel for " << GetParam().name;
    const std::vector<Line> found = GetParam().measure(GetParam().name);
    for (const Line &line : found) expect_recorded(line);
    for (const std::string &kernel : kernels) {
        const auto is_it = [&](const Line &line) { return line.kernel == kernel; };
        if (std::any_of(found.begin(), found.end(), is_it)) continue;
        const Line *const line = recorded(GetParam().name, kernel);
        if (line != nullptr && !has_level(line->set)) {
            std::printf("skipped: %s: this machine has no %s\n", line->key().c_str(),
                        line->set.c_str());
        } else {
            ADD_FAILURE() << GetParam().name << " / " << kernel << ": no case runs it";
        }
    }
}

// The sets of this build alone: the others' lines are checked where they run.
TEST_P(Record, EveryLineHasAKernel) {
    const std::vector<std::string> kernels = GetParam().kernels(), sets = level_names();
    if (!QK_RECORD_VECTORS) GTEST_SKIP() << "built with QK_CPU_SIMD=OFF";
    for (const Line &line : recorded()) {
        if (line.operation != GetParam().name) continue;
        if (std::find(sets.begin(), sets.end(), line.set) == sets.end()) continue;
        EXPECT_NE(std::find(kernels.begin(), kernels.end(), line.kernel), kernels.end())
            << line.key() << " is on record and in no list: run tests/record/update";
    }
}

INSTANTIATE_TEST_SUITE_P(Cpu, Record, ::testing::ValuesIn(kOperations),
                         [](const auto &info) { return std::string(info.param.name); });

int write(const char *path) {
    std::vector<Line> found;
    for (const Operation &operation : kOperations) {
        const std::vector<Line> more = operation.measure(operation.name);
        found.insert(found.end(), more.begin(), more.end());
    }
    std::vector<std::string> sets;
    for (const std::string &name : level_names()) {
        if (has_level(name)) sets.push_back(name);
    }
    merge(path, sets, found);
    std::printf("%zu lines in %s\n", found.size(), path);
    return 0;
}

}  // namespace

int main(int argc, char **argv) {
    setenv("QK_TEST_SEED", "20240607", 1);  // the inputs are on record too
    ::testing::InitGoogleTest(&argc, argv);
    if (argc == 3 && std::strcmp(argv[1], "--write") == 0) return write(argv[2]);
    return RUN_ALL_TESTS();
}
