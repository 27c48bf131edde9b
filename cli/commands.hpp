// One struct of options and one function a sub-command; main.cpp fills the former.
#pragma once
#include <string>
#include <vector>

#include "common.hpp"

struct InspectOptions {
    std::string file;
    bool tensors = false;
};
struct VerifyOptions {
    std::string file;
};
struct DequantizeOptions {
    std::string input, output;
    std::vector<std::string> layers;  // patterns; empty: everything
    std::string dtype;                // "": what the weights were before
    std::string original;             // a checkpoint to compare with; "": none
    bool force = false;
};
struct QuantizeOptions {
    std::string input, output;
    std::string format = "nf4";
    std::string dialect;  // "": the format's own
    std::string group;    // "": 64 for nf4 and fp4, 128 for int4
    std::string scales;   // int4; "": the type of the weights
    bool nested = false, asymmetric = false, force = false;
    std::vector<std::string> include;
    std::vector<std::string> exclude;
};
struct ConvertOptions {
    std::string input, output;
    std::string to;  // a word of convert_targets()
    bool force = false;
};
struct MultiplyOptions {
    std::string file, layer;  // layer "": the first quantized one
    int64_t rows = 1;
    std::string dtype = "f32";
    std::string device = "cpu";
    std::string mode = "exact";
    bool packed = false;
    bool explain = false;
    int repeat = 0;  // 0: as often as fits into a quarter of a second
};
struct GruInfoOptions {
    std::string file;
};
struct GruExportOptions {
    std::string input, output;  // output "": standard output
    std::string name;           // of the array; "": as the file
    bool c = false;             // the only language so far
    bool force = false;
};
struct GruQuantizeOptions {
    std::string input, output;
    std::string name;         // of the module; "": the only GRU in the file
    std::string cell = "l0";  // PyTorch's suffix: l0, l1_reverse
    std::string preset = "w8h16";
    std::string ranges = "minmax";
    std::vector<std::string> calibration;
    std::vector<std::string> ranges_in;  // files that ranges_out wrote
    std::string ranges_out;
    std::string test;                     // "": measured on the calibration data alone
    int64_t batch = 0;                    // of .f32 files; 0: [t,c]
    std::vector<std::string> bits;        // TENSOR=BITS
    std::string granularity = "channel";  // of weights and biases
    bool uniform_tables = false, bias_correction = false, headroom = false, h_view_8 = false;
    bool force = false;
};
struct GruRunOptions {
    std::string file, input, output, initial_state, final_state;
    int64_t batch = 0;
    bool codes = false;
    bool count_clipped = false;
    bool force = false;
};

// Dialects that convert writes, as --to spells them.
std::vector<std::string> convert_targets();

ExitCode run_info(const CommonOptions &common);
ExitCode run_inspect(const CommonOptions &common, const InspectOptions &options);
ExitCode run_verify(const CommonOptions &common, const VerifyOptions &options);
ExitCode run_dequantize(const CommonOptions &common, const DequantizeOptions &options);
ExitCode run_quantize(const CommonOptions &common, const QuantizeOptions &options);
ExitCode run_convert(const CommonOptions &common, const ConvertOptions &options);
ExitCode run_multiply(const CommonOptions &common, const MultiplyOptions &options);
ExitCode run_gru_export(const CommonOptions &common, const GruExportOptions &options);
ExitCode run_gru_info(const CommonOptions &common, const GruInfoOptions &options);
ExitCode run_gru_quantize(const CommonOptions &common, const GruQuantizeOptions &options);
ExitCode run_gru_run(const CommonOptions &common, const GruRunOptions &options);
