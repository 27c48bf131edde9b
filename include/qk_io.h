/* qk_io.h - checkpoint files in, qk tensors out, and back.
 *
 * Reads safetensors files and recognises the 4-bit dialects people store in them: AutoAWQ (gemm,
 * gemv), GPTQ (v1, v2), compressed-tensors pack-quantized int4 and bitsandbytes NF4/FP4, and writes
 * them. Reads GGUF files too. A second library, libqk_io.a, so that programs without files never
 * link a JSON parser.
 *
 * qk.h's rules hold here, with these five more:
 *
 *   Messages   A message parameter may be NULL. On failure it receives one sentence: the file or
 *              argument, the value, what was accepted. On QK_OK its text is "" unless a function
 *              says that it leaves a note. There is no hidden error state anywhere.
 *   Hostility  Files are untrusted. Whatever their bytes are, opening them ends in QK_OK or in a
 *              status, reads nothing outside them, and takes memory in proportion to their size.
 *              QK_ERROR_CORRUPT: a rule of the format or one of the limits below is broken.
 *              QK_ERROR_FILE: the system refused to open or read. QK_ERROR_UNSUPPORTED: intact,
 *              but not something qk can load.
 *   Threads    A checkpoint never changes once it is open: any number of threads may read it.
 *              A writer serves one thread at a time.
 *   Files      While a mapped checkpoint is open nothing may truncate its files: the system answers
 *              reads past the new end with SIGBUS (qk_writer_write, which lets the system do the
 *              reading, returns QK_ERROR_FILE). QK_CHECKPOINT_READ copies the files at opening
 *              instead: it needs the memory, and a file that becomes shorter later changes
 *              nothing. Replacing a file (rename) or deleting it is always harmless.
 *   Time       Opening and writing take time in proportion to the bytes of metadata (times the
 *              logarithm of the number of names where they are sorted), whatever the names are.
 */
#ifndef QK_IO_H
#define QK_IO_H
/* clang-format off */
#include "qk.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qk_checkpoint qk_checkpoint; /* one model: its files, tensors and layers */
typedef struct qk_writer     qk_writer;     /* one safetensors file being written */

typedef struct qk_io_message {
    char text[512]; /* UTF-8, always terminated; control characters of the file become '?' */
} qk_io_message;

/* Element types. Values are qk's own; names are safetensors', or ggml's in a GGUF file. */
typedef int32_t qk_dtype;
enum {
    QK_DTYPE_UNKNOWN = 0, /* listed by name, never loaded */
    QK_DTYPE_BOOL = 1,
    QK_DTYPE_F4 = 2, QK_DTYPE_F6_E2M3 = 3, QK_DTYPE_F6_E3M2 = 4, /* 4, 6 and 6 bits */
    QK_DTYPE_U8 = 5, QK_DTYPE_I8 = 6,
    QK_DTYPE_F8_E5M2 = 7, QK_DTYPE_F8_E4M3 = 8, QK_DTYPE_F8_E8M0 = 9,
    QK_DTYPE_I16 = 10, QK_DTYPE_U16 = 11, QK_DTYPE_F16 = 12, QK_DTYPE_BF16 = 13,
    QK_DTYPE_I32 = 14, QK_DTYPE_U32 = 15, QK_DTYPE_F32 = 16,
    QK_DTYPE_C64 = 17, QK_DTYPE_F64 = 18, QK_DTYPE_I64 = 19, QK_DTYPE_U64 = 20,
    QK_DTYPE_GGUF = 64 /* + ggml's number of a type: blocks of a GGUF file, "Q4_K" */
};
QK_API const char *qk_dtype_name(qk_dtype dtype); /* "F16"; "unknown" for others; never NULL */

/* ---- opening ------------------------------------------------------------------------------ */

#define QK_CHECKPOINT_READ 1u /* copy whole files into memory at opening; default: map them */

