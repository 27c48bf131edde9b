// Included first in every C++ file of a musl build: libstdc++'s headers, configured for glibc, take
// from it what musl has not. qk uses those alone that need no C++ runtime.
#pragma once
#define __GLIBC_PREREQ(major, minor) 0
#define __locale_t locale_t
#include <bits/c++config.h>
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT
