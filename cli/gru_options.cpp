#include "gru_options.hpp"

#include "instruction_sets.hpp"
#include "usage.hpp"

namespace {

const char *const kArrayHelp =
    "float32 sequences: .npy [t,c] or [t,b,c], or .f32, which holds the values alone";
const char *const kBatchHelp =
    "sequences side by side, 1 to 65535, in files that hold values alone: [t,b,c]; default: [t,c]";

void add_info(CLI::App *gru, CommonOptions *common, GruInfoOptions *options) {
    CLI::App *command = gru->add_subcommand("info", "show sizes, widths, scales and tables");
    command->add_option("FILE", options->file, "a .qkg file")->required();
    add_common(command, common);
    command->footer("Example:\n  qk gru info denoiser.qkg");
}

void add_export(CLI::App *gru, CommonOptions *common, GruExportOptions *options) {
    CLI::App *command = gru->add_subcommand("export", "write a .qkg file as source for firmware");
    command->add_option("FILE", options->input, "a .qkg file")->required();
    command->add_option("OUT", options->output,
                        "the .c file to write, or an .h with the array in it; default: standard "
                        "output");
    command->add_flag("--c", options->c, "as an array in C")->required();
    command
        ->add_option("--name", options->name, "what C calls the array; default: as OUT is called")
        ->type_name("NAME");
    command->add_flag("--force", options->force, "replace an existing file");
    add_common(command, common);
    command->footer("Example:\n  qk gru export --c denoiser.qkg denoiser.c");
}

void add_quantize(CLI::App *gru, CommonOptions *common, GruQuantizeOptions *options) {
    CLI::App *command =
        gru->add_subcommand("quantize", "turn a PyTorch GRU and sample data into a .qkg file");
    command
        ->add_option("IN", options->input,
                     "a checkpoint with NAME.weight_ih_l0, .weight_hh_l0, .bias_ih_l0 and "
                     ".bias_hh_l0 in f32, f16 or bf16")
        ->required();
    command->add_option("OUT", options->output, "the .qkg file to write")->required();
    several(command->add_option("--calibrate", options->calibration, kArrayHelp), "DATA");
    several(command->add_option("--ranges-in", options->ranges_in,
                                "what other runs saw, joined with --calibrate or instead of it"),
            "JSON");
    command
        ->add_option("--ranges-out", options->ranges_out,
                     "a file to write what calibration saw to, for --ranges-in")
        ->type_name("JSON");
    command->add_option("--test", options->test, "measure the error on these sequences, too")
        ->type_name("DATA");
    command
        ->add_option("--name", options->name,
                     "name of the GRU, 'encoder.gru'; default: the only one in the file")
        ->type_name("NAME");
    command
        ->add_option("--cell", options->cell,
                     "PyTorch's suffix of one layer and direction: l1, l0_reverse; default: l0")
        ->type_name("SUFFIX");
    one_of(command->add_option("--preset", options->preset,
                               "bits of weights and activations; default: w8h16"),
           {"w8a8", "w8h16", "w8a16", "w16a16"});
    one_of(command->add_option("--ranges", options->ranges,
                               "how ranges follow from the data; default: minmax"),
           {"minmax", "moving", "mse"});
    command->add_flag("--uniform-tables", options->uniform_tables,
                      "smoother gate tables; w8h16 has them");
    command->add_flag("--bias-correction", options->bias_correction,
                      "let biases take back the mean error of the weights; w8h16 does");
    command->add_flag("--headroom", options->headroom,
                      "twice the ranges seen, for what has more than 8 bits");
    command->add_flag("--h-view-8", options->h_view_8,
                      "let R multiply the high 8 bits of a wider state; w8h16 does");
    several(command->add_option("--bits", options->bits,
                                "4 to 16 bits, biases up to 32, for a tensor that 'qk gru info' "
                                "names"),
            "TENSOR=BITS");
    one_of(command->add_option("--granularity", options->granularity,
                               "what shares a scale of weights and biases; default: channel"),
           {"tensor", "gate", "channel"});
    whole_number(command->add_option("--batch", options->batch, kBatchHelp), 1, 65535);
    command->add_flag("--force", options->force, "replace an existing file");
    add_common(command, common);
    add_threads(command, common);
    command->footer(
        "Reports SQNR, 10 log10(sum h^2 / sum (h - hq)^2) over the hidden states, in dB.\n"
        "Examples:\n  qk gru quantize model.safetensors gru.qkg --calibrate x.npy --test y.npy\n"
        "  qk gru quantize model/ back.qkg --cell l0_reverse --calibrate x.npy");
}

void add_run(CLI::App *gru, CommonOptions *common, GruRunOptions *options) {
    CLI::App *command = gru->add_subcommand("run", "turn sequences into hidden states");
    command->add_option("FILE", options->file, "a .qkg file")->required();
    command
        ->add_option("INPUT", options->input,
                     "sequences, .npy [t,c] or [t,b,c], or the values alone: float32 (.f32) or the "
                     "GRU's codes (.i8, .i16)")
        ->required();
    command
        ->add_option("OUTPUT", options->output,
                     "the .npy, .f32, .i8 or .i16 file to write: [t,h] or [t,b,h]")
        ->required();
    command
        ->add_option("--initial-state", options->initial_state,
                     "float32 states to start from, .npy or .f32 [b,h]; default: zero")
        ->type_name("STATES");
    command
        ->add_option("--final-state", options->final_state,
                     "a .npy or .f32 to write the last states to, [b,h]")
        ->type_name("STATES");
    command->add_flag("--codes", options->codes, "write a .npy of codes instead of float32");
    command->add_flag("--count-clipped", options->count_clipped,
                      "count the codes that did not fit their calibrated range; much slower");
    whole_number(command->add_option("--batch", options->batch, kBatchHelp), 1, 65535);
    command->add_flag("--force", options->force, "replace existing files");
    add_common(command, common);
    add_threads(command, common);
    command->footer(
        "Works piece by piece: memory does not grow with the length.\n"
        "Examples:\n  qk gru run gru.qkg x.npy h.npy\n"
        "  qk gru run gru.qkg monday.f32 h1.f32 --final-state s.f32\n"
        "  qk gru run gru.qkg tuesday.f32 h2.f32 --initial-state s.f32\n"
        "  qk gru run gru.qkg x.i8 h.i8");
}

}  // namespace

