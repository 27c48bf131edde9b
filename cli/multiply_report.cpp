#include "multiply_report.hpp"

#include <cstdio>

#include "json.hpp"
#include "layers.hpp"

namespace {

// "1 row", "17 to 24 rows", "2 rows or more"
std::string batch_class(const qk_plan &plan) {
    if (plan.batch_first == plan.batch_last) return plural(plan.batch_first, "row");
    if (plan.batch_last == INT32_MAX) return plural(plan.batch_first, "row") + " or more";
    return std::to_string(plan.batch_first) + " to " + std::to_string(plan.batch_last) + " rows";
}

Json json_plan(const qk_plan &plan) {
    Json json = json_new_object();
    json_set(json, "kernel", plan.kernel);
    json_set(json, "batch_first", plan.batch_first);
    json_set(json, "batch_last", plan.batch_last);
    json_set(json, "workspace_bytes", static_cast<int64_t>(plan.workspace_bytes));
    json_set(json, "reason", plan.reason);
    return json;
}

void print_plan(const qk_plan &plan) {
    std::printf("kernel    %s, %s of workspace\n", plan.kernel,
                human_bytes(double(plan.workspace_bytes)).c_str());
    std::printf("batch     %s (a row of y has the same bits)\n", batch_class(plan).c_str());
    std::printf("faster    %s\n", *plan.reason == 0 ? "nothing is" : plan.reason);
}

}  // namespace

void report_product(const CommonOptions &common, const MultiplyOptions &options,
                    const Chosen &chosen, const Timing &timing, const Product &product,
                    const Error &error) {
    const qk_layer &layer = chosen.layer;
    const double checksum = sum_of_y(product);
    const double rate = double(layer.bytes) / timing.best / 1e9;
    if (common.json) {
        const Json root = json_new_object();
        json_set(root, "layer", layer.name);
        json_set(root, "dialect", qk_dialect_name(layer.dialect));
        json_set(root, "format", format_name(layer.desc.format));
        json_set(root, "shape", json_shape(layer.desc.shape, 2));
        if (chosen.experts != 0) json_set(root, "experts", chosen.experts);
        json_set(root, "rows", options.rows);
        json_set(root, "dtype", options.dtype);
        json_set(root, "device", options.device);
        json_set(root, "mode", options.mode);
        json_set(root, "packed", options.packed);
        json_set(root, "runs", timing.runs);
        json_set(root, "best_seconds", timing.best);
        json_set(root, "median_seconds", timing.median);
        json_set(root, "weight_bytes", layer.bytes);
        json_set(root, "gigabytes_per_second", rate);
        json_set(root, "checksum", checksum);
        json_set(root, "worst_error", error.worst);
        json_set(root, "share_of_bound", error.share);
        json_set(root, "not_finite", error.not_finite);
        if (options.explain) json_set(root, "plan", json_plan(timing.plan));
        json_print(root);
        return;
    }
    std::printf("%s: %s %s%s, y [%lld,%lld] = x [%lld,%lld] . transpose(w), %s on %s%s\n",
                printable(layer.name).c_str(), qk_dialect_name(layer.dialect),
                format_name(layer.desc.format), options.packed ? " repacked" : "",
                static_cast<long long>(options.rows), static_cast<long long>(layer.desc.shape[0]),
                static_cast<long long>(options.rows), static_cast<long long>(layer.desc.shape[1]),
                options.dtype.c_str(), options.device.c_str(),
                options.mode == "exact" ? "" : (", " + options.mode + " mode").c_str());
    if (chosen.experts != 0) {
        std::printf("experts   %lld, of which each row of x takes all\n",
                    static_cast<long long>(chosen.experts));
    }
    std::printf("time      best %.1f us, median %.1f us of %lld runs, %.2f GB/s of weights\n",
                timing.best * 1e6, timing.median * 1e6, static_cast<long long>(timing.runs), rate);
    if (options.explain) print_plan(timing.plan);
    std::printf("checksum  %.9g (sum of y)\n", checksum);
    std::printf("error     %.3g against the product in double, %s its bound\n", error.worst,
                error.share <= 1 ? "within" : "OUTSIDE");
    if (error.not_finite > 0) {
        std::printf("          %s of y NaN or infinite, as in double: the weight has such values\n",
                    plural(error.not_finite, "value").c_str());
    }
}
