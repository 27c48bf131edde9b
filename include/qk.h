/* qk.h - 4-bit weights and shift-only GRUs behind one C interface.
 *
 * This header is the whole promise: what is not declared here is not API. Seven rules hold for
 * every function below; a function's own comment only says what differs.
 *
 *   Failure   Anything that can fail returns qk_status. qk never aborts, throws or prints, and a
 *             call refused with 1xx, 2xx or 3xx has changed nothing and may be repeated.
 *             qk_context_error() explains it where the call has a live context.
 *   Handles   qk_X_create fills *out, and only on QK_OK; qk_X_destroy(NULL) is a no-op. Children
 *             keep their context alive, so destroy in any order (a garbage collector will).
 *   Threads   One context serves one thread at a time. Tensors that nobody writes and frozen GRUs
 *             may be read through any number of contexts of the same device at once.
 *   Streams   Device work is queued on the context's stream in call order and the call returns
 *             before it is done. Only functions marked [waits] block.
 *   Memory    Only [allocates] functions allocate; the rest can sit in a real-time loop or a
 *             captured CUDA graph. Counts are elements, *_bytes are bytes, arrays are row-major.
 *             Planes may lie at any address; nothing outside their exact bytes is read or written.
 *   Process   No call changes signal handlers, the environment, the current device or the caller's
 *             floating-point mode and flags, and no result depends on that mode. qk's own threads
 *             block every signal except those that their own faults raise. A forked child may use
 *             and destroy what it inherits and gets threads of its own; a call that another thread
 *             was in at the fork leaves its outputs undefined there. On a CUDA context every call
 *             in the child returns 401, and destroying it frees host memory only.
 *   Callbacks An executor, allocator or trace that throws or jumps out of a call abandons it: the
 *             outputs are undefined and its memory leaks, but the context stays usable.
 */
#ifndef QK_H
#define QK_H
/* clang-format off */
#include <stddef.h>
#include <stdint.h>

#define QK_VERSION_MAJOR 0
#define QK_VERSION_MINOR 1
#define QK_VERSION_PATCH 0
#define QK_ABI_VERSION   1 /* changes only when an existing binary would break */

