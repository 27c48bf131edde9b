// Names of kernels in the table of products (select.hpp), for builds that lack some.
#pragma once

// Kernels that a build does not have are null: their rows are of other processors.
#if defined(QK_CPU_X86)
#define QK_ON_X86(kernel) &kernel
#else
#define QK_ON_X86(kernel) nullptr
#endif
#if defined(QK_CPU_AVX_VNNI)
#define QK_ON_AVX_VNNI(kernel) &kernel
#else
#define QK_ON_AVX_VNNI(kernel) nullptr
#endif
#if defined(QK_CPU_ARM)
#define QK_ON_ARM(kernel) &kernel
#else
#define QK_ON_ARM(kernel) nullptr
#endif
#if defined(QK_CPU_ARM64)
#define QK_ON_ARM64(kernel) &kernel
#else
#define QK_ON_ARM64(kernel) nullptr
#endif
#if defined(QK_CPU_RVV)
#define QK_ON_RVV(kernel) &kernel
#else
#define QK_ON_RVV(kernel) nullptr
#endif