typedef struct qk_checkpoint_options {
    uint32_t struct_size;          /* sizeof(qk_checkpoint_options); fields are only appended */
    uint32_t abi_version;          /* QK_ABI_VERSION */
    uint32_t flags;                /* QK_CHECKPOINT_... */
    int32_t max_json_depth;        /* nesting of any JSON text; 0: 32, at most 256 */
    int64_t max_header_bytes;      /* of one file; 0: 100000000, which is also the most */
    int64_t max_tensors;           /* of all files together; 0: 1048576 */
    const qk_allocator *allocator; /* copied; NULL: the C library's. The JSON parser's short-lived
                                      trees always come from the C library */
} qk_checkpoint_options;
#define QK_CHECKPOINT_OPTIONS_INIT \
    {sizeof(qk_checkpoint_options), QK_ABI_VERSION, 0, 0, 0, 0, NULL}

/* path: a .safetensors file, a model.safetensors.index.json, or a directory with one of
 * model.safetensors, model.safetensors.index.json or exactly one other *.safetensors;
 * config.json, quantize_config.json, quant_config.json and hf_quant_config.json beside it are read
 * when present. Or a .gguf file (version 2 or 3, little-endian), any part of one that was split, or
 * a directory with one such model and no safetensors; no config.json is read for it. Files of other
 * kinds (PyTorch's .bin, ONNX ...) are QK_ERROR_UNSUPPORTED.
 * Also refused as corrupt: names over 1024 bytes, ranks over 32, more than 4096 shards, JSON
 * texts beside the model over 64 MiB, more than 256 different config_groups. options may be NULL.
 * [allocates] */
QK_API qk_status qk_checkpoint_open(const char *path, const qk_checkpoint_options *options,
                                    qk_checkpoint **out, qk_io_message *message);
/* One file in memory, safetensors or GGUF, borrowed until qk_checkpoint_destroy. config: text of
 * its config.json (or of either other file), NULL for none. [allocates] */
QK_API qk_status qk_checkpoint_open_memory(const void *bytes, size_t size_bytes,
                                           const char *config, size_t config_bytes,
                                           const qk_checkpoint_options *options,
                                           qk_checkpoint **out, qk_io_message *message);
QK_API void qk_checkpoint_destroy(qk_checkpoint *checkpoint);

/* ---- raw contents -------------------------------------------------------------------------- */

typedef struct qk_file_tensor { /* one entry of a file; pointers live as long as the checkpoint */
    const char *name;
    const char *dtype_name; /* as the file spells it, also when unknown */
    qk_dtype dtype;
    int32_t rank;           /* 0: a scalar */
    const int64_t *shape;   /* rank sizes, slowest first; any may be 0 */
    int64_t bytes;
    const void *data;       /* bytes bytes at any alignment, little-endian, read-only */
    const char *file;       /* base name of the file that holds it; "memory" from memory */
} qk_file_tensor;

QK_API int64_t qk_checkpoint_tensor_count(const qk_checkpoint *checkpoint); /* NULL: 0 */
/* In order of names (byte by byte). QK_ERROR_ARGUMENT: no such index, or no such name. */
QK_API qk_status qk_checkpoint_tensor(const qk_checkpoint *checkpoint, int64_t index,
                                      qk_file_tensor *tensor);
QK_API qk_status qk_checkpoint_find_tensor(const qk_checkpoint *checkpoint, const char *name,
                                           qk_file_tensor *tensor);
/* The __metadata__ pairs of all files, in file order. Keys and values of a GGUF file: numbers as
 * text, of an array only its length and type, "[151936 strings]". */
QK_API int64_t qk_checkpoint_metadata_count(const qk_checkpoint *checkpoint); /* NULL: 0 */
QK_API qk_status qk_checkpoint_metadata(const qk_checkpoint *checkpoint, int64_t index,
                                        const char **key, const char **value);

/* ---- config.json --------------------------------------------------------------------------- */

/* A value of the model's config.json by its path, keys with dots between them: "hidden_size",
 * "rope_scaling.factor"; elements of lists by their index: "eos_token_id.0". Numbers also take true
 * (1) and false (0). QK_ERROR_ARGUMENT: there is none, null, or no config.json; QK_ERROR_FORMAT: it
 * is of another type, and the message says of which. Each call parses the text again. */