#ifndef QK_API
#define QK_API /* a shared build defines it as the export attribute */
#endif
#ifdef __cplusplus
extern "C" {
#endif

typedef struct qk_context qk_context; /* one device, one stream, one workspace */
typedef struct qk_tensor  qk_tensor;  /* shape + format + layout + storage on one device */
typedef struct qk_gru qk_gru;             /* a GRU layer's weights; read-only once frozen */
typedef struct qk_gru_state qk_gru_state; /* the hidden state of one batch of sequences */

/* Fixed-width codes, not C enums: the width of an enum is the compiler's choice (1 byte on
 * arm-none-eabi). Values are never reused; treat an unknown value as its hundred. */
typedef int32_t qk_status;
enum {
    QK_OK = 0,
    QK_ERROR_NULL         = 101, /* 1xx: the call is wrong; fix the caller */
    QK_ERROR_SHAPE        = 102,
    QK_ERROR_FORMAT       = 103,
    QK_ERROR_STATE        = 104, /* a destroyed handle, a read-only output, overlapping operands */
    QK_ERROR_DEVICE_MIX   = 105, /* operands live on different devices */
    QK_ERROR_BUFFER_SIZE  = 106,
    QK_ERROR_ABI          = 107, /* header and library disagree */
    QK_ERROR_ARGUMENT     = 108, /* a value outside its documented range */
    QK_ERROR_UNSUPPORTED  = 201, /* 2xx: valid, but not in this build or on this device */
    QK_ERROR_NO_DEVICE    = 202,
    QK_ERROR_MEMORY       = 301, /* 3xx: out of something */
    QK_ERROR_WORKSPACE    = 302,
    QK_ERROR_DEVICE_FAULT = 401, /* 4xx: device or executor failed: outputs undefined, destroy it */
    QK_ERROR_CORRUPT      = 501, /* 5xx: stored bytes are damaged or from a newer version */
    QK_ERROR_FILE         = 502, /* a file could not be opened, read or written */
    QK_ERROR_INTERNAL     = 901  /* 9xx: a bug in qk; please report it */
};

QK_API const char *qk_status_string(qk_status status); /* static text, never NULL */
QK_API uint32_t qk_version(void);       /* major*10000 + minor*100 + patch of the linked library */
QK_API const char *qk_build_info(void); /* backends, architectures, compiler; for bug reports */

/* ---- context ------------------------------------------------------------------------------ */

typedef int32_t qk_device;
enum { QK_DEVICE_CPU = 1, QK_DEVICE_CUDA = 2 }; /* numbered as DLPack's DLDeviceType */

typedef struct qk_allocator { /* host memory; allocate returns NULL on failure, aligned as asked */
    void *(*allocate)(void *user, size_t size_bytes, size_t align_bytes);
    void (*release)(void *user, void *pointer);
    void *user;
} qk_allocator;

typedef struct qk_executor { /* the caller's threads (64 KiB of stack); return when all is done */
    void (*parallel_for)(void *user, int32_t task_count,
                         void (*task)(void *argument, int32_t index), void *argument);
    void *user;
    int32_t concurrency; /* how many tasks can run at once, >= 1; any order is fine */
} qk_executor;           /* A task that is called twice runs once. If one is never called, qk's call
                            returns 401 and says how many were. None may be called after
                            parallel_for has returned, thrown or jumped out. */

/* qk_linear on the CPU computes exactly what it says, unless its context allows one of these. What
 * they do to the bit, and how far off they can be: docs/formats.md, "Modes of qk_linear". */
#define QK_CONTEXT_BF16_PRODUCTS    1u /* x and 4-bit w rounded to bf16; asks for workspace */
#define QK_CONTEXT_INT8_ACTIVATIONS 2u /* x in blocks of 8-bit integers; asks for workspace */

/* Instruction sets: those that options allow and the processor has, each with the one it extends.
 * Exact results have the same bits on all (modes: docs/formats.md); a cap avoids a kernel's bug. */
#define QK_ISA_GENERIC     0x1u     /* portable code; always used */
#define QK_ISA_AVX2        0x2u     /* AVX2, FMA, F16C */
#define QK_ISA_AVX512      0x4u     /* F, BW, DQ, VL; extends AVX2 */
#define QK_ISA_AVX512_VBMI 0x8u     /* this and the next two extend AVX512 */
#define QK_ISA_AVX512_VNNI 0x10u
#define QK_ISA_AVX512_BF16 0x20u
#define QK_ISA_AMX_INT8    0x40u    /* extends AVX512; used in int8 mode, where Linux permits it */
#define QK_ISA_AMX_BF16    0x80u    /* the same in bf16 mode, beside AVX512_BF16 */
#define QK_ISA_AVX_VNNI    0x100u   /* extends AVX2; used in int8 mode */
#define QK_ISA_NEON        0x10000u /* aarch64's base */
#define QK_ISA_DOTPROD     0x20000u /* extends NEON */
#define QK_ISA_I8MM        0x40000u /* extends DOTPROD */
#define QK_ISA_RVV         0x1000000u /* riscv64: V 1.0 */

typedef struct qk_trace {   /* a kernel that has run, or on CUDA is queued */
    uint32_t struct_size;   /* that qk knows; fields are only ever appended */
    qk_status status;
    const char *operation;  /* static text: "multiply", "quantize", "repack", "gru_run", ... */
    const char *kernel;     /* static text; not API: names change */
    int64_t shape[4];       /* multiply: m, n, k; gru_run: t, b, c, h; else rows, columns */
    double seconds;         /* of the call on the host */
} qk_trace;
typedef struct qk_context_options {
    uint32_t struct_size;          /* sizeof(qk_context_options); fields are only ever appended */
    uint32_t abi_version;          /* QK_ABI_VERSION */
    qk_device device;
    int32_t device_index;          /* 0 .. qk_device_count() - 1 */
    int32_t thread_count;          /* CPU without executor: 0 all cores, 1 the caller's, <= 1024 */
    uint32_t flags;                /* 0 or one QK_CONTEXT_... (CPU) */
    void *stream;                  /* cudaStream_t, borrowed; NULL: the default; CPU: not used */
    size_t workspace_bytes;        /* scratch allocated once at creation */
    const qk_allocator *allocator; /* copied; NULL: libc's; CPU: to 192 KiB * (threads + 2) */
    const qk_executor *executor;   /* copied; NULL: qk's own threads, owned by the context */
    uint32_t instruction_sets;     /* CPU: QK_ISA_... that may be used; 0: all there are */
    uint32_t reserved;             /* 0 */
    void (*trace)(void *user, const qk_trace *call); /* NULL: none; in the caller's thread */
    void *trace_user;
} qk_context_options;
#define QK_CONTEXT_OPTIONS_INIT {sizeof(qk_context_options), QK_ABI_VERSION, QK_DEVICE_CPU, 0, 0, \
                                 0, NULL, 0, NULL, NULL, 0, 0, NULL, NULL}

QK_API qk_status qk_device_count(qk_device device, int32_t *count); /* 0 where not built in */
/* options may be NULL (CPU, defaults). [allocates] */
QK_API qk_status qk_context_create(const qk_context_options *options, qk_context **out);
QK_API void qk_context_destroy(qk_context *context);
QK_API qk_status qk_context_set_stream(qk_context *context, void *stream);
QK_API qk_status qk_context_synchronize(qk_context *context); /* reports late faults. [waits] */
/* Why the last failing call on this context failed: argument, value, what was accepted; "" if none.
 * Valid until its next call. Not kept by thread: green threads (Go) change theirs between calls. */
QK_API const char *qk_context_error(const qk_context *context);

/* What a context really has. info->struct_size says how much the caller can take. */
typedef struct qk_context_info {
    uint32_t struct_size;      /* sizeof(qk_context_info); fields are only ever appended */
    qk_device device;
    int32_t device_index;
    int32_t thread_count;      /* the caller's included; fewer than asked for if the system gave no
                                  more; with an executor its concurrency; CUDA: 1 */
    uint32_t flags;            /* QK_CONTEXT_... */
    uint32_t instruction_sets; /* QK_ISA_... that kernels are chosen from; CUDA: 0 */
    size_t workspace_bytes;
} qk_context_info;
#define QK_CONTEXT_INFO_INIT {sizeof(qk_context_info), 0, 0, 0, 0, 0, 0}
QK_API qk_status qk_context_describe(const qk_context *context, qk_context_info *info);

