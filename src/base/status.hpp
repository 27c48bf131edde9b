// Status codes with one exact sentence. A failing function fills the sentence and returns the code.
#pragma once
#include "qk.h"

namespace qk {

using Status = qk_status;

struct ErrorText {
    char text[384];
};

// Formats the sentence into `error` (which may be null) and returns `code`.
Status fail(ErrorText *error, Status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

}  // namespace qk

// The caller's mistakes. Ours are QK_ASSERT, which never guards against input.
#define QK_CHECK(condition, error, code, ...)                                     \
    do {                                                                          \
        if (!(condition)) return ::qk::fail(error, QK_ERROR_##code, __VA_ARGS__); \
    } while (0)

#define QK_TRY(expression)                         \
    do {                                           \
        const ::qk::Status status_ = (expression); \
        if (status_ != QK_OK) return status_;      \
    } while (0)

#if defined(NDEBUG)
#define QK_ASSERT(condition) ((void)0)
#else
#define QK_ASSERT(condition) ((condition) ? (void)0 : __builtin_trap())
#endif
