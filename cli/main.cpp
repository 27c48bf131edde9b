// The command line: what exists, what it is called, and what a failure turns into.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>

#include <CLI/CLI.hpp>

#include "commands.hpp"
#include "dense.hpp"
#include "gru_options.hpp"
#include "instruction_sets.hpp"
#include "mapped.hpp"
#include "os.hpp"
#include "progress.hpp"
#include "scheme.hpp"
#include "usage.hpp"

namespace {

struct AllOptions {
    CommonOptions common;
    InspectOptions inspect;
    VerifyOptions verify;
    DequantizeOptions dequantize;
    QuantizeOptions quantize;
    ConvertOptions convert;
    MultiplyOptions multiply;
    GruOptions gru;
};

const char *const kFileHelp =
    "a .safetensors or .gguf file, a model.safetensors.index.json, or a directory with one of "
    "them";
const char *const kOutHelp =
    "a file named *.safetensors or *.gguf, or a directory, made when missing, for "
    "model.safetensors and config.json";
const std::vector<std::string> kFloats = {"f16", "bf16", "f32"};

void add_reading(CLI::App *app, AllOptions *all) {
    CLI::App *info = app->add_subcommand("info", "show version, build, devices and what runs");
    add_common(info, &all->common);
    add_threads(info, &all->common);

    CLI::App *inspect = app->add_subcommand("inspect", "list the layers of a checkpoint");
    inspect->add_option("FILE", all->inspect.file, kFileHelp)->required();
    inspect->add_flag("--tensors", all->inspect.tensors, "list every tensor in the files, too");
    add_common(inspect, &all->common);
    inspect->footer("Examples:\n  qk inspect model.safetensors\n  qk inspect --json model/");

    CLI::App *verify = app->add_subcommand(
        "verify", "read and decode everything; exit code 1 if anything is wrong");
    verify->add_option("FILE", all->verify.file, kFileHelp)->required();
    add_common(verify, &all->common);
    add_threads(verify, &all->common);
    verify->footer("Example:\n  qk verify model/ && echo sound");
}

void add_dequantize(CLI::App *app, AllOptions *all) {
    DequantizeOptions *options = &all->dequantize;
    CLI::App *command =
        app->add_subcommand("dequantize", "turn quantized weights back into dense ones");
    command->add_option("IN", options->input, kFileHelp)->required();
    command->add_option("OUT", options->output, kOutHelp)->required();
    several(command->add_option("--layer", options->layers,
                                "write only the layers that match a pattern, nothing else"),
            "PATTERN");
    one_of(command->add_option("--dtype", options->dtype,
                               "type of the weights; default: what they were before"),
           kFloats);
    command
        ->add_option("--report", options->original,
                     "the checkpoint that was quantized: print each layer's error against it")
        ->type_name("ORIGINAL");
    command->add_flag("--force", options->force, "replace existing files");
    add_common(command, &all->common);
    add_threads(command, &all->common);
    command->footer(
        "Patterns are the shell's (*, ?, [...]); quote them. * also matches dots.\n"
        "Examples:\n  qk dequantize model-awq/ model-f16/ --dtype f16\n"
        "  qk dequantize model-awq/ model-f16/ --report model/\n"
        "  qk dequantize model.safetensors one.safetensors --layer '*.0.mlp.up_proj'");
}

void add_quantize(CLI::App *app, AllOptions *all) {
    QuantizeOptions *options = &all->quantize;
    CLI::App *command = app->add_subcommand(
        "quantize", "write 4-bit and 8-bit weights as Python's packages load them");
    command->add_option("IN", options->input, kFileHelp)->required();
    command->add_option("OUT", options->output, kOutHelp)->required();
    one_of(command->add_option("--format", options->format, "default: nf4"), quantize_formats());
    one_of(command->add_option("--dialect", options->dialect,
                               "default: bitsandbytes for nf4 and fp4, gguf for q4_0 and q8_0, "
                               "compressed-tensors for others"),
           quantize_dialects());
    command
        ->add_option("--group,--block", options->group,
                     "weights per scale. nf4 and fp4: 32, 64, 128 ... 4096, default 64; int4 and "
                     "int8: 16 to 4096, or 'row' for one scale a row, default 128 and row; mxfp4: "
                     "32; nvfp4: 16; q4_0 and q8_0: 32")
        ->type_name("N");
    command->add_flag("--nested", options->nested, "nf4 and fp4: store scales in 8 bits");
    command->add_flag("--asymmetric", options->asymmetric, "int4: store zero points");
    one_of(command->add_option("--scales", options->scales,
                               "int4 and int8: type of the scales; default: that of the weights"),
           kFloats);
    several(command->add_option("--include", options->include,
                                "quantize only the layers that match a pattern"),
            "PATTERN");
    several(command->add_option("--exclude", options->exclude,
                                "leave the layers that match a pattern dense; default: " +
                                    CLI::detail::join(default_excludes(), " ")),
            "PATTERN");
    command->add_flag("--force", options->force, "replace existing files");
    add_common(command, &all->common);
    add_threads(command, &all->common);
    command->footer(
        "Patterns are the shell's (*, ?, [...]); quote them. * also matches dots.\n"
        "What is no weight of a layer or of experts is copied unchanged.\n"
        "Examples:\n  qk quantize model/ model-nf4/ --format nf4 --nested\n"
        "  qk quantize model/ model-w4a16/ --format int4 --group 128\n"
        "  qk quantize model/ model-awq/ --format int4 --dialect awq\n"
        "  qk quantize gpt-oss/ gpt-oss-mxfp4/ --format mxfp4 --dialect gpt-oss\n"
        "  qk quantize model/ model-mlp/ --include '*mlp*' --exclude '*.0.*' '*.1.*'");
}

void add_convert(CLI::App *app, AllOptions *all) {
    ConvertOptions *options = &all->convert;
    CLI::App *command =
        app->add_subcommand("convert", "write the same weights, bit for bit, in another dialect");
    command->add_option("IN", options->input, kFileHelp)->required();
    command->add_option("OUT", options->output, kOutHelp)->required();
    one_of(command->add_option("--to", options->to, "the dialect")->required(), convert_targets());
    command->add_flag("--force", options->force, "replace existing files");
    add_common(command, &all->common);
    add_threads(command, &all->common);
    command->footer(
        "What the other dialect cannot hold is refused with what would be lost, and nothing is\n"
        "written. docs/cli.md has a table of what fits where.\n"
        "Examples:\n  qk convert model-awq/ model-w4a16/ --to compressed-tensors\n"
        "  qk convert model-gptq/ model-awq/ --to awq");
}

void add_multiply(CLI::App *app, AllOptions *all) {
    MultiplyOptions *options = &all->multiply;
    CLI::App *command = app->add_subcommand(
        "multiply", "multiply random x by a layer: the time, and the error against double");
    command->add_option("FILE", options->file, kFileHelp)->required();
    command->add_option("LAYER", options->layer, "default: the first quantized layer");
    whole_number(command->add_option("--rows", options->rows, "rows of x, 1 to 65536; default: 1"),
                 1, 65536);
    one_of(command->add_option("--dtype", options->dtype, "type of x and y; default: f32"),
           kFloats);
    command->add_option("--device", options->device, "cpu (default), cuda or cuda:INDEX")
        ->type_name("DEVICE");
    one_of(command->add_option("--mode", options->mode,
                               "what the CPU may round: nothing more (exact, the default), "
                               "products to bf16, or x to int8"),
           {"exact", "bf16", "int8"});
    command->add_flag("--packed", options->packed,
                      "repack the weight first, as programs do once, when they load it");
    command->add_flag("--explain", options->explain,
                      "say which kernel runs, its workspace and batch class, and why not a "
                      "faster one");
    whole_number(command->add_option("--repeat", options->repeat,
                                     "timed runs, 1 to 1000000; default: what fits into 0.25 s"),
                 1, 1000000);
    add_common(command, &all->common);
    add_threads(command, &all->common);
    command->footer(
        "y = x . transpose(w) + bias.\n"
        "Examples:\n  qk multiply model.safetensors model.layers.0.mlp.up_proj\n"
        "  qk multiply model.safetensors --packed --mode int8");
}

ExitCode dispatch(const CLI::App &app, AllOptions &all) {
    all.common.instruction_sets = instruction_sets_of(all.common.isa);
    if (app.got_subcommand("info")) return run_info(all.common);
    if (app.got_subcommand("inspect")) return run_inspect(all.common, all.inspect);
    if (app.got_subcommand("verify")) return run_verify(all.common, all.verify);
    if (app.got_subcommand("dequantize")) return run_dequantize(all.common, all.dequantize);
    if (app.got_subcommand("quantize")) return run_quantize(all.common, all.quantize);
    if (app.got_subcommand("convert")) return run_convert(all.common, all.convert);
    if (app.got_subcommand("gru")) return run_gru(app, all.common, all.gru);
    return run_multiply(all.common, all.multiply);
}

int fail(ExitCode code, const char *sentence) {
    std::fprintf(stderr, "qk: %s\n", printable(sentence).c_str());
    return code;
}

int run(const CLI::App &app, AllOptions &all) {
    try {
        const ExitCode code = dispatch(app, all);
        // A full disk behind a redirection shows only here.
        if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
            return fail(kFile, "cannot write to standard output");
        }
        return code;
    } catch (const Interrupted &) {
        die_of_signal();
    } catch (const Failure &failure) {
        return fail(failure.code(), failure.what());
    } catch (const std::bad_alloc &) {
        return fail(kFailed, "out of memory");
    } catch (const std::exception &error) {
        return fail(kFailed, error.what());
    }
}

}  // namespace