/* ---- tensors ------------------------------------------------------------------------------ */

typedef int32_t qk_format; /* what a stored code means; every bit is in docs/formats.md */
enum {
    QK_FORMAT_F32 = 1, QK_FORMAT_F16 = 2, QK_FORMAT_BF16 = 3,
    QK_FORMAT_I8 = 4, QK_FORMAT_I16 = 5, QK_FORMAT_I32 = 6, /* stored and moved, no arithmetic */
    QK_FORMAT_U4_AFFINE = 16, /* (code - zero) * scale, code and zero in 0..15: AWQ, GPTQ */
    QK_FORMAT_NF4       = 17, /* nf4[code] * scale, scale = absmax of the group: QLoRA */
    QK_FORMAT_FP4_BNB   = 18, /* bitsandbytes' own 4-bit table; not E2M1 */
    QK_FORMAT_FP4_E2M1  = 19, /* OCP E2M1: 0 .5 1 1.5 2 3 4 6 and their negatives */
    QK_FORMAT_LUT4      = 20, /* table[code] * scale, 16 entries that come with the tensor */
    QK_FORMAT_IQ4_NL    = 21, /* ggml's table of 16 integers, -127..113 */
    QK_FORMAT_FP4_GGML  = 22, /* ggml's E2M1: doubled, code 8 is 0; with E8M0 scales that are
                                 2^(code - 128), at 255 too */
    QK_FORMAT_LUT8      = 24, /* table[code] * scale, 256 entries: bitsandbytes 8-bit blockwise */
    QK_FORMAT_S8        = 25, /* code * scale, code in -128..127 */
    QK_FORMAT_E4M3      = 26, /* OCP FP8 E4M3, no infinities: codes, or the scales of NVFP4 */
    QK_FORMAT_E8M0      = 27  /* scales only, of microscaling: 2^(code - 127), 255 is NaN */
};
typedef int32_t qk_layout; /* where a code is stored; independent of what it means */
enum {
    QK_LAYOUT_ROW      = 0, /* each row ceil(k/2) bytes, even k in the low nibble; dense and
                               8-bit codes: [n,k] */
    QK_LAYOUT_ROW_HIGH = 1, /* one run of n*k codes, even ones in the high nibble: bitsandbytes */
    QK_LAYOUT_AWQ_GEMM = 2, /* [k,n/8] 32-bit words, nibble i holds n = 0,2,4,6,1,3,5,7 */
    QK_LAYOUT_AWQ_GEMV = 3, /* [n,k/8] 32-bit words, nibble i holds k = 0..7 */
    QK_LAYOUT_GPTQ     = 4, /* [k/8,n] 32-bit words, nibble i holds k = 0..7; zeros as they are */
    QK_LAYOUT_GPTQ_V1  = 5, /* as GPTQ, zeros stored minus one (mod 16) */
    QK_LAYOUT_WORD     = 6, /* [n,ceil(k/8)] 32-bit words, nibble i holds k = 0..7, zeros packed
                               along n: compressed-tensors */
    /* GGUF: 32 + ggml's number of a type. A row is whole records, which hold codes, scales and
     * minima: DATA is the only plane. Format, scales, groups and flags are the type's. */
    QK_LAYOUT_GGUF_Q4_0 = 34, QK_LAYOUT_GGUF_Q4_1 = 35, QK_LAYOUT_GGUF_Q5_0 = 38,
    QK_LAYOUT_GGUF_Q5_1 = 39, QK_LAYOUT_GGUF_Q8_0 = 40, QK_LAYOUT_GGUF_Q4_K = 44,
    QK_LAYOUT_GGUF_Q5_K = 45, QK_LAYOUT_GGUF_Q6_K = 46, QK_LAYOUT_GGUF_IQ4_NL = 52,
    QK_LAYOUT_GGUF_IQ4_XS = 55, QK_LAYOUT_GGUF_MXFP4 = 71,
    QK_LAYOUT_PACKED   = 99 /* what qk_repack chose for this device; opaque, never store it */
};
typedef int32_t qk_grouping; /* which codes share a scale */
enum {
    QK_GROUPING_DEFAULT = 0, /* flat for ROW_HIGH and LUT8 but for QK_GROUP_ROW, else along k */
    QK_GROUPING_ALONG_K = 1, /* each row is cut into ceil(k/group_size) groups */
    QK_GROUPING_FLAT    = 2  /* groups run over the flattened tensor and may straddle rows */
};
typedef int32_t qk_plane; /* one array of a tensor; a dense tensor has only DATA */
enum {
    QK_PLANE_DATA = 0, QK_PLANE_SCALE = 1, QK_PLANE_ZERO = 2,
    QK_PLANE_SCALE2 = 3, QK_PLANE_SCALE_CODE = 4, QK_PLANE_SCALE_BIAS = 5, /* nested scales */
    QK_PLANE_TABLE = 6, /* LUT8's 256 values, LUT4's 16, f32 */
    QK_PLANE_GLOBAL = 7, /* f32: what all E4M3 or E8M0 scales are multiplied or divided by */
    QK_PLANE_MIN2 = 8,   /* FLOAT_MIN of I8: the minima's second scales, f32 */
    QK_PLANE_ORDER = 9,  /* i32 [k]: stored column j is column order[j] of the weight: act-order */
    QK_PLANE_COUNT = 10
};
#define QK_MAX_RANK 4
#define QK_GROUP_ROW (-1)         /* group_size: one group a row */
#define QK_TENSOR_READ_ONLY 1u    /* never accepted as an output; e.g. weights in flash */
#define QK_TENSOR_SYMMETRIC 2u    /* U4_AFFINE: no ZERO plane, zeros are 8; S8: uses -128, too */
#define QK_TENSOR_GLOBAL 4u       /* a GLOBAL plane of one number; scales are multiplied by it */
#define QK_TENSOR_GLOBAL_ROWS 8u  /* ... of one number a row (weights glued from several) */
#define QK_TENSOR_GLOBAL_DIVIDES 16u /* with either: scales are divided by it */
#define QK_TENSOR_FLOAT_MIN 32u   /* U4_AFFINE, S8: code * scale - minimum, no zero; the ZERO plane
                                     has a group's minimum, stored as its scale is */
