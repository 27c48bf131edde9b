#include "kinds.hpp"

#include <string.h>

namespace qk_io {
namespace {

constexpr const char *kSaveAsSafetensors =
    "load it where it was made and save it as safetensors (save_pretrained does)";
constexpr const char *kTakeSafetensors =
    "take the model's safetensors, from which it was converted";
constexpr const char *kFetch = "git lfs pull, or a download of the file itself, brings it";
constexpr const char *kFetchAgain = "download the file again";

struct Kind {
    size_t at;
    const char *magic;
    size_t length;
    qk_status status;  // a pointer or an error page is no model at all
    const char *name, *instead;
};

// PyTorch has written zip archives since 1.6, and bare pickles before.
constexpr Kind kKinds[] = {
    {0, "lmgg", 4, QK_ERROR_UNSUPPORTED, "a GGML file (llama.cpp before GGUF)", kTakeSafetensors},
    {0, "tjgg", 4, QK_ERROR_UNSUPPORTED, "a GGML file (llama.cpp before GGUF)", kTakeSafetensors},
    {0, "PK\3\4", 4, QK_ERROR_UNSUPPORTED, "a zip archive, as PyTorch's .bin and .pt files are",
     kSaveAsSafetensors},
    {0, "\x80\2\x8a\x0al\xfc\x9c\x46\xf9", 9, QK_ERROR_UNSUPPORTED,
     "a pickle of PyTorch (before 1.6)", kSaveAsSafetensors},
    {0, "\x80\2", 2, QK_ERROR_UNSUPPORTED, "a Python pickle", kSaveAsSafetensors},
    {0, "\x80\3", 2, QK_ERROR_UNSUPPORTED, "a Python pickle", kSaveAsSafetensors},
    {0, "\x80\4", 2, QK_ERROR_UNSUPPORTED, "a Python pickle", kSaveAsSafetensors},
    {0, "\x80\5", 2, QK_ERROR_UNSUPPORTED, "a Python pickle", kSaveAsSafetensors},
    {0, "\x89HDF\r\n\x1a\n", 8, QK_ERROR_UNSUPPORTED, "an HDF5 file (Keras)", kSaveAsSafetensors},
    {0, "\x93NUMPY", 6, QK_ERROR_UNSUPPORTED, "a NumPy array", kSaveAsSafetensors},
    {4, "TFL3", 4, QK_ERROR_UNSUPPORTED, "a TensorFlow Lite model", kSaveAsSafetensors},
    {0, "\x1f\x8b", 2, QK_ERROR_UNSUPPORTED, "a gzip archive", "unpack it"},
    {0, "\x28\xb5\x2f\xfd", 4, QK_ERROR_UNSUPPORTED, "a zstd archive", "unpack it"},
    {257, "ustar", 5, QK_ERROR_UNSUPPORTED, "a tar archive", "unpack it"},
    {0, "version https://git-lfs", 23, QK_ERROR_FILE, "a Git LFS pointer, not the file itself",
     kFetch},
    {0, "<!doctype", 9, QK_ERROR_FILE, "an HTML page, not a model", kFetchAgain},
    {0, "<!DOCTYPE", 9, QK_ERROR_FILE, "an HTML page, not a model", kFetchAgain},
    {0, "<html", 5, QK_ERROR_FILE, "an HTML page, not a model", kFetchAgain},
    {0, "<?xml", 5, QK_ERROR_FILE, "an XML text, not a model", kFetchAgain},
    {0, "{\"error", 7, QK_ERROR_FILE, "a server's error, not a model", kFetchAgain},
};

const Kind *find_kind(const File &file) {
    for (const Kind &kind : kKinds) {
        if (file.size < kind.at + kind.length) continue;
        if (memcmp(file.bytes + kind.at, kind.magic, kind.length) == 0) return &kind;
    }
    return nullptr;
}

// ONNX has no magic: a protobuf that begins with its version, a small number, and its producer.
bool is_onnx(const File &file) {
    return file.size > 4 && file.bytes[0] == 8 && file.bytes[1] < 32 && file.bytes[2] == 0x12 &&
           file.bytes[3] < 64;
}

// ASCII, and not an object's brace where a header has it.
bool begins_as_text(const File &file, char start[17]) {
    if (file.size <= 8 || file.bytes[8] == '{') return false;
    size_t length = 0;
    for (; length < 16 && length < file.size; ++length) {
        const uint8_t c = file.bytes[length];
        const bool space = c == '\n' || c == '\r' || c == '\t';
        if (!space && (c < 0x20 || c > 0x7e)) return false;
        start[length] = static_cast<char>(space ? ' ' : c);
    }
    start[length] = 0;
    return true;
}

bool is_zero(const File &file) {
    const size_t most = file.size < 4096 ? file.size : 4096;
    if (file.size <= 8) return false;
    for (size_t i = 0; i < most; ++i) {
        if (file.bytes[i] != 0) return false;
    }
    return true;
}

}  // namespace

qk_status check_kind(const File &file, qk_io_message *message) {
    const Kind *kind = find_kind(file);
    if (kind != nullptr) {
        return fail(message, kind->status, "%.200s is %s, which qk does not load: %s", file.name,
                    kind->name, kind->instead);
    }
    if (is_onnx(file)) {
        return fail(message, QK_ERROR_UNSUPPORTED,
                    "%.200s is an ONNX model, which qk does not load: %s", file.name,
                    kSaveAsSafetensors);
    }
    if (is_zero(file)) {
        return fail(message, QK_ERROR_CORRUPT,
                    "%.200s begins with zeros, as an unfinished download does: %s", file.name,
                    kFetchAgain);
    }
    char start[17] = "";
    if (!begins_as_text(file, start)) return QK_OK;
    return fail(message, QK_ERROR_CORRUPT,
                "%.200s is a text, no safetensors file: it begins \"%s\"", file.name, start);
}

bool is_other_name(const char *name) {
    static constexpr const char *kEnds[] = {".ggml",    ".bin",  ".pt",  ".pth",
                                            ".ckpt",    ".onnx", ".h5",  ".tflite",
                                            ".msgpack", ".npz",  ".npy", ".keras"};
    for (const char *end : kEnds) {
        if (ends_with(name, end)) return true;
    }
    return false;
}

}  // namespace qk_io
