// --json: jansson values that free themselves, and one way to print them.
#pragma once
#include <jansson.h>

#include <memory>
#include <string>

struct JsonRelease {
    void operator()(json_t *value) const { json_decref(value); }
};
using Json = std::unique_ptr<json_t, JsonRelease>;

Json json_new_object();
Json json_new_array();
// Bytes that are not UTF-8 (a path may have them) become '?'.
void json_set(const Json &object, const char *key, const std::string &value);
void json_set(const Json &object, const char *key, const char *value);
void json_set(const Json &object, const char *key, int64_t value);
void json_set(const Json &object, const char *key, int32_t value);
void json_set(const Json &object, const char *key, bool value);
void json_set(const Json &object, const char *key, double value);  // null when not finite
void json_set(const Json &object, const char *key, Json value);
void json_append(const Json &array, Json value);
Json json_shape(const int64_t *shape, int32_t rank);
// To stdout, with a newline.
void json_print(const Json &value);