#define QK_TENSOR_ORDERED 64u     /* an ORDER plane, by which qk_linear first gathers x: permutes
                                     0..k-1; an index outside them is taken for k-1 */
#define QK_TENSOR_COLUMN_MAJOR 128u /* dense: stored as [k,n]; what qk_dequantize may write */

typedef struct qk_tensor_desc {
    uint32_t struct_size;       /* sizeof(qk_tensor_desc); fields are only ever appended */
    qk_format format;
    qk_format scale_format;     /* F32, F16, BF16, E8M0, E4M3; nested: LUT8, or I8, a code times
                                   its SCALE2; 0 for dense, as all of groups */
    qk_layout layout;
    int32_t group_size;         /* codes per scale: 16..4096, LUT8 any from 1; or QK_GROUP_ROW */
    qk_grouping grouping;
    int32_t scale_group_size;   /* nested: scales per second scale: 16..4096, I8 8..4096, 0: 256 */
    int32_t rank;               /* 1..QK_MAX_RANK; leading dimensions of a weight count as rows */
    uint32_t flags;             /* QK_TENSOR_... */
    uint32_t reserved;          /* 0 */
    int64_t shape[QK_MAX_RANK]; /* logical: a weight is {n, k}. Dense: all but the last may be 0 */
    int64_t row_stride;         /* dense: elements from a row (COLUMN_MAJOR: column) to the next,
                                   for a slice of a wider array; 0: compact. Leading dimensions
                                   count as rows, all equally far apart */
} qk_tensor_desc;               /* every byte of every format x layout: docs/formats.md */
#define QK_TENSOR_DESC_INIT \
    {sizeof(qk_tensor_desc), QK_FORMAT_F32, 0, QK_LAYOUT_ROW, 0, 0, 0, 1, 0, 0, {0, 0, 0, 0}, 0}

/* Bytes of one plane, 0 where the format has none. Needs no device. Refuses QK_LAYOUT_PACKED. */
QK_API qk_status qk_tensor_plane_bytes(const qk_tensor_desc *desc, qk_plane plane, size_t *bytes);
/* Uninitialised storage on the context's device. [allocates] */
QK_API qk_status qk_tensor_create(qk_context *context, const qk_tensor_desc *desc, qk_tensor **out);
/* Borrows memory of the context's device, which must outlive the tensor; planes[i] is plane i, NULL
 * or past plane_count where the format has none. DATA of 0 rows may be. [allocates] the handle. */
QK_API qk_status qk_tensor_wrap(qk_context *context, const qk_tensor_desc *desc,
                                void *const *planes, int32_t plane_count, qk_tensor **out);
typedef struct qk_span { void *data; size_t bytes; } qk_span;
/* The same, and a plane that ends too soon is refused (106): what bindings use. */
QK_API qk_status qk_tensor_wrap_sized(qk_context *context, const qk_tensor_desc *desc,
                                      const qk_span *planes, int32_t plane_count, qk_tensor **out);
/* Dense DLPack 1.x tensors, row-major; rows may be apart. On QK_OK qk owns `managed` and calls its
 * deleter; on failure it stays the caller's. [allocates] */
struct DLManagedTensorVersioned;
QK_API qk_status qk_tensor_from_dlpack(qk_context *context,
                                       struct DLManagedTensorVersioned *managed, qk_tensor **out);
/* One plane, shared not copied: dense data with the tensor's shape and type, any other plane as a
 * run of its elements (codes as bytes). The consumer's deleter call releases it, on any thread.
 * Counts as a call on the tensor's own context, which also explains a failure. [allocates] */
QK_API qk_status qk_tensor_to_dlpack(qk_tensor *tensor, qk_plane plane,
                                     struct DLManagedTensorVersioned **out);
/* desc->struct_size says how much the caller can take; grouping comes back resolved. */
QK_API qk_status qk_tensor_describe(const qk_tensor *tensor, qk_tensor_desc *desc);
/* Whole planes, host to device and back; bytes must equal qk_tensor_plane_bytes, and host must not
 * overlap the plane (104). Tensors with gaps by row_stride are refused (201). [waits] */
