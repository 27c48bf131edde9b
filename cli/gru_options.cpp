#include "gru_options.hpp"

namespace {

const char *const kArrayHelp =
    "float32 sequences: .npy [t,c] or [t,b,c], or .f32, the values alone";
const char *const kBatchHelp =
    "sequences side by side in files of values alone: [t,b,c]; default: [t,c]";

void add_info(CLI::App *gru, CommonOptions *common, GruInfoOptions *options) {
    CLI::App *command = gru->add_subcommand("info", "sizes, widths, scales and tables");
    command->add_option("file", options->file, "a .qkg file")->required();
    add_common(command, common);
    command->footer("Example:\n  qk gru info denoiser.qkg");
}

void add_quantize(CLI::App *gru, CommonOptions *common, GruQuantizeOptions *options) {
    CLI::App *command =
        gru->add_subcommand("quantize", "PyTorch GRU weights and data to a .qkg file");
    command
        ->add_option("in", options->input,
                     "a checkpoint with NAME.weight_ih_l0, .weight_hh_l0, .bias_ih_l0 and "
                     ".bias_hh_l0 in f32, f16 or bf16")
        ->required();
    command->add_option("out", options->output, "the .qkg file to write")->required();
    command
        ->add_option("--calibrate", options->calibration,
                     std::string(kArrayHelp) + "; may be given again")
        ->required()
        ->allow_extra_args(false);
    command->add_option("--test", options->test, "measure on these sequences as well");
    command->add_option("--name", options->name,
                        "the GRU's name, 'encoder.gru'; default: the only one in the file");
    command->add_option("--cell", options->cell,
                        "PyTorch's suffix of one layer and direction: l1, l0_reverse; default: l0");
    command->add_option("--preset", options->preset, "weights and activations; default: w8h16")
        ->check(CLI::IsMember({"w8a8", "w8h16", "w8a16", "w16a16"}));
    command->add_option("--ranges", options->ranges, "default: minmax")
        ->check(CLI::IsMember({"minmax", "moving", "mse"}));
    command->add_flag("--uniform-tables", options->uniform_tables,
                      "smoother gate tables; w8h16 has them");
    command->add_flag("--bias-correction", options->bias_correction,
                      "biases take back the mean error of the weights; w8h16 has it");
    command->add_flag("--headroom", options->headroom, "twice the seen ranges, beyond 8 bits");
    command->add_flag("--h-view-8", options->h_view_8,
                      "R multiplies the high 8 bits of a wider state; w8h16 has it");
    command
        ->add_option("--bits", options->bits,
                     "TENSOR=BITS, 4 to 16, of biases to 32: one of 'qk gru info' by its name; may "
                     "be given again")
        ->allow_extra_args(false);
    command->add_option("--granularity", options->granularity,
                        "scales of weights and biases; default: channel")
        ->check(CLI::IsMember({"tensor", "gate", "channel"}));
    command->add_option("--batch", options->batch, kBatchHelp)->check(CLI::Range(1, 65535));
    command->add_flag("--force", options->force, "replace an existing file");
    add_common(command, common);
    add_threads(command, common);
    command->footer(
        "Reports SQNR, 10 log10(sum h^2 / sum (h - hq)^2) over the hidden states, in dB.\n"
        "Examples:\n  qk gru quantize model.safetensors gru.qkg --calibrate x.npy --test y.npy\n"
        "  qk gru quantize model/ back.qkg --name encoder --cell l0_reverse --calibrate x.npy");
}

void add_run(CLI::App *gru, CommonOptions *common, GruRunOptions *options) {
    CLI::App *command = gru->add_subcommand("run", "sequences in, hidden states out");
    command->add_option("file", options->file, "a .qkg file")->required();
    command
        ->add_option("input", options->input,
                     "sequences, .npy [t,c] or [t,b,c], or the values alone: float32 (.f32) or the "
                     "GRU's codes (.i8, .i16)")
        ->required();
    command
        ->add_option("output", options->output,
                     "a .npy, .f32, .i8 or .i16 to write: [t,h] or [t,b,h]")
        ->required();
    command->add_option("--initial-state", options->initial_state,
                        "float32 states to start from, .npy or .f32 [b,h]; default: zero");
    command->add_option("--final-state", options->final_state,
                        "a .npy or .f32 to write the last states to, [b,h]");
    command->add_flag("--codes", options->codes, "write a .npy of codes instead of float32");
    command->add_option("--batch", options->batch, kBatchHelp)->check(CLI::Range(1, 65535));
    command->add_flag("--force", options->force, "replace existing files");
    add_common(command, common);
    add_threads(command, common);
    command->footer(
        "Reads and writes piece by piece: memory does not grow with the length.\n"
        "Examples:\n  qk gru run gru.qkg x.npy h.npy\n"
        "  qk gru run gru.qkg monday.f32 h1.f32 --final-state s.f32\n"
        "  qk gru run gru.qkg tuesday.f32 h2.f32 --initial-state s.f32\n"
        "  qk gru run gru.qkg x.i8 h.i8");
}

}  // namespace

void add_common(CLI::App *command, CommonOptions *common) {
    command->add_flag("--json", common->json, "print one JSON object to stdout");
    command->add_flag("-q,--quiet", common->quiet, "no notes and no progress bar on stderr");
}

void add_threads(CLI::App *command, CommonOptions *common) {
    command->add_option("--threads", common->threads, "CPU threads; 0: all cores")
        ->check(CLI::Range(0, 1024));
}

void add_gru(CLI::App *app, CommonOptions *common, GruOptions *options) {
    CLI::App *gru = app->add_subcommand("gru", "integer GRUs: info, quantize, run");
    gru->require_subcommand(1);
    gru->footer("'qk gru COMMAND --help' has examples.");
    add_info(gru, common, &options->info);
    add_quantize(gru, common, &options->quantize);
    add_run(gru, common, &options->run);
}

ExitCode run_gru(const CLI::App &app, const CommonOptions &common, const GruOptions &options) {
    const CLI::App *gru = app.get_subcommand("gru");
    if (gru->got_subcommand("info")) return run_gru_info(common, options.info);
    if (gru->got_subcommand("quantize")) return run_gru_quantize(common, options.quantize);
    return run_gru_run(common, options.run);
}
