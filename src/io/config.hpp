// What a model's configuration says about its quantization, as far as reading needs it.
#pragma once
#include "memory.hpp"
#include "message.hpp"

struct qk_checkpoint;

namespace qk_io {

// kAutoRound while a configuration is read: its packing format turns it into one of the others.
// kGguf is no configuration's: the file is one.
enum class Method {
    kNone,
    kAwq,
    kGptq,
    kCompressedTensors,
    kBitsandbytes,
    kAutoRound,
    kGguf,
    kOther
};

struct Scheme {                // weights of one compressed-tensors config group
    int64_t bits, group_size;  // group_size 0: not given
    int64_t block[2];          // rows and columns of w; 0: not given
    bool symmetric;
    char type[16], strategy[16], actorder[16], format[32];
};

struct Config {
    Method method;
    char method_name[48];
    const char *detail_key;  // "quant_algo": what says more than the method, where one does
    char detail[48];
    int64_t bits, group_size;  // 0: not given
    int64_t block[2];          // weight_block_size, rows and columns; 0: not given
    bool desc_act;
    bool differs;                // it has settings for single layers
    bool transforms;             // it transforms activations in front of the layers
    char version[32];            // AutoAWQ
    char checkpoint_format[32];  // GPTQ; format of compressed-tensors
    const Scheme *schemes;
    int64_t scheme_count;
};

qk_format format_named(const char *dtype);  // of PyTorch's "bfloat16"; 0: another

// text: one of the four files; `what` names it in sentences. Leaves *found alone when the text
// says nothing about quantization.
qk_status read_config(qk_checkpoint *checkpoint, const char *text, size_t bytes, const char *what,
                      bool *found, qk_io_message *message);

}  // namespace qk_io