QK_API qk_status qk_checkpoint_config_number(const qk_checkpoint *checkpoint, const char *key,
                                             double *value, qk_io_message *message);
/* capacity: bytes of text, the terminating 0 included; QK_ERROR_BUFFER_SIZE: it needs more. */
QK_API qk_status qk_checkpoint_config_text(const qk_checkpoint *checkpoint, const char *key,
                                           char *text, size_t capacity, qk_io_message *message);

/* ---- linear layers ------------------------------------------------------------------------- */

typedef int32_t qk_dialect; /* whose way of storing a layer */
enum {
    QK_DIALECT_UNKNOWN = 0,
    QK_DIALECT_DENSE = 1,              /* X.weight F32, F16 or BF16 [n,k] */
    QK_DIALECT_AWQ_GEMM = 2,           /* X.qweight I32 [k,n/8] */
    QK_DIALECT_AWQ_GEMV = 3,           /* X.qweight I32 [n,k/8] */
    QK_DIALECT_GPTQ_V1 = 4,            /* X.qweight I32 [k/8,n], zeros minus one */
    QK_DIALECT_GPTQ_V2 = 5,            /* the same, zeros as they are */
    QK_DIALECT_COMPRESSED_TENSORS = 6, /* X.weight_packed, or X.weight and X.weight_scale */
    QK_DIALECT_BITSANDBYTES = 7,       /* X.weight U8 and X.weight.quant_state.bitsandbytes__...,
                                          or LLM.int8: X.weight I8 and X.SCB */
    QK_DIALECT_GGUF = 8,               /* X.weight of a GGUF file, in blocks of its type */
    QK_DIALECT_FP8 = 9,                /* X.weight F8_E4M3 and X.weight_scale or _scale_inv */
    QK_DIALECT_MODELOPT = 10,          /* NVFP4: X.weight U8 [n,k/2] and X.weight_scale_2 */
    QK_DIALECT_GPT_OSS = 11,           /* MXFP4: X_blocks U8 [experts,n,k/32,16] and X_scales, as
                                          one layer of experts * n rows */
    QK_DIALECT_DEEPSEEK = 12,          /* MXFP4: X.weight I8 [n,k/2] and X.scale F8_E8M0 */
    QK_DIALECT_TORCHAO = 13            /* X._weight_qdata I8 or F8_E4M3 [n,k], X._weight_scale */
};
QK_API const char *qk_dialect_name(qk_dialect dialect); /* "AutoAWQ gemm"; never NULL */

typedef struct qk_layer {
    const char *name;       /* the module's: "model.layers.0.mlp.up_proj" */
    qk_dialect dialect;
    qk_status status;       /* QK_OK: qk_checkpoint_load takes it */
    const char *reason;     /* why not, one sentence; "" when it does */
    int32_t has_bias;
    qk_format dense_format; /* F32, F16 or BF16: what the weights were before, or scales are in */
    int64_t bytes;          /* of the layer's tensors in the file, bias included */
    qk_tensor_desc desc;    /* what it loads as, with flags as qk_tensor_create takes them; rank 0
                               when the status is not QK_OK. Last, so that it can grow */
} qk_layer;

QK_API int64_t qk_checkpoint_layer_count(const qk_checkpoint *checkpoint); /* NULL: 0 */
/* Layers in order of names: the dense weights of rank 2 named X.weight, and whatever looks like a
 * quantized layer, loadable or not. layer_bytes: sizeof(qk_layer). */
QK_API qk_status qk_checkpoint_layer(const qk_checkpoint *checkpoint, int64_t index,
                                     qk_layer *layer, size_t layer_bytes);
QK_API qk_status qk_checkpoint_find_layer(const qk_checkpoint *checkpoint, const char *name,
                                          qk_layer *layer, size_t layer_bytes);

