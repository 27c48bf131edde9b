#include "usage.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "nearest.hpp"

namespace {

constexpr size_t kColumns = 80, kIndent = 26;

// Words in lines that end before kColumns; lines after the first start at `indent`.
std::string wrapped(const std::string &text, size_t column, size_t indent) {
    std::string result, word;
    for (const char c : text + " ") {
        if (c != ' ') {
            word += c;
            continue;
        }
        if (column > indent && column + 1 + word.size() >= kColumns) {
            result += "\n" + std::string(indent, ' ');
            column = indent;
        } else if (column > indent) {
            result += " ";
            ++column;
        }
        result += word;
        column += word.size();
        word.clear();
    }
    return result;
}

class Help : public CLI::Formatter {
  public:
    std::string make_description(const CLI::App *app) const override {
        std::string text = app->get_description();
        text[0] = static_cast<char>(std::toupper(text[0]));
        return text + ".\n";
    }
    std::string make_option(const CLI::Option *option, bool positional) const override {
        const bool wanted = option->get_required() && !positional;
        return row(
            make_option_name(option, positional) + (positional ? "" : make_option_opts(option)),
            option->get_description() + (wanted ? "; required" : ""));
    }
    std::string make_option_opts(const CLI::Option *option) const override {
        if (option->get_type_size() == 0) return "";
        return " " + option->get_type_name();
    }
    std::string make_subcommand(const CLI::App *command) const override {
        return row(command->get_name(), command->get_description());
    }

  private:
    static std::string row(const std::string &name, const std::string &text) {
        std::string line = "  " + name;
        if (line.size() + 2 > kIndent) line += "\n" + std::string(kIndent, ' ');
        if (line.size() < kIndent) line.resize(kIndent, ' ');
        return line + wrapped(text, kIndent, kIndent) + "\n";
    }
};

// The command that something is wrong with: the first with words it does not know, or the last.
const CLI::App &faulty(const CLI::App &app) {
    const std::vector<CLI::App *> chosen = app.get_subcommands();
    return chosen.empty() || app.remaining_size() > 0 ? app : faulty(*chosen.front());
}

std::string full_name(const CLI::App &app) {
    if (app.get_parent() == nullptr) return app.get_name();
    return full_name(*app.get_parent()) + " " + app.get_name();
}

bool is_option(const std::string &word) {
    return word.size() > 1 && word[0] == '-' && word != "--";
}

// "--rows=3" names "--rows".
std::string option_name(const std::string &word) { return word.substr(0, word.find('=')); }

std::string guess(const std::string &word, const std::vector<std::string> &words) {
    const std::string near = nearest(word, words);
    return near.empty() ? "" : "; did you mean '" + near + "'?";
}

std::vector<std::string> command_names(const CLI::App &app) {
    std::vector<std::string> names;
    for (const CLI::App *command : app.get_subcommands({})) names.push_back(command->get_name());
    return names;
}

std::vector<std::string> option_names(const CLI::App &app) {
    std::vector<std::string> names;
    for (const CLI::Option *option : app.get_options()) {
        for (const std::string &name : option->get_lnames()) names.push_back("--" + name);
    }
    return names;
}

std::string join(const std::vector<std::string> &words) {
    std::string text;
    for (size_t i = 0; i < words.size(); ++i) {
        text += (i == 0 ? "" : i + 1 == words.size() ? " or " : ", ") + words[i];
    }
    return text;
}

// Without where to read more.
std::string complaint(const CLI::App &app, const CLI::ParseError &error) {
    const std::string name = full_name(app);
    const std::vector<std::string> extras = app.remaining();
    for (const std::string &word : extras) {
        if (!is_option(word)) continue;
        return "'" + word + "' is not an option of " + name +
               (app.get_subcommands().empty() ? guess(option_name(word), option_names(app))
                                              : "; a command's options follow its name");
    }
    const std::vector<std::string> commands = command_names(app);
    if (!commands.empty()) {
        if (extras.empty()) return "a command is needed: " + join(commands);
        return "'" + extras[0] + "' is not a command of " + name + guess(extras[0], commands);
    }
    if (!extras.empty()) {
        return "'" + extras[0] + "' is one argument too many for " + name;
    }
    std::string said = error.what();
    if (error.get_name() == "RequiredError") {
        return name.substr(sizeof "qk") + " needs " + said.substr(0, said.find(' '));
    }
    const std::string option = said.substr(0, said.find(": "));
    if (error.get_name() == "ValidationError") return said.erase(option.size(), 1);
    if (error.get_name() == "ArgumentMismatch") {
        const bool twice = said.find("At Most") != std::string::npos;
        return option + (twice ? " may be given once" : " needs a value");
    }
    if (error.get_name() == "ConversionError") {
        const size_t begin = said.find('-');
        return said.substr(begin, said.find(' ', begin) - begin) + " takes no value";
    }
    std::replace(said.begin(), said.end(), '\n', ' ');
    return said;
}

std::string shown(const std::string &value) { return value.empty() ? "''" : value; }

bool takes_several(const CLI::Option *option) {
    return option->get_expected_max() == CLI::detail::expected_max_vector_size;
}

int64_t needed_words(const CLI::App &app) {
    int64_t needed = 0;
    for (const CLI::Option *option : app.get_options()) {
        needed += option->get_positional() && option->get_required();
    }
    return needed;
}

}  // namespace

