#include "message.hpp"

#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace qk_io {
namespace {

// The text quotes names from hostile files and ends up on terminals: no escape sequences, and no
// half of a UTF-8 character where the buffer ended.
void make_printable(char *text) {
    size_t length = strlen(text);
    for (size_t i = 0; i < length; ++i) {
        const unsigned char c = static_cast<unsigned char>(text[i]);
        if (c < 0x20 || c == 0x7f) text[i] = '?';
        // U+0080..U+009F are control characters too: C2 80 .. C2 9F.
        if (c == 0xc2 && static_cast<unsigned char>(text[i + 1]) < 0xa0)
            text[i] = text[i + 1] = '?';
    }
    size_t tail = 0;  // continuation bytes at the end
    while (tail < length && tail < 4 && (text[length - 1 - tail] & 0xc0) == 0x80) ++tail;
    if (tail >= length || tail >= 4) return;
    const unsigned char lead = static_cast<unsigned char>(text[length - 1 - tail]);
    const size_t wanted = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    if (tail < wanted) text[length - 1 - tail] = 0;
}

}  // namespace

qk_status fail(qk_io_message *message, qk_status status, const char *format, ...) {
    if (message == nullptr) return status;
    va_list arguments;
    va_start(arguments, format);
    const int written = vsnprintf(message->text, sizeof message->text, format, arguments);
    va_end(arguments);
    if (written < 0) message->text[0] = 0;
    make_printable(message->text);
    return status;
}

void clear(qk_io_message *message) {
    if (message != nullptr) message->text[0] = 0;
}

}  // namespace qk_io
