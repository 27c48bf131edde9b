// One kernel at a time: with QK_KERNEL=NAME in the environment the tests run only the kernels that
// have this name, or, where none has it, whose name has that in it; QK_KERNEL=cpu/NAME those of one
// backend. A program that then ran no case fails. tools/test kernel sets it.
#pragma once
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "backend/backend.hpp"
#include "backend/registry.hpp"

namespace harness {

// Calls visit(backend, operation, kernel) for every kernel of every list.
template <class Visit>
void for_each_name(const Visit &visit) {
    for (int32_t i = 0; qk::backend_at(i) != nullptr; ++i) {
        const qk::Backend &backend = *qk::backend_at(i);
        const auto each = [&](const char *operation, const auto &list) {
            for (int32_t at = 0; at < list.count; ++at) {
                visit(backend, operation, *list.kernels[at]);
            }
        };
        each("linear", backend.linear);
        each("linear-int8", backend.linear_int8);
        each("linear-bf16", backend.linear_bf16);
        each("dequantize", backend.dequantize);
        each("quantize", backend.quantize);
        each("repack", backend.repack);
        each("gru", backend.gru);
        each("float-product", backend.float_product);
        each("float-gates", backend.float_gates);
    }
}

struct Only {
    std::string backend, name;  // empty: every one
    bool exact = false;
    int64_t cases = 0;

    Only() {
        const char *const text = std::getenv("QK_KERNEL");
        if (text == nullptr || *text == 0) return;
        name = text;
        const size_t slash = name.find('/');
        if (slash != std::string::npos) backend = name.substr(0, slash);
        if (slash != std::string::npos) name.erase(0, slash + 1);
        for_each_name([&](const auto &, const char *, const auto &kernel) {
            exact = exact || kernel.name == name;
        });
    }
    bool has(const char *of, const std::string &kernel) const {
        if (!backend.empty() && backend != of) return false;
        return exact ? kernel == name : kernel.find(name) != std::string::npos;
    }
};

inline Only &only() {
    static Only the;
    return the;
}

// Asked for a kernel that takes a case: whether it runs.
inline bool wanted(const char *backend, const char *kernel) {
    if (only().name.empty()) return true;
    const bool is = only().has(backend, kernel);
    only().cases += is ? 1 : 0;
    return is;
}

struct ReportOnly : ::testing::Environment {
    void TearDown() override {
        std::printf("QK_KERNEL=%s: %lld cases ran\n", std::getenv("QK_KERNEL"),
                    static_cast<long long>(only().cases));
        if (only().cases == 0) ADD_FAILURE() << "no case ran: no kernel of that name took one";
    }
};
inline ::testing::Environment *const kReportOnly =
    std::getenv("QK_KERNEL") == nullptr ? nullptr
                                        : ::testing::AddGlobalTestEnvironment(new ReportOnly);

}  // namespace harness
