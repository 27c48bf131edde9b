// The CPU's choice of a kernel: the plan against the lists, and the table as a page for processors
// that this machine is not.
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "cpu/linear/select.hpp"
#include "kernel/weights.hpp"

namespace {

using namespace qk::cpu;

// Every layout, format, kind of scale and grouping that the choice looks at.
std::vector<WeightCase> cases() {
    std::vector<WeightCase> all;
    for (const qk_format format :
         {QK_FORMAT_U4_AFFINE, QK_FORMAT_NF4, QK_FORMAT_S8, QK_FORMAT_LUT8}) {
        const bool nibbles = format == QK_FORMAT_U4_AFFINE || format == QK_FORMAT_NF4;
        for (const qk_layout layout : {qk_layout{qk::kLayoutRows8}, qk_layout{QK_LAYOUT_ROW},
                                       qk_layout{QK_LAYOUT_ROW_HIGH}, qk_layout{QK_LAYOUT_AWQ_GEMM},
                                       qk_layout{QK_LAYOUT_GPTQ}, qk_layout{QK_LAYOUT_WORD}}) {
            if (!nibbles && layout != QK_LAYOUT_ROW) continue;
            for (const int32_t group : {16, 20, 32, 48, 64, 96, 128, 256, -1}) {
                for (const qk_format scale : {QK_FORMAT_F32, QK_FORMAT_LUT8}) {
                    for (const qk_grouping grouping : {QK_GROUPING_ALONG_K, QK_GROUPING_FLAT}) {
                        for (const int64_t n : {4, 40}) {
                            all.push_back({format, scale, layout, n, 320, group, false, grouping});
                        }
                    }
                }
            }
        }
    }
    return all;
}

// Their shapes without planes, and a dense one.
std::vector<qk::Weight> views(const std::vector<WeightCase> &all) {
    std::vector<qk::Weight> views;
    for (const WeightCase &c : all) {
        const TestWeight weight(c, 1);
        if (!weight.valid()) continue;
        const qk::Weight w = weight.view();
        views.push_back({w.format, w.layout, w.geometry, nullptr, {}, nullptr, nullptr});
        views.back().scale.format = w.scale.format;
    }
    qk::Weight dense = {};
    dense.format = qk::find_format(QK_FORMAT_F32);
    dense.geometry.n = 40, dense.geometry.k = 320;
    views.push_back(dense);
    return views;
}

// The first of the lists that takes the case: a mode's, else an exact one. Where bf16 vectors are
// slow the mode has tiles alone.
const qk::Kernel<qk::LinearArgs> *walked(const qk::LinearArgs &args, const qk::Device &device,
                                         uint32_t mode) {
    const qk::Backend &cpu = qk::kCpuBackend;
    const bool tiles = has(device, QK_ISA_AMX_BF16) && args.x.rows >= 8;
    if (mode == kBf16Mode && device.slow_bf16_vectors && !tiles) mode = 0;
    const qk::Kernel<qk::LinearArgs> *found = nullptr;
    if (mode == kInt8Mode) found = qk::pick(cpu.linear_int8, args, device);
    if (mode == kBf16Mode) found = qk::pick(cpu.linear_bf16, args, device);
    return found != nullptr ? found : qk::pick(cpu.linear, args, device);
}

void expect_first(const qk::LinearArgs &args, const qk::Device &device, uint32_t modes) {
    const auto plan = plan_linear(args, device, {modes, SIZE_MAX}, nullptr);
    ASSERT_EQ(plan.kernel, walked(args, device, modes));
    const uint32_t sets = device.instruction_sets | QK_ISA_GENERIC;
    const Conditions facts = linear_facts(args);
    const uint32_t faster = faster_modes(modes, device);
    ASSERT_STREQ(plan.kernel->name, select_linear(facts, sets, faster).name);
}

// Lists have the table's sequence, and the plan has the kernel of the row that it finds.
TEST(CpuSelect, PlansTheFirstKernelThatTakesTheCase) {
    const uint32_t all_sets = qk::cpu::allowed_features(~0u);
    const uint32_t x86 = QK_ISA_GENERIC | QK_ISA_AVX2 | QK_ISA_AVX512;
    const auto weights = views(cases());
    for (const uint32_t cap :
         {~0u, QK_ISA_GENERIC, QK_ISA_GENERIC | QK_ISA_AVX2,
          QK_ISA_GENERIC | QK_ISA_AVX2 | QK_ISA_AVX_VNNI, x86, x86 | QK_ISA_AVX512_VNNI,
          x86 | QK_ISA_AVX512_VBMI, QK_ISA_GENERIC | QK_ISA_NEON,
          QK_ISA_GENERIC | QK_ISA_NEON | QK_ISA_DOTPROD, QK_ISA_GENERIC | QK_ISA_RVV}) {
        qk::Device device = qk::device_at(qk::kCpuBackend, 0, cap & all_sets);
        for (const qk::Weight &w : weights) {
            for (const int64_t m : {1, 2, 3, 4, 5, 6, 7, 32, 33}) {
                const qk::Format *const f32 = qk::find_format(QK_FORMAT_F32);
                const qk::LinearArgs args = {
                    {f32, m, w.geometry.k, nullptr}, w, nullptr, {f32, m, w.geometry.n, nullptr}};
                SCOPED_TRACE(testing::Message() << w.format->name << " m " << m);
                for (const uint32_t modes : {0u, kInt8Mode, kBf16Mode}) {
                    for (const bool slow : {false, true}) {
                        device.slow_bf16_vectors = slow;
                        expect_first(args, device, modes);
                    }
                }
            }
        }
    }
}

// The page of the choice: cases by what holds of them, processors by what they have.
struct Case {
    const char *name;
    uint32_t mode;
    Conditions facts;
};
constexpr Conditions kRow = kQuantized | kFourBits | kNibbles | kNibblesByRow | kIntegerEntries |
                            kAlongK | kSteps | kOneCut | kGroups16 | kGroupsOfLut8 | kGroupsWhole |
                            kGroupsOfMode | kGroups64 | kEightRowsOfW | kWholeBytes | kScaled;
constexpr Conditions kPackedRow = (kRow & ~kWholeBytes) | kPacked;
constexpr Conditions kColumns = (kRow & ~(kWholeBytes | kNibblesByRow)) | kColumnLayout;
constexpr Conditions kAnyGroups =
    kQuantized | kAlongK | kSteps | kGroupsOfLut8 | kEightRowsOfW | kWholeBytes | kScaled;
constexpr Conditions kGroups = kGroups128 | kBlocks128;
constexpr Conditions kMany =
    kBlockSums | kTwoRows | kFourRows | kAvx2Rows | kVnniRows | kEightRows | kTileRows;
constexpr Case kCases[] = {
    {"u4 g128 packed, m 1", 0, kPackedRow | kGroups | kU4 | kExactIntegers | kLaneSums},
    {"u4 g32 packed, m 1", 0,
     (kPackedRow & ~kGroups64) | kSmallGroups | kU4 | kExactIntegers | kLaneSums},
    {"u4 g128 awq, m 1", 0,
     (kRow & ~(kWholeBytes | kNibblesByRow)) | kGroups | kU4 | kExactIntegers | kColumnLayout |
         kLaneSums},
    {"nf4 g64 packed, m 1", 0, kPackedRow | kLaneSums},
    {"nf4 g64 row, m 1", 0, kRow | kLaneSums},
    {"nf4 g64 packed, m 2", 0, kPackedRow | kLaneSums | kTwoRows | kFewRows | kUpToFourRows},
    {"nf4 g64 packed, m 3", 0, kPackedRow | kBlockSums | kTwoRows | kFewRows | kUpToFourRows},
    {"nf4 g64 packed, m 32", 0, kPackedRow | kMany},
    {"nf4 flat, m 1", 0, (kRow & ~kAlongK) | kLaneSums},
    {"lut8 g5, m 1", 0, kAnyGroups | kLaneSums},
    {"lut8 g5, m 32", 0, kAnyGroups | kMany},
    {"dense, m 1", 0,
     kIntegerEntries | kAlongK | kSteps | kGroups16 | kGroupsOfLut8 | kEightRowsOfW | kLaneSums},
    {"nf4 g64 packed int8, m 1", kInt8Mode, kPackedRow | kLaneSums},
    {"nf4 g64 packed int8, m 32", kInt8Mode, kPackedRow | kMany},
    {"nf4 g64 row int8, m 1", kInt8Mode, kRow | kLaneSums},
    {"nf4 g64 gptq int8, m 1", kInt8Mode, kColumns | kLaneSums | kUpTo32Rows},
    {"nf4 g64 gptq int8, m 33", kInt8Mode, kColumns | kMany},
    {"nf4 flat int8, m 1", kInt8Mode, (kRow & ~kAlongK) | kLaneSums},
    {"nf4 flat packed int8, m 1", kInt8Mode, (kPackedRow & ~kAlongK) | kLaneSums | kVnniRows},
    {"nf4 flat int8, m 32", kInt8Mode, (kRow & ~kAlongK) | kMany},
    {"nf4 flat, any k, int8, m 32", kInt8Mode, (kRow & ~(kAlongK | kSteps)) | kMany},
    {"nf4 flat bf16, m 32", kBf16Mode, (kRow & ~kAlongK) | kMany},
    {"nf4 flat, any k, bf16, m 32", kBf16Mode, (kRow & ~(kAlongK | kSteps)) | kMany},
    {"nf4 g64 packed bf16, m 1", kBf16Mode, kPackedRow | kLaneSums},
    {"nf4 g64 packed bf16, m 32", kBf16Mode, kPackedRow | kMany},
};
constexpr uint32_t kHaswell = QK_ISA_GENERIC | QK_ISA_AVX2, kSkylake = kHaswell | QK_ISA_AVX512,
                   kCascade = kSkylake | QK_ISA_AVX512_VNNI,
                   kIceLake = kCascade | QK_ISA_AVX512_VBMI, kZen4 = kIceLake | QK_ISA_AVX512_BF16,
                   kSapphire = kZen4 | QK_ISA_AMX_INT8 | QK_ISA_AMX_BF16,
                   kA53 = QK_ISA_GENERIC | QK_ISA_NEON, kN1 = kA53 | QK_ISA_DOTPROD,
                   kV1 = kN1 | QK_ISA_I8MM, kRva23 = QK_ISA_GENERIC | QK_ISA_RVV;
struct Processor {
    const char *name;
    uint32_t sets, kind;
};
constexpr Processor kProcessors[] = {
    {"generic", QK_ISA_GENERIC, QK_ISA_GENERIC},
    {"AVX2", kHaswell, kX86Sets},
    {"AVX-VNNI", kHaswell | QK_ISA_AVX_VNNI, kX86Sets},
    {"AVX-512", kSkylake, kX86Sets},
    {"+ VNNI", kCascade, kX86Sets},
    {"+ VBMI", kIceLake, kX86Sets},
    {"+ BF16", kZen4, kX86Sets},
    {"+ AMX", kSapphire, kX86Sets},
    {"NEON", kA53, kArmSets},
    {"+ DOTPROD", kN1, kArmSets},
    {"+ I8MM", kV1, kArmSets},
    {"RVV", kRva23, kRiscvSets},
};

// docs/measurements/cpu-kernels.md: a case a section, a processor a line.
std::string page() {
    std::ostringstream text;
    text << "# Which kernel multiplies on the CPU\n\n"
            "Printed by tests/kernel/cpu_select.cpp from kernels/cpu/linear/select.hpp;\n"
            "QK_WRITE_PAGE=1 test_kernel_cpu_lists --gtest_filter='CpuSelect.*' renews it.\n";
    for (const Case &c : kCases) {
        text << "\n## " << c.name << "\n\n| instruction sets | kernel | why not a faster one |\n"
             << "|---|---|---|\n";
        for (const Processor &p : kProcessors) {
            qk::Device device;
            device.slow_bf16_vectors = (p.sets & QK_ISA_AMX_BF16) != 0;  // as processors are
            const LinearRow &row = select_linear(c.facts, p.sets, faster_modes(c.mode, device));
            const Faster faster = faster_linear(c.facts, p.sets, c.mode, device, p.kind);
            text << "| " << p.name << " | " << row.name << " | "
                 << (*faster.set != 0 ? "no " : faster.reason) << faster.set << " |\n";
        }
    }
    return text.str();
}

TEST(CpuSelect, ThePageOfProcessorsIsTheCommittedOne) {
    if (getenv("QK_WRITE_PAGE") != nullptr) std::ofstream(QK_CPU_PAGE) << page();
    std::ostringstream committed;
    committed << std::ifstream(QK_CPU_PAGE).rdbuf();
    EXPECT_EQ(page(), committed.str());
}

constexpr const char *kSlowBf16 = "bf16 vectors are slower than exact products on this processor";

// Where bf16 vectors are slow bf16 mode says why it is exact: for few rows that they are, for many
// that there are no tiles.
TEST(CpuSelect, SaysWhyBf16ModeIsExact) {
    constexpr uint32_t kFast = kSapphire & ~(QK_ISA_AMX_BF16 | QK_ISA_AMX_INT8);
    constexpr Conditions kOneRow = kPackedRow | kLaneSums, kThirtyTwo = kPackedRow | kMany;
    struct Answer {
        bool slow;
        uint32_t sets, mode;
        Conditions facts;
        const char *kernel, *reason, *set;
    };
    for (const Answer &a : {
             Answer{true, kSapphire, kBf16Mode, kOneRow, "avx512 gemv", kSlowBf16, ""},
             Answer{true, kFast, kBf16Mode, kOneRow, "avx512 gemv", kSlowBf16, ""},
             Answer{false, kFast, kBf16Mode, kOneRow, "avx512 bf16", "", ""},
             Answer{true, kSapphire, 0, kOneRow, "avx512 gemv", "", ""},
             Answer{true, kSapphire, kBf16Mode, kThirtyTwo, "amx bf16 batch", "", ""},
             Answer{true, kFast, kBf16Mode, kThirtyTwo, "avx512 batch", "", "amx_bf16"},
             Answer{true, kSapphire, kBf16Mode | kInt8Mode, kOneRow, "avx512 vnni int8", "", ""},
             Answer{true, kHaswell, kBf16Mode, kOneRow, "avx2 gemv", "", "avx512"},
         }) {
        qk::Device device;
        device.slow_bf16_vectors = a.slow;
        SCOPED_TRACE(testing::Message() << a.kernel << ", slow " << a.slow << ", mode " << a.mode);
        EXPECT_STREQ(select_linear(a.facts, a.sets, faster_modes(a.mode, device)).name, a.kernel);
        const Faster faster = faster_linear(a.facts, a.sets, a.mode, device, kX86Sets);
        EXPECT_STREQ(faster.reason, a.reason);
        EXPECT_STREQ(faster.set, a.set);
    }
}

TEST(CpuSelect, SaysWhyExpertsInBf16ModeAreExact) {
#if !defined(QK_TEST_X86)
    GTEST_SKIP() << "this build has no bf16 vectors";
#endif
    const WeightCase c = {QK_FORMAT_NF4, QK_FORMAT_F32,      qk::kLayoutRows8, 32, 128, 64,
                          false,         QK_GROUPING_ALONG_K};
    const TestWeight weight(c, 1);
    ASSERT_TRUE(weight.valid());
    qk::Experts experts = {};
    experts.tokens = experts.slots = 1, experts.count = 2;
    const qk::Format *const f32 = qk::find_format(QK_FORMAT_F32);
    qk::LinearArgs args = {{f32, 1, 128, nullptr}, weight.view(), nullptr, {f32, 1, 16, nullptr}};
    args.experts = &experts;
    qk::Device device;
    device.instruction_sets = kSapphire;
    for (const bool slow : {false, true}) {
        device.slow_bf16_vectors = slow;
        qk::Explanation explanation;
        plan_linear(args, device, {kBf16Mode, SIZE_MAX}, &explanation);
        EXPECT_STREQ(explanation.reason, slow ? kSlowBf16 : "");
    }
}

// Smaller groups want more rows of x before AMX's tiles are faster.
TEST(CpuSelect, TilesBeginByTheGroupsSize) {
    constexpr std::pair<int32_t, int64_t> kFirst[] = {{16, 80},  {32, 25},  {64, 13},
                                                      {128, 13}, {256, 13}, {QK_GROUP_ROW, 13}};
    for (const qk_format format : {QK_FORMAT_NF4, QK_FORMAT_S8}) {
        for (const auto &[group, first] : kFirst) {
            const WeightCase c = {format, QK_FORMAT_F32, QK_LAYOUT_ROW, 8,
                                  256,    group,         false,         QK_GROUPING_ALONG_K};
            const TestWeight weight(c, 1);
            ASSERT_TRUE(weight.valid());
            const qk::Format *const f32 = qk::find_format(QK_FORMAT_F32);
            for (const int64_t m : {first - 1, first}) {
                const qk::LinearArgs args = {
                    {f32, m, c.k, nullptr}, weight.view(), nullptr, {f32, m, c.n, nullptr}};
                const LinearRow &row = select_linear(linear_facts(args), kSapphire, kInt8Mode);
                const bool tiles = std::string(row.name).find("amx") != std::string::npos;
                EXPECT_EQ(tiles, m == first) << row.name << " m " << m << " group " << group;
            }
        }
    }
}

// Where groups straddle rows, VNNI's batch takes packed weights from the first row of x on and rows
// as stored from the second.
TEST(CpuSelect, BatchesBeginEarlyWhereGroupsStraddleRows) {
    for (const qk_layout layout : {qk_layout{qk::kLayoutRows8}, qk_layout{QK_LAYOUT_ROW_HIGH}}) {
        const WeightCase c = {QK_FORMAT_NF4, QK_FORMAT_F32,   layout, 8, 1040, 64,
                              false,         QK_GROUPING_FLAT};
        const TestWeight weight(c, 1);
        ASSERT_TRUE(weight.valid());
        const qk::Format *const f32 = qk::find_format(QK_FORMAT_F32);
        for (const int64_t m : {1, 2}) {
            const qk::LinearArgs args = {
                {f32, m, c.k, nullptr}, weight.view(), nullptr, {f32, m, c.n, nullptr}};
            const LinearRow &row = select_linear(linear_facts(args), kZen4, kInt8Mode);
            const bool batch = m == 2 || layout == qk_layout{qk::kLayoutRows8};
            EXPECT_STREQ(row.name, batch ? "avx512 vnni int8 batch" : "avx512 vnni int8");
        }
    }
}

// Names are those of the kernels, and each kernel of the build is in the table once.
TEST(CpuSelect, KnowsEveryKernel) {
    std::set<std::string> names;
    for (const LinearRow &row : kLinearTable) EXPECT_TRUE(names.insert(row.name).second);
    const qk::Backend &cpu = qk::kCpuBackend;
    for (const auto *list : {&cpu.linear, &cpu.linear_int8, &cpu.linear_bf16}) {
        for (int32_t i = 0; i < list->count; ++i) {
            EXPECT_EQ(names.count(list->kernels[i]->name), 1u) << list->kernels[i]->name;
        }
    }
}

// As many tasks as are worth a thread, in rounds that use all of them.
TEST(Tasks, HaveALeastAmountOfWork) {
    const qk::Parallel parallel = {nullptr, nullptr, 8, 100};
    EXPECT_EQ(task_count(parallel, 1000, 1000, 100), 32) << "4 a thread";
    EXPECT_EQ(task_count(parallel, 1000, 5, 100), 5) << "blocks";
    EXPECT_EQ(task_count(parallel, 300, 300, 9), 24) << "25 of 12 items";
    EXPECT_EQ(task_count(parallel, 70, 70, 9), 5);
    EXPECT_LE(task_count(parallel, 11, 11, 9), 1);
    EXPECT_LE(task_count(parallel, 0, 0, 9), 1);
    EXPECT_LE(task_count(parallel, 50, 50, 0), 1) << "no columns";
    const qk::Parallel executor = {nullptr, nullptr, 8};
    EXPECT_EQ(task_count(executor, 11, 11, 0), 11) << "the caller's threads get all";
}

}  // namespace
