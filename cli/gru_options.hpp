// The command line of `qk gru`, and the options that every command has.
#pragma once
#include <CLI/CLI.hpp>

#include "commands.hpp"

struct GruOptions {
    GruExportOptions to_source;
    GruInfoOptions info;
    GruQuantizeOptions quantize;
    GruRunOptions run;
};

void add_common(CLI::App *command, CommonOptions *common);
void add_isa(CLI::App *command, CommonOptions *common);
// --threads and --isa, for commands that compute.
void add_threads(CLI::App *command, CommonOptions *common);
void add_gru(CLI::App *app, CommonOptions *common, GruOptions *options);
ExitCode run_gru(const CLI::App &app, const CommonOptions &common, const GruOptions &options);
