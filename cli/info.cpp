#include <cstdio>
#include <thread>

#include "commands.hpp"
#include "json.hpp"

ExitCode run_info(const CommonOptions &common) {
    const uint32_t version = qk_version();
    char text[32];
    std::snprintf(text, sizeof text, "%u.%u.%u", version / 10000, version / 100 % 100,
                  version % 100);
    int32_t cpus = 0, gpus = 0;
    check(qk_device_count(QK_DEVICE_CPU, &cpus), "cannot count devices", nullptr);
    check(qk_device_count(QK_DEVICE_CUDA, &gpus), "cannot count devices", nullptr);
    const int32_t threads = static_cast<int32_t>(std::thread::hardware_concurrency());
    if (common.json) {
        const Json root = json_new_object();
        json_set(root, "version", text);
        json_set(root, "abi", int32_t{QK_ABI_VERSION});
        json_set(root, "build", qk_build_info());
        json_set(root, "cpu_devices", cpus);
        json_set(root, "cuda_devices", gpus);
        json_set(root, "hardware_threads", threads);
        json_print(root);
        return kOk;
    }
    std::printf("version   %s\nbuild     %s\ncpu       %d, %d hardware threads\ncuda      %d\n",
                text, qk_build_info(), cpus, threads, gpus);
    return kOk;
}
