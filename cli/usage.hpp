// The command line's own words: help that fits a terminal, and one sentence for what is wrong.
#pragma once
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

// The option takes one of these words.
CLI::Option *one_of(CLI::Option *option, const std::vector<std::string> &words);
// The option takes a whole number in decimal.
CLI::Option *whole_number(CLI::Option *option, int64_t smallest, int64_t largest);
// The option takes one or more values, and may be given again.
CLI::Option *several(CLI::Option *option, const char *value);
// For the program and all its commands: help fits 80 columns, and no value is empty.
void finish_commands(CLI::App *app);
// Every value of an option that takes several gets the option's name in front. Of the words behind
// such an option the last ones are the command's own when it has not got enough otherwise:
// "--exclude A B IN OUT".
std::vector<std::string> spread_values(const CLI::App &app, std::vector<std::string> words);
// Why the command line is refused.
std::string usage_sentence(const CLI::App &app, const CLI::ParseError &error);