/* How a layer is stored, in words, also where qk does not load it: "NVFP4", "LLM.int8", "AutoAWQ
 * gemm", "dense". Also of a name of experts, "....experts.*.up_proj". NULL: no such layer. */
QK_API const char *qk_checkpoint_layer_method(const qk_checkpoint *checkpoint, const char *layer);
/* How the configuration calls the model's quantization: "awq", "modelopt", "" where it has none.
 * QK_ERROR_UNSUPPORTED, with a sentence: qk loads no method of that name and found no layer of
 * another, so that dense layers are not the whole model. *name is set then too. */
QK_API qk_status qk_checkpoint_method(const qk_checkpoint *checkpoint, const char **name,
                                      qk_io_message *message);

#define QK_LOAD_IN_PLACE 1u /* CPU contexts only: planes point into the checkpoint, which must
                               outlive the tensors; they are QK_TENSOR_READ_ONLY. Layers that
                               are stored in another way than qk's are copied all the same */

/* One layer as a tensor [n,k], and its bias as a dense tensor [n]. Without QK_LOAD_IN_PLACE the
 * planes are copied to the context's device and the checkpoint may go. bias may be NULL;
 * otherwise *bias is NULL when the layer has none. A layer whose status is not QK_OK fails with
 * it and its reason. Nothing is set on failure. [allocates] [waits] */
QK_API qk_status qk_checkpoint_load(const qk_checkpoint *checkpoint, qk_context *context,
                                    const char *layer, uint32_t flags, qk_tensor **weight,
                                    qk_tensor **bias, qk_io_message *message);
/* Reads what opening does not: every scale, offset and bias must be finite (QK_ERROR_CORRUPT).
 * Leaves a note on QK_OK when a GPTQ v1 layer stores a zero as 0xF, on which readers disagree:
 * qk and AutoGPTQ take it as 0, others as 16. */
QK_API qk_status qk_checkpoint_verify_layer(const qk_checkpoint *checkpoint, const char *layer,
                                            qk_io_message *message);

/* ---- experts ------------------------------------------------------------------------------- */

/* One projection of all experts of a mixture, a weight [E,n,k]. Either a layer an expert: "*" is in
 * the place of its number, "model.layers.0.mlp.experts.*.up_proj" for ...experts.0.up_proj and its
 * likes. Or one layer of the file, of that name: GGUF's ffn_up_exps, gpt-oss' gate_up_proj. Or a
 * dense tensor of rank 3, no layer of the file: X.experts.Y, X_moe.Y or X_exps, with or without
 * ".weight", [E,n,k] as it is; transposed where X.experts.gate_up_proj and X.experts.down_proj are
 * [E,k,2n] and [E,n,k]. One of these two without the other, which alone could tell, is refused. */
QK_API int64_t qk_checkpoint_expert_layer_count(const qk_checkpoint *checkpoint); /* NULL: 0 */
/* In order of names. layer->desc has rank 3; where the status is not QK_OK, as where an expert is
 * missing or unlike the others, rank 0 and E, as the file has it, in shape[0]. */
QK_API qk_status qk_checkpoint_expert_layer(const qk_checkpoint *checkpoint, int64_t index,
                                            qk_layer *layer, size_t layer_bytes);
QK_API qk_status qk_checkpoint_find_expert_layer(const qk_checkpoint *checkpoint, const char *name,
                                                 qk_layer *layer, size_t layer_bytes);
/* One tensor [E,n,k], and its bias as a dense tensor [E,n]: what a qk_product with experts takes.
 * up: NULL, or a second projection: its rows of each expert follow the first's, [E,2n,k], as
 * activations join them. Values are the single layers' to the bit. Layouts that store no expert's
 * rows in sequence (AWQ gemm, GPTQ) become ROW, GLOBAL becomes GLOBAL_ROWS, nested scales F32.
 * Experts that fit no common tensor are refused: other formats, sizes, groups, tables, orders of
 * columns. flags, bias and failures as of qk_checkpoint_load; in place only what is one layer or
 * tensor of the file and not transposed, without up. Leaves a note on QK_OK when the weight is not
 * quantized. [allocates] [waits] */