QK_API qk_status qk_tensor_upload(qk_context *context, qk_tensor *tensor, qk_plane plane,
                                  const void *host, size_t bytes);
QK_API qk_status qk_tensor_download(qk_context *context, const qk_tensor *tensor, qk_plane plane,
                                    void *host, size_t bytes);
QK_API void qk_tensor_destroy(qk_tensor *tensor);

/* ---- operations: inputs first, outputs last, operands on the context's device -------------- */

/* The output's description says into what. Equal shapes; nearest code, ties as formats.md says.
 * LUT8 reads the TABLE plane, nested scales read SCALE_CODE: fill those two first. */
QK_API qk_status qk_quantize(qk_context *context, const qk_tensor *dense, qk_tensor *quantized);
QK_API qk_status qk_dequantize(qk_context *context, const qk_tensor *quantized, qk_tensor *dense);
/* Same format and values, other layout (lossless); do it once, when loading. Scale format, groups
 * and second groups must be equal; symmetric may go to zeros (all 8), not back. */
QK_API qk_status qk_repack(qk_context *context, const qk_tensor *from, qk_tensor *to);

/* y = x . transpose(w) + bias.  x [m,k] dense; w [n,k] any format; bias [n] dense or NULL;
 * y [m,n] in x's format or f32, sharing no element with an input. More leading dimensions of x and
 * y count as rows; m = 0 does nothing. Sums are f32. The same call always has the same bits. A row
 * of y does not depend on m within a batch class: CPU m <= 2, m >= 3; qk_explain names others. */
QK_API qk_status qk_linear(qk_context *context, const qk_tensor *x, const qk_tensor *w,
                           const qk_tensor *bias, qk_tensor *y);

#define QK_EXPERTS_INTERLEAVED 1u /* gate and up alternate in an expert's rows; 0: two halves */
typedef int32_t qk_activation;    /* docs/formats.md, "Products with experts"; NONE: no gate */
enum {
    QK_ACTIVATION_NONE = 0, QK_ACTIVATION_SILU = 1, QK_ACTIVATION_GELU = 2, /* erf */
    QK_ACTIVATION_GELU_TANH = 3, QK_ACTIVATION_SWIGLU_CLAMPED = 4 /* gpt-oss */
};
/* A product with w [E,n,k] and bias [E,n]. Slot j of token t is row z[t,j] = x . transpose(w[e]) +
 * bias[e], e = expert[t,j]; x is [t,k] or, a row a slot, [t,top_k,k]. An activation makes n' = n/2
 * of it, act(gate) * up; else n' = n. y is [t,top_k,n'], z itself, or [t,n'], its token's z times
 * weight added up, j ascending. e < 0 is skipped: not added, and zeros in a z. e >= E is NaN. A row
 * of y depends on its own x, experts and weights alone; its bits are its batch class's. */
typedef struct qk_experts {
    uint32_t struct_size;     /* sizeof(qk_experts); fields are only ever appended */
    uint32_t flags;           /* QK_EXPERTS_... */
    const qk_tensor *expert;  /* I32 [t,top_k], read where it is when the product runs */
    const qk_tensor *weight;  /* F32 [t,top_k]; NULL: 1; NULL where y has a row a slot */
    qk_activation activation;
    float limit; float alpha; /* of SWIGLU_CLAMPED: above 0, 7 in gpt-oss; any, 1.702 there */
    uint32_t reserved;        /* 0 */
} qk_experts;
#define QK_EXPERTS_INIT {sizeof(qk_experts), 0, NULL, NULL, QK_ACTIVATION_NONE, 0, 0, 0}

#define QK_PRODUCT_TRANSPOSED 1u /* y = x . w + bias: x [m,n], bias [k], y [m,k]; modes: exact */
#define QK_PRODUCT_ACCUMULATE 2u /* y = y + (what it would be), the sum rounded once */
typedef struct qk_product { /* what qk_linear computes, as data */
    uint32_t struct_size;   /* sizeof(qk_product), equal in a list; fields are only ever appended */
    uint32_t flags;         /* QK_PRODUCT_... */
    const qk_tensor *x;
    const qk_tensor *w;
    const qk_tensor *bias;  /* NULL: none */
    qk_tensor *y;
    const qk_experts *experts; /* NULL: w is one weight */
} qk_product;
#define QK_PRODUCT_INIT {sizeof(qk_product), 0, NULL, NULL, NULL, NULL, NULL}
/* Runs a list in order, each with the bits of a qk_linear; the y of one may be the x of the next.
 * All are checked before the first runs; 0 products are none. */
QK_API qk_status qk_multiply(qk_context *context, const qk_product *products, int32_t count);
/* Bytes for the fastest kernel of every product, or for w at any m <= m_max; give the largest to
 * qk_context_options. With less, a slower kernel runs; or 302 in a mode, and where x of a w with
 * QK_TENSOR_ORDERED does not fit (on the CPU 192 KiB of it always do). */
QK_API qk_status qk_multiply_workspace(qk_context *context, const qk_product *products,
                                       int32_t count, size_t *bytes);
QK_API qk_status qk_linear_workspace(qk_context *context, const qk_tensor *w, int64_t m_max,
                                     size_t *bytes);
