// Instruction sets by name: what --isa allows and what `qk info` lists.
#pragma once
#include <string>
#include <vector>

#include "common.hpp"

// Of a mask of QK_ISA_..., oldest first.
std::vector<std::string> instruction_set_names(uint32_t sets);
// The mask that --isa means: names with commas, each with what it extends; "all" and "": 0. Throws
// where a name is unknown, or this processor lacks it.
uint32_t instruction_sets_of(const std::string &isa);
std::string known_instruction_sets();  // "all, generic, avx2, ..."

struct ContextInfo {
    int32_t threads;
    uint32_t instruction_sets;
};
// What a context of these options has.
ContextInfo context_info(const CommonOptions &common);
