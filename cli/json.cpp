#include "json.hpp"

#include <cmath>
#include <cstdio>
#include <new>

namespace {

void set(const Json &object, const char *key, json_t *value) {
    if (json_object_set_new(object.get(), key, value) != 0) throw std::bad_alloc();
}

}  // namespace

Json json_new_object() { return Json(json_object()); }
Json json_new_array() { return Json(json_array()); }

void json_set(const Json &object, const char *key, const std::string &value) {
    json_t *text = json_stringn(value.data(), value.size());
    if (text == nullptr) {
        std::string ascii = value;
        for (char &c : ascii) {
            if (static_cast<unsigned char>(c) >= 0x80) c = '?';
        }
        text = json_stringn(ascii.data(), ascii.size());
    }
    set(object, key, text);
}
void json_set(const Json &object, const char *key, const char *value) {
    json_set(object, key, std::string(value));
}
void json_set(const Json &object, const char *key, int64_t value) {
    set(object, key, json_integer(value));
}
void json_set(const Json &object, const char *key, int32_t value) {
    set(object, key, json_integer(value));
}
void json_set(const Json &object, const char *key, bool value) {
    set(object, key, json_boolean(value));
}
void json_set(const Json &object, const char *key, double value) {
    set(object, key, std::isfinite(value) ? json_real(value) : json_null());
}
void json_set(const Json &object, const char *key, Json value) {
    set(object, key, value.release());
}
void json_append(const Json &array, Json value) {
    if (json_array_append_new(array.get(), value.release()) != 0) throw std::bad_alloc();
}

Json json_shape(const int64_t *shape, int32_t rank) {
    Json array = json_new_array();
    for (int32_t i = 0; i < rank; ++i) json_append(array, Json(json_integer(shape[i])));
    return array;
}

void json_print(const Json &value) {
    // ASCII alone: names in a file may hold what a terminal would obey.
    json_dumpf(value.get(), stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(12));
    std::putchar('\n');
}
