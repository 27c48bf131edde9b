// Layers of the methods of methods.cpp: named, counted and refused.
#include <stdio.h>

#include "methods.hpp"

namespace qk_io {
namespace {

// Of all tensors of a module: X.weight and X.weight_scale, or X_blocks and X_scales.
int64_t bytes_of(const qk_checkpoint *c, const char *name) {
    const size_t length = strlen(name);
    int64_t low = 0, high = c->tensors.count, bytes = 0;
    while (low < high) {  // the first that is not before name
        const int64_t middle = low + (high - low) / 2;
        if (strcmp(c->tensors.items[middle].name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    for (; low < c->tensors.count; ++low) {
        const Tensor &tensor = c->tensors.items[low];
        if (strncmp(tensor.name, name, length) != 0) break;
        // The module's own name too, which ends where strchr finds its terminator.
        if (strchr("._:", tensor.name[length]) != nullptr) bytes += tensor.bytes;
    }
    return bytes;
}

qk_status describe(qk_checkpoint *c, const Module &module, Layer *layer, qk_io_message *message) {
    const Foreign &row = *module.foreign;
    layer->method = row.name;
    layer->bytes = bytes_of(c, module.name);
    const char *what = row.anchor.suffix[0] == 0 ? "experts" : row.anchor.suffix + 1;
    // No sizes: all layers of a model have one sentence.
    return fail(message, QK_ERROR_UNSUPPORTED, "%s (%s; %s is %s), which qk does not load: %s",
                row.name, saying_of(c->config).text, what, module.anchor->dtype_name,
                row.instead != nullptr ? row.instead : kInstead);
}

}  // namespace

extern const Dialect kForeignLayer = {"", nullptr, describe};

}  // namespace qk_io
