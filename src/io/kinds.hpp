// Files that are no safetensors, told by their first bytes.
#pragma once
#include "checkpoint.hpp"

namespace qk_io {

// For a file that does not begin as safetensors do: says what it is instead. QK_OK where the bytes
// are nothing that is known here.
qk_status check_kind(const File &file, qk_io_message *message);
// True for names that files of other kinds have: model.onnx, pytorch_model.bin.
bool is_other_name(const char *name);

}  // namespace qk_io
