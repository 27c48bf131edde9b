// How every entry point starts: a live context, and no required pointer NULL.
#pragma once
#include "object/context.hpp"

#define QK_API_CONTEXT(context) QK_TRY(::qk::check_context(context))
#define QK_API_POINTER(context, pointer) \
    QK_CHECK((pointer) != nullptr, &(context)->error, NULL, #pointer ": is NULL")
