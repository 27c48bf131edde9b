#include <cstdio>
#include <thread>

#include "commands.hpp"
#include "instruction_sets.hpp"
#include "json.hpp"

namespace {

Json json_names(uint32_t instruction_sets) {
    Json array = json_new_array();
    for (const std::string &name : instruction_set_names(instruction_sets)) {
        json_append(array, Json(json_string(name.c_str())));
    }
    return array;
}

}  // namespace

ExitCode run_info(const CommonOptions &common) {
    const uint32_t version = qk_version();
    char text[32];
    std::snprintf(text, sizeof text, "%u.%u.%u", version / 10000, version / 100 % 100,
                  version % 100);
    int32_t cpus = 0, gpus = 0;
    check(qk_device_count(QK_DEVICE_CPU, &cpus), "cannot count devices", nullptr);
    check(qk_device_count(QK_DEVICE_CUDA, &gpus), "cannot count devices", nullptr);
    const int32_t threads = static_cast<int32_t>(std::thread::hardware_concurrency());
    const ContextInfo runs = context_info(common);
    if (common.json) {
        const Json root = json_new_object();
        json_set(root, "version", text);
        json_set(root, "abi", int32_t{QK_ABI_VERSION});
        json_set(root, "build", qk_build_info());
        json_set(root, "cpu_devices", cpus);
        json_set(root, "cuda_devices", gpus);
        json_set(root, "hardware_threads", threads);
        json_set(root, "threads", runs.threads);
        json_set(root, "instruction_sets", json_names(runs.instruction_sets));
        json_print(root);
        return kOk;
    }
    std::printf("version   %s\nbuild     %s\ncpu       %d, %d hardware threads\ncuda      %d\n",
                text, qk_build_info(), cpus, threads, gpus);
    std::printf("runs      %s on the CPU:", plural(runs.threads, "thread").c_str());
    for (const std::string &name : instruction_set_names(runs.instruction_sets)) {
        std::printf(" %s", name.c_str());
    }
    std::printf("\n");
    return kOk;
}
