// JSON from untrusted files. Objects that can be large (a header, a weight map) are walked one
// member at a time, so that the parser's tree is never larger than one member; every member is
// then parsed by jansson, which also checks the grammar and the UTF-8 inside it.
#pragma once
#include <jansson.h>

#include <string.h>

#include "message.hpp"

namespace qk_io {

struct Text {
    const char *data;
    size_t size;
};

inline bool same(const char *a, const char *b) { return strcmp(a, b) == 0; }
inline bool ends_with(const char *text, const char *suffix) {
    const size_t a = strlen(text), b = strlen(suffix);
    return a >= b && same(text + (a - b), suffix);
}

// Text that a JSON string can hold: UTF-8 without overlong forms and surrogates.
bool is_utf8(const char *text);

struct JsonMembers {
    const char *at, *end;
    int32_t max_depth;
    bool started;
    const char *error;  // static text, once a call returned -1
};

// {text} must be one object; spaces may follow it.
JsonMembers json_members(Text text, int32_t max_depth);
// 1: a member, as it is written (key with its quotes); 0: the end; -1: bad grammar.
int json_next(JsonMembers *members, Text *key, Text *value);

// One JSON value of at most max_values values; NULL with a sentence in message (its status in
// *status: corrupt, or out of memory). `what` begins the sentence.
json_t *json_parse(Text text, int32_t max_depth, int64_t max_values, const char *what,
                   qk_io_message *message, qk_status *status);

// A '-' outside strings: jansson reads -0 as the integer 0, the format does not allow it.
bool json_has_minus(Text text);

}  // namespace qk_io
