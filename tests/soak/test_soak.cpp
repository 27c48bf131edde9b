// Draws cases until its time is over, and prints each failure with the line that repeats it.
//
//   test_soak [--backend cpu|cuda] [--isa all|avx512|avx2|dotprod|neon|generic]
//             [--seconds S | --cases N] [--seed N] [--case NUMBER [--repeat N]]
//             [--only dequantize|repack|quantize|linear|queue|refuse] [--verbose]
//
// Exit code: 0, 1 where a case failed, 77 where the backend has no device here.
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "backend/registry.hpp"
#include "instruction_set.hpp"
#include "soak/soak.hpp"

namespace {

using namespace soak;

struct Options {
    std::string backend = "cpu", isa = "all", only;
    double seconds = 5;
    int64_t cases = 0, repeat = 1;
    uint64_t seed = 0, number = 0;
    bool one = false, verbose = false;
};

[[noreturn]] void usage(const char *argument) {
    std::fprintf(stderr, "test_soak: %s? See the head of tests/soak/test_soak.cpp\n", argument);
    std::exit(2);
}

Options parse(int count, char **arguments) {
    Options options;
    options.seed = uint64_t(std::chrono::system_clock::now().time_since_epoch().count());
    for (int i = 1; i < count; ++i) {
        const std::string name = arguments[i];
        if (name == "--verbose") {
            options.verbose = true;
            continue;
        }
        if (++i == count) usage(name.c_str());
        const char *const value = arguments[i];
        if (name == "--backend")
            options.backend = value;
        else if (name == "--isa")
            options.isa = value;
        else if (name == "--only")
            options.only = value;
        else if (name == "--seconds")
            options.seconds = std::atof(value);
        else if (name == "--cases")
            options.cases = std::atoll(value);
        else if (name == "--repeat")
            options.repeat = std::atoll(value);
        else if (name == "--seed")
            options.seed = std::strtoull(value, nullptr, 0);
        else if (name == "--case")
            options.number = std::strtoull(value, nullptr, 0);
        else
            usage(name.c_str());
        options.one = options.one || name == "--case";
    }
    return options;
}

void run_case(World *world, const Case &c) {
    Random random(c.number ^ 0x5eed);
    switch (c.op) {
        case Op::dequantize: return check_dequantize(world, c, &random);
        case Op::repack: return check_repack(world, c, &random);
        case Op::quantize: return check_quantize(world, c, &random);
        case Op::queue: return check_queue(world, c, &random);
        case Op::refuse: return check_refusals(world, c, &random);
        default: return check_linear(world, c, &random);
    }
}

double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Returns whether the case passed.
bool attempt(World *world, const Options &options, const Case &c) {
    if (options.verbose) {
        std::printf("0x%016" PRIx64 " %s\n", c.number, describe(c).c_str());
        std::fflush(stdout);
    }
    try {
        run_case(world, c);
        return true;
    } catch (const Failure &failure) {
        std::printf("FAILED: test_soak --backend %s --isa %s --case 0x%016" PRIx64 "\n",
                    options.backend.c_str(), options.isa.c_str(), c.number);
        std::printf("    %s\n    %s\n", describe(c).c_str(), failure.what());
        std::fflush(stdout);
        if (dynamic_cast<const Fault *>(&failure) != nullptr) std::_Exit(1);
        return false;
    }
}

}  // namespace

int main(int count, char **arguments) {
    setenv("QK_TEST_SEED", "0", 0);  // cases have numbers of their own
    const Options options = parse(count, arguments);
    const qk_device device = options.backend == "cuda" ? QK_DEVICE_CUDA : QK_DEVICE_CPU;
    const qk::Backend *const backend = qk::find_backend(device);
    if (backend == nullptr || backend->device_count() == 0) {
        std::printf("skipped: backend %s: not in this build, or no device on this machine\n",
                    options.backend.c_str());
        return 77;
    }
    World world(*backend, bench::instruction_sets_of(options.isa));
    if (options.one) {
        int64_t failed = 0;
        const Case c = draw(options.number, device);
        for (int64_t i = 0; i < options.repeat; ++i) failed += !attempt(&world, options, c);
        return failed == 0 ? 0 : 1;
    }
    std::printf("test_soak --backend %s --isa %s --seed %" PRIu64 "\n", options.backend.c_str(),
                options.isa.c_str(), options.seed);
    // Neighbouring streams of Random are one sequence, a number apart: seeds must not be.
    Random numbers(Random(options.seed).next());
    const auto start = std::chrono::steady_clock::now();
    int64_t ran[int(Op::count)] = {}, failed = 0, all = 0;
    while (options.cases > 0 ? all < options.cases : seconds_since(start) < options.seconds) {
        const Case c = draw(numbers.next(), device);
        if (!options.only.empty() && options.only != name(c.op)) continue;
        ++ran[int(c.op)], ++all;
        if (!attempt(&world, options, c) && ++failed == 20) break;
    }
    std::printf("%lld cases in %.1f s, %lld failed:", (long long)all, seconds_since(start),
                (long long)failed);
    for (int op = 0; op < int(Op::count); ++op) {
        std::printf(" %s %lld", name(Op(op)), (long long)ran[op]);
    }
    std::printf("\n");
    return failed == 0 ? 0 : 1;
}
