/* Every operation of qk.h on small data, by way of every kernel that a context's options let pick.
 * C without a C++ runtime, so that the same program runs with musl. */
#ifndef QK_TEST_STACK_OPERATIONS_H
#define QK_TEST_STACK_OPERATIONS_H
#include <stddef.h>
#include <stdint.h>

#include "qk.h"

/* Called around each call of qk, with its name; may be NULL. */
typedef struct Watch {
    void (*before)(void);
    void (*after)(const char *call);
} Watch;

/* Contexts by `options` are made, used and destroyed; returns a digest of all outputs. */
uint64_t every_operation(const qk_context_options *options, const Watch *watch);

/* Ends the program with a line. */
__attribute__((noreturn)) void fail(const char *what, const char *why);

#endif