QK_API qk_status qk_checkpoint_load_experts(const qk_checkpoint *checkpoint, qk_context *context,
                                            const char *layer, const char *up, uint32_t flags,
                                            qk_tensor **weight, qk_tensor **bias,
                                            qk_io_message *message);

/* ---- writing ------------------------------------------------------------------------------- */

/* Declare everything, then write data in pieces, in any order of tensors, then finish. The bytes
 * go to a new file in the directory of path, which takes path's place in qk_writer_finish and not
 * before: whatever fails, the file that was at path is intact.
 *
 *   What is replaced   A regular file, or nothing. A directory, pipe, socket or device at path is
 *                      refused with QK_ERROR_FILE. Symbolic links are followed: the file they lead
 *                      to is replaced, in its own directory, or made where they lead to none.
 *   Permissions        A file that replaces another gets its mode (of 0777) and, as far as the
 *                      system permits, its owner and group; without the group it gets no group
 *                      bits. A new file gets 0666 less the umask. The unfinished file is never open
 *                      to more readers. ACLs and extended attributes are not kept, and other hard
 *                      links to the old file keep the old contents.
 *   Durability         After QK_OK the file and its directory are on the disk (fsync).
 *   Leftovers          Unfinished files are named .qk-*.tmp, the old contents during a commit of
 *                      several files .qk-*.old; their writer holds a lock (flock) on them. Those of
 *                      a process that was killed are deleted by the next qk_writer_create in the
 *                      same directory. A writer that lives keeps its files; of two writers of one
 *                      path the last to finish wins.
 *   fork               A writer belongs to the process that created it. In a forked child all
 *                      calls but qk_writer_destroy return QK_ERROR_STATE, and destroying leaves
 *                      the parent's file alone.
 *
 *   Format             safetensors, or GGUF version 3 where path ends in .gguf: with the types that
 *                      ggml has, names of at most 63 bytes, 1 to 4 dimensions, and metadata that
 *                      are all strings.
 *
 * allocator: copied, NULL for the C library's. [allocates] */
QK_API qk_status qk_writer_create(const char *path, const qk_allocator *allocator,
                                  qk_writer **out, qk_io_message *message);
/* Deletes the unfinished file, if any. */
QK_API void qk_writer_destroy(qk_writer *writer);
/* QK_ERROR_STATE once data has been written; QK_ERROR_ARGUMENT for a name declared twice.
 * The order of declarations does not matter: the file is sorted as the reference writer's,
 * widest dtype first, then by name. [allocates] */
QK_API qk_status qk_writer_metadata(qk_writer *writer, const char *key, const char *value,
                                    qk_io_message *message);
QK_API qk_status qk_writer_declare(qk_writer *writer, const char *name, qk_dtype dtype,
                                   int32_t rank, const int64_t *shape, qk_io_message *message);
/* Appends to one tensor. QK_ERROR_BUFFER_SIZE: more than was declared. */
QK_API qk_status qk_writer_write(qk_writer *writer, const char *name, const void *data,
                                 size_t bytes, qk_io_message *message);
/* Bytes of all tensors declared so far, or of what was appended. NULL: 0 */
QK_API int64_t qk_writer_bytes(const qk_writer *writer);
/* Instead of all the above: any other file, replaced with the same care. Appends to what the file
 * will be. QK_ERROR_STATE when something has been declared; afterwards nothing can be. */
QK_API qk_status qk_writer_append(qk_writer *writer, const void *data, size_t bytes,
                                  qk_io_message *message);
/* QK_ERROR_STATE when a tensor is not complete: nothing has happened then. After anything else
 * only destroy is left. [waits] */