/* What qk_multiply would do with a product, and why; refused where that would be. */
typedef struct qk_plan {
    uint32_t struct_size;   /* sizeof(qk_plan); fields are only ever appended */
    int32_t batch_first;    /* batch class: a row of y has the same bits at any m of */
    int32_t batch_last;     /* batch_first..batch_last; INT32_MAX: no end */
    int32_t reserved;
    size_t workspace_bytes; /* that the kernel needs */
    const char *kernel;     /* static text; not API: names change */
    char reason[192];       /* why not a faster kernel, one sentence; "": this is the fastest */
} qk_plan;
#define QK_PLAN_INIT {sizeof(qk_plan), 0, 0, 0, 0, NULL, {0}}
QK_API qk_status qk_explain(qk_context *context, const qk_product *product, qk_plan *plan);

/* bitsandbytes' signed "dynamic" 256-entry code, ascending: what LUT8 tables and nested scales
 * (SCALE_CODE) are filled with when a file does not bring its own. table has 256 floats. */
QK_API qk_status qk_dynamic_table(float *table);

/* ---- GRU: every scale is a power of two, so inference multiplies, adds and shifts ----------
 * The result is defined as integers (docs/gru.md): equal models and inputs give equal bits on
 * every backend, however a sequence or a batch is cut into calls. */

enum { QK_GRU_ORDER_RZN = 0 /* PyTorch */, QK_GRU_ORDER_ZRN = 1 /* Keras, Haste, ONNX */ };

typedef int32_t qk_gru_tensor; /* the quantized tensors inside the cell */
enum {
    QK_GRU_X = 0, QK_GRU_H, QK_GRU_W, QK_GRU_R, QK_GRU_BW, QK_GRU_BR,
    QK_GRU_IH, QK_GRU_HH, /* W x + bw and R h + br */
    QK_GRU_UPDATE_IN, QK_GRU_UPDATE_OUT, QK_GRU_RESET_IN, QK_GRU_RESET_OUT,
    QK_GRU_NEW_IN, QK_GRU_NEW_OUT, QK_GRU_TENSOR_COUNT
};
typedef struct qk_gru_quant { /* how one of them is quantized */
    int32_t bits;         /* 4..16; BW and BR 4..32 */
    int32_t is_unsigned;  /* never X, H, W, R, BW, BR */
    int32_t is_symmetric; /* zero point 0; always so for W, R, BW, BR */
    int32_t granularity;  /* W, R, BW, BR: 0 one scale a tensor, 1 a gate, 2 a channel (a row); else
                             0. A model's shifts must be as equal as it says */
} qk_gru_quant;

/* Take W8H16 unless there is a reason not to, on microcontrollers too: 13 dB better than W8A8 with
 * the same bytes of weights at about the same speed. W8A16: x needs 16 bits. dB: mean signal to
 * error of seven trained networks; PyTorch's dynamic int8 has 29.8 (docs/gru.md). */
typedef int32_t qk_gru_preset;
enum {
    QK_GRU_W8A8 = 0,  /* everything 8-bit; 21.2 dB */
    QK_GRU_W8H16 = 1, /* 8-bit weights and x, 16-bit state and gates, R multiplies h rounded to 8
                         bits; implies UNIFORM_TABLES, BIAS_CORRECTION and H_VIEW_8; 34.2 dB */
    QK_GRU_W8A16 = 2, /* 8-bit weights, everything else 16-bit; 39.2 dB with both options */
    QK_GRU_W16A16 = 3 /* everything 16-bit; 62.7 dB with UNIFORM_TABLES */
};
typedef int32_t qk_gru_calibration;
enum {
    QK_GRU_CALIBRATE_MIN_MAX = 0,
    QK_GRU_CALIBRATE_MOVING = 1, /* x and h: 0.9 old + 0.1 new at every step; order matters */
    QK_GRU_CALIBRATE_MSE = 2     /* least squared error of each tensor */
};
#define QK_GRU_UNIFORM_TABLES  1u /* gate tables of the second kind: smoother, finer */
#define QK_GRU_BIAS_CORRECTION 2u /* biases take back what rounding the weights lost on average */
#define QK_GRU_HEADROOM        4u /* twice the seen range of x, W x + bw, gate inputs over 8 bits */
#define QK_GRU_H_VIEW_8        8u /* R multiplies the 8 high bits of a wider h */
typedef int32_t qk_gru_table_kind;
enum {
    QK_GRU_TABLE_KNOTS = 1,  /* 16 segments between given knots */
    QK_GRU_TABLE_UNIFORM = 2 /* segments 2^width_log2 codes wide: monotone, no search */
};
typedef struct qk_gru_table { /* sigmoid or tanh as data: lines from input code to output code */
    qk_gru_table_kind kind;
    int32_t count;            /* segments: KNOTS 1..256, UNIFORM 1..4096 */
    int32_t shift;            /* binary places: KNOTS of slope * x, UNIFORM of the sum */
    int32_t width_log2;       /* UNIFORM: 0..15; KNOTS: 0 */
    int32_t first;            /* UNIFORM: input code minus zero point where segment 0 starts */
    int32_t reserved;         /* 0 */
    const int32_t *threshold; /* KNOTS: [count], ascending; a segment ends below its own */
    const int32_t *slope;     /* [count] */
    const int32_t *intercept; /* [count], the output's zero point included */
} qk_gru_table;