void add_common(CLI::App *command, CommonOptions *common) {
    command->add_flag("--json", common->json, "print one JSON object instead of text");
    command->add_flag("-q,--quiet", common->quiet, "no notes and no progress bar");
}

void add_isa(CLI::App *command, CommonOptions *common) {
    command
        ->add_option("--isa", common->isa,
                     "the newest instruction sets that the CPU may use: " +
                         known_instruction_sets() + "; several with commas")
        ->type_name("SETS");
}

void add_threads(CLI::App *command, CommonOptions *common) {
    whole_number(command->add_option("--threads", common->threads,
                                     "CPU threads, up to 1024; default: 0, one for each core"),
                 0, 1024);
    add_isa(command, common);
}

void add_gru(CLI::App *app, CommonOptions *common, GruOptions *options) {
    CLI::App *gru = app->add_subcommand("gru", "integer GRUs: quantize, run, info, export");
    gru->require_subcommand(1);
    gru->footer("'qk gru COMMAND --help' lists the options and has examples.");
    add_export(gru, common, &options->to_source);
    add_info(gru, common, &options->info);
    add_quantize(gru, common, &options->quantize);
    add_run(gru, common, &options->run);
}

ExitCode run_gru(const CLI::App &app, const CommonOptions &common, const GruOptions &options) {
    const CLI::App *gru = app.get_subcommand("gru");
    if (gru->got_subcommand("export")) return run_gru_export(common, options.to_source);
    if (gru->got_subcommand("info")) return run_gru_info(common, options.info);
    if (gru->got_subcommand("quantize")) return run_gru_quantize(common, options.quantize);
    return run_gru_run(common, options.run);
}
