// What can be asked of the library without a context.
#include "api/check.hpp"
#include "format/dynamic_table.hpp"

#define QK_TEXT_(x) #x
#define QK_TEXT(x) QK_TEXT_(x)

#if defined(__clang__)
#define QK_COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define QK_COMPILER "gcc " __VERSION__
#else
#define QK_COMPILER "unknown compiler"
#endif

#if defined(__x86_64__)
#define QK_ARCHITECTURE "x86-64"
#elif defined(__aarch64__)
#define QK_ARCHITECTURE "aarch64"
#else
#define QK_ARCHITECTURE "other"
#endif

#if defined(QK_WITH_CUDA) && defined(QK_CUDA_CODE)
#define QK_BACKENDS "cpu cuda (" QK_CUDA_CODE ")"
#elif defined(QK_WITH_CUDA)
#define QK_BACKENDS "cpu cuda"
#else
#define QK_BACKENDS "cpu"
#endif

extern "C" {

const char *qk_status_string(qk_status status) {
    switch (status) {
        case QK_OK: return "ok";
        case QK_ERROR_NULL: return "a required pointer is NULL";
        case QK_ERROR_SHAPE: return "shapes do not fit";
        case QK_ERROR_FORMAT: return "format or layout does not fit";
        case QK_ERROR_STATE: return "the object is not in a state for this call";
        case QK_ERROR_DEVICE_MIX: return "operands live on different devices";
        case QK_ERROR_BUFFER_SIZE: return "buffer has the wrong size";
        case QK_ERROR_ABI: return "header and library disagree";
        case QK_ERROR_ARGUMENT: return "value outside its documented range";
        case QK_ERROR_UNSUPPORTED: return "not supported by this build or device";
        case QK_ERROR_NO_DEVICE: return "no such device";
        case QK_ERROR_MEMORY: return "out of memory";
        case QK_ERROR_WORKSPACE: return "workspace is too small";
        case QK_ERROR_DEVICE_FAULT: return "the device failed";
        case QK_ERROR_CORRUPT: return "stored bytes are damaged or too new";
        case QK_ERROR_FILE: return "file cannot be opened, read or written";
        case QK_ERROR_INTERNAL: return "internal error, please report it";
        default: return "unknown status";
    }
}

uint32_t qk_version(void) {
    return QK_VERSION_MAJOR * 10000 + QK_VERSION_MINOR * 100 + QK_VERSION_PATCH;
}

const char *qk_build_info(void) {
    return "qk " QK_TEXT(QK_VERSION_MAJOR) "." QK_TEXT(QK_VERSION_MINOR) "." QK_TEXT(
        QK_VERSION_PATCH) ", abi " QK_TEXT(QK_ABI_VERSION) ", " QK_ARCHITECTURE
                                                           ", backends: " QK_BACKENDS
                                                           ", " QK_COMPILER;
}

qk_status qk_dynamic_table(float *table) {
    if (table == nullptr) return QK_ERROR_NULL;
    const qk::FloatScope floats(qk::kDefaultFloats);
    qk::make_dynamic_table(table);
    return QK_OK;
}

}  // extern "C"
