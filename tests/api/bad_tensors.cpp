// Wrapping, transfers, DLPack and descriptions x every class of bad argument.
#include <gtest/gtest.h>

#include "api/dlpack_spec.hpp"
#include "api/world.hpp"

namespace api {
namespace {

const qk_tensor_desc kNf4 = weight_desc(QK_FORMAT_NF4, QK_LAYOUT_ROW, 16, 32);

TEST(BadArguments, WrapPlanes) {
    std::vector<Cell> cells;
    // `change` gets {data, scale} of an nf4 tensor and the count.
    const auto add = [&](std::string what, qk_status expected, const char *word, auto change) {
        cells.push_back({std::move(what), expected, word, [=](World &o) {
                             void *planes[QK_PLANE_COUNT] = {o.plane(o.nf4, QK_PLANE_DATA),
                                                             o.plane(o.nf4, QK_PLANE_SCALE)};
                             int32_t count = QK_PLANE_COUNT;
                             change(planes, &count);
                             return qk_tensor_wrap(o.context, &kNf4, planes, count,
                                                   &o.outputs.tensor);
                         }});
    };
    for (const int32_t value : {0, -1, QK_PLANE_COUNT + 1, INT32_MIN, INT32_MAX}) {
        add("plane_count", QK_ERROR_ARGUMENT, "plane_count",
            [=](void **, int32_t *count) { *count = value; });
    }
    add("no data", QK_ERROR_NULL, "planes[0]", [](void **p, int32_t *) { p[0] = nullptr; });
    add("no scale", QK_ERROR_NULL, "planes[1]", [](void **p, int32_t *) { p[1] = nullptr; });
    add("scale past the count", QK_ERROR_NULL, "planes[1]",
        [](void **, int32_t *count) { *count = 1; });
    static char extra;
    for (const qk_plane plane : {QK_PLANE_ZERO, QK_PLANE_SCALE2, QK_PLANE_SCALE_CODE,
                                 QK_PLANE_SCALE_BIAS, QK_PLANE_TABLE}) {
        add("superfluous plane", QK_ERROR_FORMAT, "planes[",
            [=](void **p, int32_t *) { p[plane] = &extra; });
    }
    const auto call = [&](std::string what, qk_status expected, const char *word,
                          const std::function<qk_status(World &, void *const *)> &run) {
        cells.push_back({std::move(what), expected, word,
                         [=](World &o) {
            void *planes[2] = {o.plane(o.nf4, QK_PLANE_DATA), o.plane(o.nf4, QK_PLANE_SCALE)};
            return run(o, planes);
                         }});
    };
    call("context NULL", QK_ERROR_NULL, "", [](World &o, void *const *p) {
        return qk_tensor_wrap(nullptr, &kNf4, p, 2, &o.outputs.tensor);
    });
    call("context destroyed", QK_ERROR_STATE, "", [](World &o, void *const *p) {
        return qk_tensor_wrap(o.destroyed_context(), &kNf4, p, 2, &o.outputs.tensor);
    });
    call("desc NULL", QK_ERROR_NULL, "desc", [](World &o, void *const *p) {
        return qk_tensor_wrap(o.context, nullptr, p, 2, &o.outputs.tensor);
    });
    call("planes NULL", QK_ERROR_NULL, "planes", [](World &o, void *const *) {
        return qk_tensor_wrap(o.context, &kNf4, nullptr, 2, &o.outputs.tensor);
    });
    call("out NULL", QK_ERROR_NULL, "out",
         [](World &o, void *const *p) { return qk_tensor_wrap(o.context, &kNf4, p, 2, nullptr); });
    run_cells(cells, [](World &o) {
        qk_tensor *tensor = nullptr;
        void *planes[2] = {o.plane(o.nf4, QK_PLANE_DATA), o.plane(o.nf4, QK_PLANE_SCALE)};
        const qk_status status = qk_tensor_wrap(o.context, &kNf4, planes, 2, &tensor);
        qk_tensor_destroy(tensor);
        return status;
    });
}

using Transfer = std::function<qk_status(qk_context *, qk_tensor *, qk_plane, void *, size_t)>;

void add_transfer_cells(std::vector<Cell> *cells, const Transfer &transfer) {
    constexpr size_t kBytes = 16 * 32 / 2;  // of nf4's data
    const auto add = [&](const char *what, qk_status expected, const char *word, auto run) {
        cells->push_back({what, expected, word, run});
    };
    add("context NULL", QK_ERROR_NULL, "",
        [=](World &o) { return transfer(nullptr, o.nf4, QK_PLANE_DATA, o.outputs.host, kBytes); });
    add("context destroyed", QK_ERROR_STATE, "", [=](World &o) {
        return transfer(o.destroyed_context(), o.nf4, QK_PLANE_DATA, o.outputs.host, kBytes);
    });
    add("tensor NULL", QK_ERROR_NULL, "tensor", [=](World &o) {
        return transfer(o.context, nullptr, QK_PLANE_DATA, o.outputs.host, kBytes);
    });
    add("tensor destroyed", QK_ERROR_STATE, "tensor", [=](World &o) {
        return transfer(o.context, o.destroyed_tensor(), QK_PLANE_DATA, o.outputs.host, kBytes);
    });
    add("tensor not a handle", QK_ERROR_STATE, "tensor", [=](World &o) {
        return transfer(o.context, o.stranger_tensor(), QK_PLANE_DATA, o.outputs.host, kBytes);
    });
    add("host NULL", QK_ERROR_NULL, "host",
        [=](World &o) { return transfer(o.context, o.nf4, QK_PLANE_DATA, nullptr, kBytes); });
    add("host is the plane", QK_ERROR_STATE, "host", [=](World &o) {
        return transfer(o.context, o.nf4, QK_PLANE_DATA, o.plane(o.nf4, QK_PLANE_DATA), kBytes);
    });
    for (const qk_plane plane : {-1, QK_PLANE_COUNT + 0, INT32_MIN, INT32_MAX}) {
        add("plane", QK_ERROR_ARGUMENT, "plane",
            [=](World &o) { return transfer(o.context, o.nf4, plane, o.outputs.host, kBytes); });
    }
    for (const qk_plane plane : {QK_PLANE_ZERO, QK_PLANE_SCALE2, QK_PLANE_SCALE_CODE,
                                 QK_PLANE_SCALE_BIAS, QK_PLANE_TABLE}) {
        add("plane it does not have", QK_ERROR_FORMAT, "plane",
            [=](World &o) { return transfer(o.context, o.nf4, plane, o.outputs.host, 0); });
    }
    for (const size_t bytes : {size_t{0}, size_t{1}, kBytes - 1, kBytes + 1, 2 * kBytes,
                               kBytes + (size_t{1} << 32), SIZE_MAX, SIZE_MAX / 2 + 1}) {
        add("bytes", QK_ERROR_BUFFER_SIZE, "bytes", [=](World &o) {
            return transfer(o.context, o.nf4, QK_PLANE_DATA, o.outputs.host, bytes);
        });
    }
}

TEST(BadArguments, Upload) {
    std::vector<Cell> cells;
    add_transfer_cells(
        &cells, [](qk_context *context, qk_tensor *tensor, qk_plane plane, void *host,
                   size_t bytes) { return qk_tensor_upload(context, tensor, plane, host, bytes); });
    cells.push_back({"read-only", QK_ERROR_STATE, "tensor", [](World &o) {
                         return qk_tensor_upload(o.context, o.read_only_nf4, QK_PLANE_DATA,
                                                 o.outputs.host, 16 * 32 / 2);
                     }});
    run_cells(cells, [](World &o) {
        return qk_tensor_upload(o.context, o.nf4, QK_PLANE_DATA, o.outputs.host, 16 * 32 / 2);
    });
}

TEST(BadArguments, Download) {
    std::vector<Cell> cells;
    add_transfer_cells(&cells, [](qk_context *context, qk_tensor *tensor, qk_plane plane,
                                  void *host, size_t bytes) {
        return qk_tensor_download(context, tensor, plane, host, bytes);
    });
    run_cells(cells, [](World &o) {
        return qk_tensor_download(o.context, o.read_only_nf4, QK_PLANE_DATA, o.outputs.host,
                                  16 * 32 / 2);
    });
}

TEST(BadArguments, Describe) {
    std::vector<Cell> cells;
    const auto add = [&](const char *what, qk_status expected, auto run) {
        cells.push_back({what, expected, "", run});
    };
    add("tensor NULL", QK_ERROR_NULL,
        [](World &o) { return qk_tensor_describe(nullptr, &o.outputs.desc); });
    add("desc NULL", QK_ERROR_NULL, [](World &o) { return qk_tensor_describe(o.w, nullptr); });
    add("destroyed", QK_ERROR_STATE,
        [](World &o) { return qk_tensor_describe(o.destroyed_tensor(), &o.outputs.desc); });
    add("not a handle", QK_ERROR_STATE,
        [](World &o) { return qk_tensor_describe(o.stranger_tensor(), &o.outputs.desc); });
    add("a context", QK_ERROR_STATE, [](World &o) {
        return qk_tensor_describe(reinterpret_cast<qk_tensor *>(o.context), &o.outputs.desc);
    });
    for (const uint32_t size : {0u, 3u, 4097u, UINT32_MAX}) {
        add("struct_size", QK_ERROR_ABI, [=](World &o) {
            o.outputs.desc.struct_size = size;
            const qk_status status = qk_tensor_describe(o.w, &o.outputs.desc);
            EXPECT_EQ(o.outputs.desc.struct_size, size);
            o.outputs.desc.struct_size = sizeof(qk_tensor_desc);
            return status;
        });
    }
    run_cells(cells, [](World &o) {
        qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
        return qk_tensor_describe(o.nf4, &desc);
    });
}

TEST(BadArguments, ToDlpack) {
    std::vector<Cell> cells;
    const auto add = [&](const char *what, qk_status expected, const char *word, auto run) {
        cells.push_back({what, expected, word, run});
    };
    add("tensor NULL", QK_ERROR_NULL, "",
        [](World &o) { return qk_tensor_to_dlpack(nullptr, QK_PLANE_DATA, &o.outputs.managed); });
    add("tensor destroyed", QK_ERROR_STATE, "", [](World &o) {
        return qk_tensor_to_dlpack(o.destroyed_tensor(), QK_PLANE_DATA, &o.outputs.managed);
    });
    add("tensor not a handle", QK_ERROR_STATE, "", [](World &o) {
        return qk_tensor_to_dlpack(o.stranger_tensor(), QK_PLANE_DATA, &o.outputs.managed);
    });
    add("out NULL", QK_ERROR_NULL, "out",
        [](World &o) { return qk_tensor_to_dlpack(o.w, QK_PLANE_DATA, nullptr); });
    for (const qk_plane plane : {-1, QK_PLANE_COUNT + 0, INT32_MIN, INT32_MAX}) {
        add("plane", QK_ERROR_ARGUMENT, "plane",
            [=](World &o) { return qk_tensor_to_dlpack(o.nf4, plane, &o.outputs.managed); });
    }
    for (const qk_plane plane : {QK_PLANE_ZERO, QK_PLANE_SCALE2, QK_PLANE_TABLE}) {
        add("plane it does not have", QK_ERROR_FORMAT, "plane",
            [=](World &o) { return qk_tensor_to_dlpack(o.nf4, plane, &o.outputs.managed); });
    }
    run_cells(cells, [](World &o) {
        DLManagedTensorVersioned *managed = nullptr;
        const qk_status status = qk_tensor_to_dlpack(o.w, QK_PLANE_DATA, &managed);
        if (managed != nullptr) managed->deleter(managed);
        return status;
    });
}

TEST(BadArguments, FromDlpack) {
    std::vector<Cell> cells;
    const auto add = [&](const char *what, qk_status expected, auto change) {
        cells.push_back({what, expected, "managed", [=](World &o) {
                             DlSource source;
                             change(source, source.managed.dl_tensor);
                             const qk_status status = qk_tensor_from_dlpack(
                                 o.context, &source.managed, &o.outputs.tensor);
                             EXPECT_EQ(source.deleted, 0) << "on failure it stays the caller's";
                             return status;
                         }});
    };
    for (const uint32_t major : {0u, 2u, UINT32_MAX}) {
        add("version", QK_ERROR_ABI, [=](DlSource &s, auto &) { s.managed.version.major = major; });
    }
    for (const int32_t type : {0, 2, 3, 10, 13, 99, -1, INT32_MIN, INT32_MAX}) {
        add("device", QK_ERROR_DEVICE_MIX,
            [=](DlSource &, auto &t) { t.device.device_type = type; });
    }
    for (const int32_t id : {1, -1, INT32_MIN, INT32_MAX}) {
        add("device_id", QK_ERROR_DEVICE_MIX,
            [=](DlSource &, auto &t) { t.device.device_id = id; });
    }
    for (const int32_t ndim : {0, 5, -1, INT32_MIN, INT32_MAX}) {
        add("ndim", QK_ERROR_SHAPE, [=](DlSource &, auto &t) { t.ndim = ndim; });
    }
    add("shape NULL", QK_ERROR_NULL, [](DlSource &, auto &t) { t.shape = nullptr; });
    add("data NULL", QK_ERROR_NULL, [](DlSource &, auto &t) { t.data = nullptr; });
    for (const uint16_t lanes : {0, 2, 0xffff}) {
        add("lanes", QK_ERROR_FORMAT, [=](DlSource &, auto &t) { t.dtype.lanes = lanes; });
    }
    for (const uint8_t bits : {0, 1, 4, 8, 64, 255}) {
        add("bits", QK_ERROR_FORMAT, [=](DlSource &, auto &t) { t.dtype.bits = bits; });
    }
    for (const uint8_t code : {kDlUint, uint8_t{3}, kDlBfloat, uint8_t{255}}) {
        add("code", QK_ERROR_FORMAT, [=](DlSource &, auto &t) { t.dtype.code = code; });
    }
    for (const int64_t stride : {int64_t{31}, int64_t{0}, int64_t{-32}, INT64_MIN, INT64_MAX}) {
        add("stride[0]", QK_ERROR_SHAPE, [=](DlSource &s, auto &) { s.strides[0] = stride; });
    }
    add("column-major", QK_ERROR_SHAPE,
        [](DlSource &s, auto &) { s.strides[0] = 1, s.strides[1] = 16; });
    const auto add_shape = [&](int64_t size, int i, bool strided) {
        cells.push_back({"shape", QK_ERROR_SHAPE, "", [=](World &o) {
                             DlSource source;
                             source.shape[i] = size;
                             if (!strided) source.managed.dl_tensor.strides = nullptr;
                             const qk_status status = qk_tensor_from_dlpack(
                                 o.context, &source.managed, &o.outputs.tensor);
                             EXPECT_EQ(source.deleted, 0);
                             EXPECT_NE(*qk_context_error(o.context), 0);
                             return status;
                         }});
    };
    for (const int64_t size : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
        for (const int i : {0, 1}) {
            if (size == 0 && i == 0) continue;  // no rows are fine
            add_shape(size, i, true);
            add_shape(size, i, false);
        }
    }
    cells.push_back({"context NULL", QK_ERROR_NULL, "", [](World &o) {
                         DlSource source;
                         return qk_tensor_from_dlpack(nullptr, &source.managed, &o.outputs.tensor);
                     }});
    cells.push_back({"managed NULL", QK_ERROR_NULL, "managed", [](World &o) {
                         return qk_tensor_from_dlpack(o.context, nullptr, &o.outputs.tensor);
                     }});
    cells.push_back({"out NULL", QK_ERROR_NULL, "out", [](World &o) {
                         DlSource source;
                         return qk_tensor_from_dlpack(o.context, &source.managed, nullptr);
                     }});
    run_cells(cells, [](World &o) {
        DlSource source;
        qk_tensor *tensor = nullptr;
        const qk_status status = qk_tensor_from_dlpack(o.context, &source.managed, &tensor);
        qk_tensor_destroy(tensor);
        EXPECT_EQ(source.deleted, 1);
        return status;
    });
}

}  // namespace
}  // namespace api
