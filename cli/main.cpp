// The command line: what exists, what it is called, and what a failure turns into.
#include <cstdio>
#include <exception>
#include <new>

#include <CLI/CLI.hpp>

#include "commands.hpp"
#include "gru_options.hpp"
#include "progress.hpp"

namespace {

struct AllOptions {
    CommonOptions common;
    InspectOptions inspect;
    VerifyOptions verify;
    DequantizeOptions dequantize;
    QuantizeOptions quantize;
    MultiplyOptions multiply;
    GruOptions gru;
};

const char *const kFileHelp =
    "a .safetensors file, a model.safetensors.index.json, or a directory with either";
const char *const kOutHelp =
    "a file named *.safetensors, or a directory (made when missing) that gets "
    "model.safetensors and config.json";

void add_reading(CLI::App *app, AllOptions *all) {
    CLI::App *info = app->add_subcommand("info", "version, build, devices");
    add_common(info, &all->common);

    CLI::App *inspect = app->add_subcommand("inspect", "list the layers of a checkpoint");
    inspect->add_option("file", all->inspect.file, kFileHelp)->required();
    inspect->add_flag("--tensors", all->inspect.tensors, "list every tensor of the files too");
    add_common(inspect, &all->common);
    inspect->footer("Example:\n  qk inspect model.safetensors\n  qk inspect --json model/");

    CLI::App *verify = app->add_subcommand(
        "verify", "read and decode everything; exit code 1 when something is wrong");
    verify->add_option("file", all->verify.file, kFileHelp)->required();
    add_common(verify, &all->common);
    add_threads(verify, &all->common);
    verify->footer("Example:\n  qk verify model/ && echo sound");
}

void add_dequantize(CLI::App *app, AllOptions *all) {
    DequantizeOptions *options = &all->dequantize;
    CLI::App *command = app->add_subcommand("dequantize", "write the weights as dense tensors");
    command->add_option("in", options->input, kFileHelp)->required();
    command->add_option("out", options->output, kOutHelp)->required();
    command->add_option("--layer", options->layers,
                        "only layers that match this pattern, and nothing else of the file; "
                        "may be given again")
        ->allow_extra_args(false);
    command->add_option("--dtype", options->dtype, "default: what the weights were before")
        ->check(CLI::IsMember({"f16", "bf16", "f32"}));
    command->add_flag("--force", options->force, "replace existing files");
    add_common(command, &all->common);
    add_threads(command, &all->common);
    command->footer(
        "Examples:\n  qk dequantize model-awq/ model-f16/ --dtype f16\n"
        "  qk dequantize model.safetensors one.safetensors --layer '*.0.mlp.up_proj'");
}

void add_quantize(CLI::App *app, AllOptions *all) {
    QuantizeOptions *options = &all->quantize;
    CLI::App *command = app->add_subcommand(
        "quantize", "write 4-bit weights that bitsandbytes or compressed-tensors can load");
    command->add_option("in", options->input, kFileHelp)->required();
    command->add_option("out", options->output, kOutHelp)->required();
    command->add_option("--format", options->format, "default: nf4")
        ->check(CLI::IsMember({"nf4", "fp4", "int4"}));
    command->add_option("--dialect", options->dialect,
                        "default: bitsandbytes for nf4 and fp4, compressed-tensors for int4")
        ->check(CLI::IsMember({"bitsandbytes", "compressed-tensors"}));
    command->add_option("--group,--block", options->group,
                        "weights per scale: nf4 and fp4 32, 64, ... 4096 (default 64); "
                        "int4 16 to 4096 or 'row' (default 128)");
    command->add_flag("--nested", options->nested, "nf4 and fp4: scales as 8-bit codes");
    command->add_flag("--asymmetric", options->asymmetric, "int4: with zero points");
    command->add_option("--scales", options->scales, "int4; default: the type of the weights")
        ->check(CLI::IsMember({"f16", "bf16", "f32"}));
    command->add_option("--include", options->include,
                        "only layers that match this pattern; may be given again")
        ->allow_extra_args(false);
    command->add_option("--exclude", options->exclude,
                        "layers to leave dense; may be given again; default: " +
                            CLI::detail::join(default_excludes(), " "))
        ->allow_extra_args(false);
    command->add_flag("--force", options->force, "replace existing files");
    add_common(command, &all->common);
    add_threads(command, &all->common);
    command->footer(
        "Tensors that are not [n,k] weights of a layer are copied unchanged.\n"
        "Examples:\n  qk quantize model/ model-nf4/ --format nf4 --nested\n"
        "  qk quantize model/ model-w4a16/ --format int4 --group 128\n"
        "  qk quantize in.safetensors out.safetensors --include '*mlp*'");
}

void add_multiply(CLI::App *app, AllOptions *all) {
    MultiplyOptions *options = &all->multiply;
    CLI::App *command = app->add_subcommand(
        "multiply", "y = x . transpose(w) with random x: time, and error against double");
    command->add_option("file", options->file, kFileHelp)->required();
    command->add_option("layer", options->layer, "default: the first quantized layer");
    command->add_option("--rows", options->rows, "rows of x; default: 1")
        ->check(CLI::Range(1, 65536));
    command->add_option("--dtype", options->dtype, "type of x and y; default: f32")
        ->check(CLI::IsMember({"f16", "bf16", "f32"}));
    command->add_option("--device", options->device, "cpu (default), cuda or cuda:INDEX");
    command
        ->add_option("--mode", options->mode,
                     "what the CPU may round: nothing (exact, the default), products to bf16, x to "
                     "int8")
        ->check(CLI::IsMember({"exact", "bf16", "int8"}));
    command->add_flag("--packed", options->packed,
                      "repack the weight first, as programs do once, when they load");
    command->add_option("--repeat", options->repeat, "runs to time; default: 0.25 s of them")
        ->check(CLI::Range(1, 1000000));
    add_common(command, &all->common);
    add_threads(command, &all->common);
    command->footer(
        "Examples:\n  qk multiply model.safetensors model.layers.0.mlp.up_proj\n"
        "  qk multiply model.safetensors --packed --mode int8");
}

ExitCode dispatch(const CLI::App &app, const AllOptions &all) {
    if (app.got_subcommand("info")) return run_info(all.common);
    if (app.got_subcommand("inspect")) return run_inspect(all.common, all.inspect);
    if (app.got_subcommand("verify")) return run_verify(all.common, all.verify);
    if (app.got_subcommand("dequantize")) return run_dequantize(all.common, all.dequantize);
    if (app.got_subcommand("quantize")) return run_quantize(all.common, all.quantize);
    if (app.got_subcommand("gru")) return run_gru(app, all.common, all.gru);
    return run_multiply(all.common, all.multiply);
}

int fail(ExitCode code, const char *sentence) {
    std::fprintf(stderr, "qk: %s\n", printable(sentence).c_str());
    return code;
}

int run(const CLI::App &app, const AllOptions &all) {
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
    CLI::App app{"4-bit checkpoints and integer GRUs", "qk"};
    app.require_subcommand(1);
    app.set_version_flag("--version", qk_build_info());
    app.footer("Exit codes: 0 done, 1 failed or faults found, 2 wrong command line, 3 file "
               "unreadable or damaged, 4 not supported.\n'qk COMMAND --help' has examples.");
    AllOptions all;
    add_reading(&app, &all);
    add_dequantize(&app, &all);
    add_quantize(&app, &all);
    add_multiply(&app, &all);
    add_gru(&app, &all.common, &all.gru);
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError &error) {
        return app.exit(error) == 0 ? kOk : kUsage;
    }
    catch_signals();
    return run(app, all);
}