CLI::Option *one_of(CLI::Option *option, const std::vector<std::string> &words) {
    std::string names;
    for (const std::string &word : words) names += (names.empty() ? "" : "|") + word;
    const auto check = [words](const std::string &value) {
        const bool known = std::find(words.begin(), words.end(), value) != words.end();
        return known ? "" : shown(value) + ": accepted are " + join(words);
    };
    return option->type_name(names)->check(CLI::Validator(check, "", ""));
}

CLI::Option *whole_number(CLI::Option *option, int64_t smallest, int64_t largest) {
    const auto check = [=](const std::string &value) -> std::string {
        const bool digits =
            !value.empty() && value.find_first_not_of("0123456789") == std::string::npos;
        // More digits than 18 may be more than 64 bits.
        const bool fits = digits && value.size() < 19;
        const int64_t number = fits ? std::strtoll(value.c_str(), nullptr, 10) : -1;
        if (number >= smallest && number <= largest) return "";
        return shown(value) + ": accepted are " + std::to_string(smallest) + " to " +
               std::to_string(largest);
    };
    return option->type_name("N")->check(CLI::Validator(check, "", ""));
}

CLI::Option *several(CLI::Option *option, const char *value) {
    return option->type_name(std::string(value) + " ...")->allow_extra_args(false);
}

void finish_commands(CLI::App *app) {
    app->formatter(std::make_shared<Help>());
    app->get_formatter()->label("SUBCOMMAND", "COMMAND");
    app->get_formatter()->label("Positionals", "Arguments");
    app->get_help_ptr()->description("print this help");
    app->group("Commands");
    const auto not_empty = [](const std::string &value) { return value.empty() ? "is empty" : ""; };
    for (CLI::Option *option : app->get_options({})) {
        if (option->get_type_size() > 0) option->check(CLI::Validator(not_empty, "", ""));
    }
    for (CLI::App *command : app->get_subcommands({})) finish_commands(command);
}

std::vector<std::string> spread_values(const CLI::App &app, std::vector<std::string> words) {
    const CLI::App *command = &app;
    std::vector<std::string> result;
    std::vector<size_t> listed;  // places in result of the options in front of second values
    int64_t own = 0;             // words that are the command's
    std::string list;            // the option whose values these are
    for (size_t i = 0; i < words.size(); ++i) {
        const std::string &word = words[i];
        if (word == "--") {  // what follows is the command's own
            result.insert(result.end(), words.begin() + static_cast<long>(i), words.end());
            own += static_cast<int64_t>(words.size() - i) - 1;
            break;
        }
        if (!is_option(word)) {
            const CLI::App *inner = nullptr;
            for (const CLI::App *sub : command->get_subcommands({})) {
                if (sub->get_name() == word) inner = sub;
            }
            if (inner != nullptr) {
                command = inner;
            } else if (list.empty()) {
                ++own;
            } else {
                listed.push_back(result.size());
                result.push_back(list);
            }
            result.push_back(word);
            continue;
        }
        list.clear();
        result.push_back(word);
        const CLI::Option *option = command->get_option_no_throw(option_name(word));
        if (option == nullptr || option->get_type_size() == 0) continue;
        if (takes_several(option)) list = option_name(word);
        if (word.find('=') == std::string::npos && i + 1 < words.size()) {
            result.push_back(words[++i]);
        }
    }
    for (int64_t missing = needed_words(*command) - own; missing > 0 && !listed.empty();
         --missing) {
        result.erase(result.begin() + static_cast<long>(listed.back()));
        listed.pop_back();
    }
    return result;
}

std::string usage_sentence(const CLI::App &app, const CLI::ParseError &error) {
    const CLI::App &command = faulty(app);
    return complaint(command, error) + " ('" + full_name(command) + " --help')";
}
