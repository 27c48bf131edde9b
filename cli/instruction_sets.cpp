#include "instruction_sets.hpp"

#include <sstream>

namespace {

struct Set {
    const char *name;
    uint32_t bit, with;  // `with`: what it extends, down to the portable kernels
};

constexpr uint32_t kAvx2 = QK_ISA_GENERIC | QK_ISA_AVX2, kAvx512 = kAvx2 | QK_ISA_AVX512;
constexpr uint32_t kNeon = QK_ISA_GENERIC | QK_ISA_NEON, kDotprod = kNeon | QK_ISA_DOTPROD;
constexpr Set kSets[] = {
    {"generic", QK_ISA_GENERIC, 0},
    {"avx2", QK_ISA_AVX2, QK_ISA_GENERIC},
    {"avx_vnni", QK_ISA_AVX_VNNI, kAvx2},
    {"avx512", QK_ISA_AVX512, kAvx2},
    {"avx512_vbmi", QK_ISA_AVX512_VBMI, kAvx512},
    {"avx512_vnni", QK_ISA_AVX512_VNNI, kAvx512},
    {"avx512_bf16", QK_ISA_AVX512_BF16, kAvx512},
    {"amx_int8", QK_ISA_AMX_INT8, kAvx512 | QK_ISA_AVX512_VBMI | QK_ISA_AVX512_VNNI},
    {"amx_bf16", QK_ISA_AMX_BF16, kAvx512 | QK_ISA_AVX512_BF16},
    {"neon", QK_ISA_NEON, QK_ISA_GENERIC},
    {"dotprod", QK_ISA_DOTPROD, kNeon},
    {"i8mm", QK_ISA_I8MM, kDotprod},
    {"rvv", QK_ISA_RVV, QK_ISA_GENERIC},
};

std::string joined(const std::vector<std::string> &names) {
    std::string text;
    for (const std::string &name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
}

const Set &find_set(const std::string &name) {
    for (const Set &set : kSets) {
        if (name == set.name) return set;
    }
    throw Failure(kUsage, "--isa " + (name.empty() ? "''" : name) + ": accepted are " +
                              known_instruction_sets() + ", or several of them with commas");
}

}  // namespace

std::vector<std::string> instruction_set_names(uint32_t sets) {
    std::vector<std::string> names;
    for (const Set &set : kSets) {
        if ((sets & set.bit) != 0) names.push_back(set.name);
    }
    return names;
}

std::string known_instruction_sets() { return "all, " + joined(instruction_set_names(~0u)); }

uint32_t instruction_sets_of(const std::string &isa) {
    if (isa.empty() || isa == "all") return 0;
    uint32_t wanted = 0;
    std::istringstream names(isa);
    for (std::string name; std::getline(names, name, ',');) {
        const Set &set = find_set(name);
        wanted |= set.bit | set.with;
    }
    if (wanted == 0) find_set(isa);
    CommonOptions one_thread;
    one_thread.threads = 1;
    const uint32_t available = context_info(one_thread).instruction_sets;
    if ((wanted & ~available) != 0) {
        throw Failure(kUnsupported, "--isa: " + joined(instruction_set_names(wanted & ~available)) +
                                        " cannot run here; this processor and build have " +
                                        joined(instruction_set_names(available)));
    }
    return wanted;
}

ContextInfo context_info(const CommonOptions &common) {
    const Context context = create_context(common);
    qk_context_info info = QK_CONTEXT_INFO_INIT;
    check(qk_context_describe(context.get(), &info), "cannot describe a context", nullptr);
    return {info.thread_count, info.instruction_sets};
}