#define QK_GRU_MODEL_CLAMP_TYPE 1u /* gate outputs clamp to their type alone, not to 0..1, -1..1 */
typedef struct qk_gru_model {   /* a frozen GRU: integers only, gates in the order u (z), r, n */
    uint32_t struct_size;       /* sizeof(qk_gru_model) */
    uint32_t flags;             /* QK_GRU_MODEL_... */
    int32_t input_size;         /* c: 1..65535 */
    int32_t hidden_size;        /* h: 1..65535 */
    int32_t h_view_shift;       /* R multiplies h >> this, rounded; 0..8, divides H's zero point */
    int32_t reserved;           /* 0 */
    qk_gru_quant quant[QK_GRU_TENSOR_COUNT];
    int32_t shift[QK_GRU_TENSOR_COUNT];      /* real = (code - zero_point) * 2^-shift */
    int32_t zero_point[QK_GRU_TENSOR_COUNT]; /* both 0 for W, R, BW, BR, whose shifts follow */
    const int8_t *w_shift;      /* [3h], as all four */
    const int8_t *r_shift;
    const int8_t *bw_shift;
    const int8_t *br_shift;
    const void *w;              /* [3h,c]: int8_t up to 8 bits, else int16_t */
    const void *r;              /* [3h,h]: the same */
    const int32_t *bw;          /* [3h] */
    const int32_t *br;          /* [3h] */
    qk_gru_table update;        /* sigmoid */
    qk_gru_table reset;         /* sigmoid */
    qk_gru_table candidate;     /* tanh */
} qk_gru_model;

typedef struct qk_gru_config {
    uint32_t struct_size;            /* sizeof(qk_gru_config) */
    uint32_t flags;                  /* QK_GRU_UNIFORM_TABLES ... QK_GRU_H_VIEW_8 */
    int32_t input_size;              /* c: 1..65535 */
    int32_t hidden_size;             /* h: 1..65535 */
    int32_t gate_order;              /* QK_GRU_ORDER_... of the arrays given */
    qk_gru_preset preset;
    qk_gru_calibration calibration;
    int32_t reserved;                /* 0 */
} qk_gru_config;
#define QK_GRU_CONFIG_INIT \
    {sizeof(qk_gru_config), 0, 0, 0, QK_GRU_ORDER_RZN, QK_GRU_W8H16, QK_GRU_CALIBRATE_MIN_MAX, 0}

/* Host f32: w_ih [3h,c], w_hh [3h,h], b_ih [3h], b_hh [3h]; biases may be NULL; copied; values
 * within +-1e15. n = tanh(Wx + b + r*(Rh + b)), h' = (1-z)*n + z*h. [allocates] */
QK_API qk_status qk_gru_create(qk_context *context, const qk_gru_config *config, const float *w_ih,
                               const float *w_hh, const float *b_ih, const float *b_hh,
                               qk_gru **out);
/* Overrides the preset for one tensor; before qk_gru_freeze. */
QK_API qk_status qk_gru_set_quant(qk_gru *gru, qk_gru_tensor which, const qk_gru_quant *quant);
/* Runs x [t,b,c] f32 (within +-1e15) through the float GRU and widens the recorded ranges; call
 * as often as there is data, before qk_gru_freeze. h0: host f32 [b,h], NULL for zeros.
 * [allocates] [waits] */
QK_API qk_status qk_gru_calibrate(qk_context *context, qk_gru *gru, const qk_tensor *x,
                                  const float *h0);
/* The float GRU itself: x [t,b,c] f32 to y [t,b,h] f32, h0 as above; before qk_gru_freeze. The
 * reference to measure a frozen GRU against. Both run on the CPU and give the same bits for any
 * number of threads and any split of time and batch. [allocates] [waits] */
QK_API qk_status qk_gru_run_float(qk_context *context, const qk_gru *gru, const qk_tensor *x,
                                  const float *h0, qk_tensor *y);
typedef struct qk_gru_ranges { /* what calibration has seen of x, h, ih, hh and the gates */
    uint32_t struct_size;           /* sizeof(qk_gru_ranges) */
    uint32_t reserved;              /* 0 */
    int64_t samples;                /* steps times sequences; 0: nothing yet */
    double min[QK_GRU_TENSOR_COUNT]; /* W, R, BW, BR: 0, their values are known */
    double max[QK_GRU_TENSOR_COUNT];
    double *x_sum;                  /* [c] of x, and [h] of the h that R reads, over the samples; */
    double *h_sum;                  /* NULL: not wanted; BIAS_CORRECTION needs both */
} qk_gru_ranges;
#define QK_GRU_RANGES_INIT {sizeof(qk_gru_ranges), 0, 0, {0}, {0}, NULL, NULL}

/* Before qk_gru_freeze: reads them, replaces them, or widens them by what another GRU of the same
 * weights has seen (minima and maxima joined, samples and sums added). Get fills the arrays given.
 * CALIBRATE_MSE needs the data itself: set and merge refuse such a GRU (201). */