QK_API qk_status qk_writer_finish(qk_writer *writer, qk_io_message *message);
/* The same for several files as one: the files of all writers take their places and the files at
 * the paths in `removed` go (a link goes itself; a path without a file is no error), or everything
 * stays as it was. Where a step fails and one before it cannot be taken back, the message says
 * which files are new. Old contents are kept by a second name (link) until the end; file systems
 * without hard links cannot take back a replaced file. removed may be NULL with a count of 0.
 * [allocates] [waits] */
QK_API qk_status qk_writer_finish_all(qk_writer *const *writers, int64_t writer_count,
                                      const char *const *removed, int64_t removed_count,
                                      qk_io_message *message);

/* A quantized layer in the tensors of a dialect: declare by description, write from a tensor of
 * that description.
 *   QK_DIALECT_BITSANDBYTES        NF4 or FP4_BNB in ROW_HIGH, flat groups, F32 or nested scales;
 *                                  LLM.int8: S8 in ROW, one F32 scale a row
 *   QK_DIALECT_COMPRESSED_TENSORS  U4_AFFINE in WORD, S8 or E4M3 in ROW, scales F32, F16 or BF16;
 *                                  E4M3 in ROW, E8M0 scales of 32 codes (mxfp8);
 *                                  FP4_E2M1 in ROW, E8M0 scales of 32 codes (mxfp4), or E4M3 of
 *                                  16 with a GLOBAL that divides (nvfp4)
 *   QK_DIALECT_AWQ_..., GPTQ_...   U4_AFFINE in the layout of that name, whole; scales F16, GPTQ's
 *                                  BF16 as well
 *   QK_DIALECT_MODELOPT            FP4_E2M1 in ROW, E4M3 scales of 16 and a GLOBAL that multiplies
 *   QK_DIALECT_DEEPSEEK            FP4_E2M1 in ROW, E8M0 scales of 32
 *   QK_DIALECT_GPT_OSS             FP4_E2M1 [experts,n,k] in ROW, E8M0 scales of 32
 *   QK_DIALECT_GGUF                in a GGUF file: the layouts QK_LAYOUT_GGUF_..., [n,k] or
 *                                  [experts,n,k]
 *   QK_DIALECT_DENSE               F32, F16, BF16
 * dense_format (F32, F16, BF16): what the file says the weights were. Others are
 * QK_ERROR_UNSUPPORTED, with the reason. [allocates] */
QK_API qk_status qk_writer_declare_layer(qk_writer *writer, qk_dialect dialect, const char *layer,
                                         const qk_tensor_desc *desc, qk_format dense_format,
                                         qk_io_message *message);
/* The layer, or some of its rows: call again for the rest, in order. A piece that is not the last
 * ends between groups (second groups, with nested scales) and, in compressed-tensors, after a
 * multiple of 8 rows; pieces have the same SCALE_CODE, SCALE_BIAS and GLOBAL. Of [experts,n,k] a
 * piece is some experts [e,n,k], or some rows of all [rows,k].
 * [allocates] [waits] */
QK_API qk_status qk_writer_write_layer(qk_writer *writer, qk_context *context, const char *layer,
                                       const qk_tensor *tensor, qk_io_message *message);

/* Appends a config.json: that of `from` (NULL: an empty one) with the quantization_config that
 * Python's loaders need for layers of this dialect and description, or without one for
 * QK_DIALECT_DENSE; its other members keep their text. kept: names of the modules that stayed
 * dense, among them the output head of a model with tied embeddings. [allocates] */
QK_API qk_status qk_writer_append_config(qk_writer *writer, const qk_checkpoint *from,
                                         qk_dialect dialect, const qk_tensor_desc *desc,
                                         qk_format dense_format, const char *const *kept,
                                         int64_t kept_count, qk_io_message *message);
/* The same as a file of its own: replaces what is at path at once or not at all. [allocates] */
QK_API qk_status qk_checkpoint_write_config(const qk_checkpoint *from, const char *path,
                                            qk_dialect dialect, const qk_tensor_desc *desc,
                                            qk_format dense_format, const char *const *kept,
                                            int64_t kept_count, qk_io_message *message);

#ifdef __cplusplus
}
#endif
#endif /* QK_IO_H */
