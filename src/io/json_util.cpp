#include "json_util.hpp"

#include <cstring>

namespace qk_io {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

void skip_space(JsonMembers *m) {
    while (m->at < m->end && is_space(*m->at)) ++m->at;
}

// at: an opening quote. Returns past the closing one, or NULL.
const char *past_string(const char *at, const char *end) {
    for (++at; at < end; ++at) {
        if (*at == '\\') {
            if (++at == end) return nullptr;
        } else if (*at == '"') {
            return at + 1;
        }
    }
    return nullptr;
}

// Brackets are counted, not matched: jansson checks the piece afterwards.
const char *past_value(const char *at, const char *end, int32_t max_depth, const char **error) {
    int32_t depth = 0;
    while (at < end) {
        const char c = *at;
        if (c == '"') {
            at = past_string(at, end);
            if (at == nullptr) break;
            if (depth == 0) return at;
            continue;
        }
        if (c == '[' || c == '{') {
            if (++depth > max_depth) {
                *error = "it is nested deeper than the limit";
                return nullptr;
            }
        } else if (c == ']' || c == '}') {
            if (depth == 0) return at;
            if (--depth == 0) return at + 1;
        } else if (depth == 0 && (c == ',' || is_space(c))) {
            return at;
        }
        ++at;
    }
    *error = "it ends in the middle of a value";
    return nullptr;
}

int broken(JsonMembers *m, const char *error) {
    m->error = error;
    return -1;
}

int finish(JsonMembers *m) {
    ++m->at;
    skip_space(m);
    return m->at == m->end ? 0 : broken(m, "something follows the closing brace");
}

}  // namespace

bool is_utf8(const char *text) {
    const unsigned char *at = reinterpret_cast<const unsigned char *>(text);
    while (*at != 0) {
        const unsigned char lead = *at++;
        if (lead < 0x80) continue;
        const int tail = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
        if (lead < 0xc2 || lead > 0xf4) return false;
        uint32_t code = lead & (0x3fu >> tail);
        for (int i = 0; i < tail; ++i, ++at) {
            if ((*at & 0xc0) != 0x80) return false;  // the terminating 0 included
            code = code << 6 | (*at & 0x3fu);
        }
        const bool overlong = (tail == 2 && code < 0x800) || (tail == 3 && code < 0x10000);
        if (overlong || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return false;
    }
    return true;
}

JsonMembers json_members(Text text, int32_t max_depth) {
    return JsonMembers{text.data, text.data + text.size, max_depth, false, ""};
}

int json_next(JsonMembers *m, Text *key, Text *value) {
    if (!m->started) {
        if (m->at == m->end || *m->at != '{') return broken(m, "it does not begin with '{'");
        ++m->at;
    }
    skip_space(m);
    if (m->at == m->end) return broken(m, "it ends before its closing brace");
    if (*m->at == '}') return finish(m);
    if (m->started) {
        if (*m->at != ',') return broken(m, "members are not separated by a comma");
        ++m->at;
        skip_space(m);
    }
    m->started = true;
    if (m->at == m->end || *m->at != '"') return broken(m, "a member has no name in quotes");
    const char *past = past_string(m->at, m->end);
    if (past == nullptr) return broken(m, "a name has no closing quote");
    *key = Text{m->at, static_cast<size_t>(past - m->at)};
    m->at = past;
    skip_space(m);
    if (m->at == m->end || *m->at != ':') return broken(m, "a name is not followed by a colon");
    ++m->at;
    skip_space(m);
    // One level is this object's own.
    past = past_value(m->at, m->end, m->max_depth - 1, &m->error);
    if (past == nullptr) return -1;
    *value = Text{m->at, static_cast<size_t>(past - m->at)};
    m->at = past;
    return 1;
}

json_t *json_parse(Text text, int32_t max_depth, int64_t max_values, const char *what,
                   qk_io_message *message, qk_status *status) {
    *status = QK_ERROR_CORRUPT;
    int64_t values = 1;
    int32_t depth = 0;
    for (const char *at = text.data, *end = text.data + text.size; at < end; ++at) {
        if (*at == '"') {
            at = past_string(at, end);
            if (at == nullptr) break;  // jansson says it better
            --at;
            continue;
        }
        if (*at == ',' || *at == '[' || *at == '{') ++values;
        if (*at == ']' || *at == '}') --depth;
        if ((*at == '[' || *at == '{') && ++depth > max_depth) {
            fail(message, *status, "%s is nested deeper than %d levels, the limit", what,
                 static_cast<int>(max_depth));
            return nullptr;
        }
    }
    if (values > max_values) {
        fail(message, *status, "%s has more than %lld values, the limit", what,
             static_cast<long long>(max_values));
        return nullptr;
    }
    json_error_t error;
    json_t *result =
        json_loadb(text.data, text.size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (result != nullptr) return result;
    if (json_error_code(&error) == json_error_out_of_memory) {
        *status = QK_ERROR_MEMORY;
        fail(message, *status, "%s: the JSON parser is out of memory", what);
    } else {
        fail(message, *status, "%s is not valid JSON: %s at byte %d", what, error.text,
             error.position);
    }
    return nullptr;
}

bool json_has_minus(Text text) {
    for (const char *at = text.data, *end = text.data + text.size; at < end; ++at) {
        if (*at == '-') return true;
        if (*at == '"') {
            at = past_string(at, end);
            if (at == nullptr) return false;
            --at;
        }
    }
    return false;
}

}  // namespace qk_io
