// What the library may use of this processor: older ones are measured on a newer one.
#pragma once
#include <string>
#include <vector>

namespace bench {

inline std::vector<std::string> instruction_sets() { return {"all", "avx512", "avx2", "generic"}; }

// One of the above, where "avx512" is its base alone (no VNNI, VBMI, BF16), or on Arm "all",
// "i8mm", "dotprod", "neon" or "generic".
void allow_instruction_set(const std::string &name);

}  // namespace bench
