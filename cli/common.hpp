// What every sub-command needs: handles that close themselves, and failures with an exit code.
#pragma once
#include <memory>
#include <stdexcept>
#include <string>

#include "qk_io.h"

// Stable and documented in docs/cli.md.
enum ExitCode {
    kOk = 0,
    kFailed = 1,      // the operation failed, or verify found faults
    kUsage = 2,       // the command line is wrong
    kFile = 3,        // a file cannot be opened, read or written, or is damaged
    kUnsupported = 4  // intact and valid, but not something qk can do
};

class Failure : public std::runtime_error {
  public:
    Failure(ExitCode code, const std::string &sentence)
        : std::runtime_error(sentence), code_(code) {}
    ExitCode code() const { return code_; }

  private:
    ExitCode code_;
};

class Interrupted : public std::exception {};  // by SIGINT, SIGTERM or SIGHUP

struct Destroy {
    void operator()(qk_context *context) const { qk_context_destroy(context); }
    void operator()(qk_tensor *tensor) const { qk_tensor_destroy(tensor); }
    void operator()(qk_checkpoint *checkpoint) const { qk_checkpoint_destroy(checkpoint); }
    void operator()(qk_writer *writer) const { qk_writer_destroy(writer); }
};
using Context = std::unique_ptr<qk_context, Destroy>;
using Tensor = std::unique_ptr<qk_tensor, Destroy>;
using Checkpoint = std::unique_ptr<qk_checkpoint, Destroy>;
using Writer = std::unique_ptr<qk_writer, Destroy>;

struct CommonOptions {
    bool quiet = false;
    bool json = false;
    int threads = 0;                // 0: all cores
    std::string isa;                // as given: names with commas
    uint32_t instruction_sets = 0;  // what that means: QK_ISA_...; 0: all there are
};

// Throws unless status is QK_OK: "subject: why".
void check(qk_status status, const std::string &subject, const char *why);
ExitCode exit_code(qk_status status);

Checkpoint open_checkpoint(const std::string &path);
Context create_context(const CommonOptions &common, qk_device device = QK_DEVICE_CPU,
                       int device_index = 0, size_t workspace_bytes = 0, uint32_t flags = 0);
int thread_count(const Context &context);  // the caller's included
struct LoadedLayer {
    Tensor weight, bias;
};
LoadedLayer load_layer(const Checkpoint &checkpoint, const Context &context,
                       const std::string &name, uint32_t flags);
// A dense [rows, columns] tensor on the context's device.
Tensor create_dense(const Context &context, qk_format format, int64_t rows, int64_t columns);
// The same over memory of a CPU context.
Tensor wrap_dense(const Context &context, qk_format format, int64_t rows, int64_t columns,
                  void *data);

bool ends_with(const std::string &text, const std::string &end);
// "m/x" of "m" and of "m/".
std::string path_in(const std::string &directory, const std::string &name);
// Text of a file for a terminal: control characters, and bytes that are no UTF-8, become '?'.
std::string printable(const std::string &text);
size_t columns_of(const std::string &text);  // of a terminal: a character each
std::string human_bytes(double bytes);
std::string plural(int64_t count, const char *noun);  // "1 layer", "2 layers"

const char *format_name(qk_format format);  // "nf4"
const char *layout_name(qk_layout layout);  // "row_high"
std::string group_name(const qk_tensor_desc &desc);
std::string shape_name(const int64_t *shape, int32_t rank);  // "4096 x 1024"
int32_t element_bytes(qk_format format);                     // of a dense format
qk_dtype dtype_of(qk_format format);
qk_format float_format_of(const std::string &name);  // "f16" to QK_FORMAT_F16
double float_value(qk_format format, const void *element);
