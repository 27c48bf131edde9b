#include "base/status.hpp"

#include <stdarg.h>
#include <stdio.h>

namespace qk {

Status fail(ErrorText *error, Status code, const char *format, ...) {
    if (error != nullptr) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(error->text, sizeof(error->text), format, arguments);
        va_end(arguments);
    }
    return code;
}

}  // namespace qk