QK_API qk_status qk_gru_get_ranges(qk_context *context, const qk_gru *gru, qk_gru_ranges *ranges);
QK_API qk_status qk_gru_set_ranges(qk_context *context, qk_gru *gru, const qk_gru_ranges *ranges);
QK_API qk_status qk_gru_merge_ranges(qk_context *context, qk_gru *gru,
                                     const qk_gru_ranges *ranges);
/* Picks the exponents, quantizes, drops the f32 weights. The GRU is read-only after. Ranges whose
 * shifts the cell cannot represent are refused with the tensor's name. [allocates] [waits] */
QK_API qk_status qk_gru_freeze(qk_context *context, qk_gru *gru);
/* A frozen GRU from integers made elsewhere (another quantizer, QAT): every claim of the model is
 * checked and overflow is proven impossible, or the call is refused. Copies. [allocates] [waits] */
QK_API qk_status qk_gru_create_from_model(qk_context *context, const qk_gru_model *model,
                                          qk_gru **out);
/* A frozen GRU's integers; model->struct_size says how much the caller can take (4..4096 bytes):
 * a smaller struct gets its part, a larger one zeros behind, and struct_size comes back as what was
 * filled. The arrays are host memory and live as long as the GRU. */
QK_API qk_status qk_gru_describe(const qk_gru *gru, qk_gru_model *model);
/* real = (code - zero_point) * 2^-shift. Frozen only. channel: W, R, BW, BR 0..3h-1, else 0. */
QK_API qk_status qk_gru_scale(const qk_gru *gru, qk_gru_tensor which, int32_t channel,
                              int32_t *shift, int32_t *zero_point);

/* Hidden state for `batch` sequences, at zero; one per stream of data; frozen only. [allocates] */
QK_API qk_status qk_gru_state_create(qk_context *context, const qk_gru *gru, int32_t batch,
                                     qk_gru_state **out);
QK_API qk_status qk_gru_state_reset(qk_context *context, qk_gru_state *state); /* to zero */
/* h [b,h] as host f32; a written value is rounded to the state's grid, NaN to zero. [waits] */
QK_API qk_status qk_gru_state_write(qk_context *context, qk_gru_state *state, const float *h);
QK_API qk_status qk_gru_state_read(qk_context *context, const qk_gru_state *state, float *h);
typedef struct qk_gru_clipped { /* how often a value did not fit its tensor's codes and was cut */
    uint32_t struct_size;                /* sizeof(qk_gru_clipped); as in qk_gru_describe */
    uint32_t reserved;                   /* 0 */
    int64_t samples;                     /* steps times sequences counted; each has c codes of X, h
                                            of H and of the gates, 3h of IH and HH */
    int64_t codes[QK_GRU_TENSOR_COUNT];  /* cut among them; W, R, BW, BR: 0. Of gate outputs only
                                            where their type ends short of 0, 1 or -1 */
} qk_gru_clipped;
#define QK_GRU_CLIPPED_INIT {sizeof(qk_gru_clipped), 0, 0, {0}}
/* on = 1: runs of this state count from now on, from zero; 0: they stop and keep the counts. Off at
 * first, at no cost. Counting changes no bit but takes the portable kernel, many times slower. A
 * few cut codes are outliers; many mean that calibration saw too little. [allocates] [waits] */
QK_API qk_status qk_gru_state_count_clipped(qk_context *context, qk_gru_state *state, int32_t on);
QK_API qk_status qk_gru_state_clipped(qk_context *context, const qk_gru_state *state,
                                      qk_gru_clipped *clipped); /* [waits] */
QK_API void qk_gru_state_destroy(qk_gru_state *state);
/* Advances state by t >= 0 steps: x [t,b,c], y [t,b,h] (or [t,c], [t,h] if b is 1); t = 1 streams.
 * x and y are f32 (quantized and dequantized at the border, NaN as zero) or the codes themselves:
 * I8 up to 8 bits, else I16. An x code beyond its bits is clamped. y must not overlap x. */
QK_API qk_status qk_gru_run(qk_context *context, const qk_gru *gru, qk_gru_state *state,
                            const qk_tensor *x, qk_tensor *y);
/* The same, and what the gates were: gates [t,b,4h] f32, u, r, n and R_n h + b, dequantized. */
QK_API qk_status qk_gru_run_gates(qk_context *context, const qk_gru *gru, qk_gru_state *state,
                                  const qk_tensor *x, qk_tensor *y, qk_tensor *gates);
/* Scratch qk_gru_run needs for up to t_max steps; give the largest to qk_context_options. */
QK_API qk_status qk_gru_workspace(qk_context *context, const qk_gru *gru, int32_t batch,
                                  int64_t t_max, size_t *bytes);
/* Little-endian, versioned, checksummed; docs/gru.md lists the bytes. buffer NULL: only sets
 * *bytes. Frozen only. Load trusts nothing. [allocates] (load) */
QK_API qk_status qk_gru_save(const qk_gru *gru, void *buffer, size_t capacity, size_t *bytes);
QK_API qk_status qk_gru_load(qk_context *context, const void *data, size_t bytes, qk_gru **out);
QK_API void qk_gru_destroy(qk_gru *gru);

#ifdef __cplusplus
}
#endif
#endif /* QK_H */
