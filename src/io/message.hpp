// One sentence about a failure, put where the caller asked for it.
#pragma once
#include "qk_io.h"

namespace qk_io {

// Formats into message->text (when there is one) and returns status, so that a check reads
// `return fail(message, QK_ERROR_CORRUPT, "...")`.
__attribute__((format(printf, 3, 4))) qk_status fail(qk_io_message *message, qk_status status,
                                                     const char *format, ...);
void clear(qk_io_message *message);

}  // namespace qk_io

// Hands a failure on unchanged.
#define QK_IO_TRY(expression)                                   \
    do {                                                        \
        const qk_status qk_io_try_status = (expression);        \
        if (qk_io_try_status != QK_OK) return qk_io_try_status; \
    } while (0)