int main(int argc, char **argv) {
    CLI::App app{"looks into 4-bit checkpoints, checks and converts them; runs integer GRUs", "qk"};
    app.allow_windows_style_options(false);  // a path may begin with a slash there too
    app.require_subcommand(1);
    app.set_version_flag("--version", qk_build_info(), "print version and build");
    app.footer(
        "Exit codes: 0 done, 1 failed or faults found, 2 wrong command line, 3 a file\n"
        "cannot be used or is damaged, 4 not supported.\n"
        "'qk COMMAND --help' lists the options and has examples.");
    AllOptions all;
    add_isa(&app, &all.common);
    add_reading(&app, &all);
    add_dequantize(&app, &all);
    add_quantize(&app, &all);
    add_convert(&app, &all);
    add_multiply(&app, &all);
    add_gru(&app, &all.common, &all.gru);
    finish_commands(&app);
    try {
        std::vector<std::string> given = os::start(argc, argv);
        if (!given.empty()) given.erase(given.begin());  // its own name
        std::vector<std::string> words = spread_values(app, given);
        std::reverse(words.begin(), words.end());
        app.parse(words);
    } catch (const CLI::ParseError &error) {
        if (error.get_exit_code() == 0) return app.exit(error);
        return fail(kUsage, usage_sentence(app, error).c_str());
    }
    catch_signals();
    catch_shrinking();
    return run(app, all);
}
