// A model as C source, for firmware that has no files: `qk gru export --c`.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "arrays.hpp"
#include "commands.hpp"
#include "gru.hpp"
#include "json.hpp"
#include "os.hpp"

namespace {

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The words of C and C++ and of GNU's dialects, macros that compilers define under plain names, and
// NULL.
const char kWords[] =
    " "
    "NULL alignas alignof and and_eq asm auto bitand bitor bool break case catch char "
    "class co_await co_return co_yield compl concept const const_cast consteval constexpr "
    "constinit continue decltype default delete do double dynamic_cast else enum explicit "
    "export extern false float for friend goto i386 if inline int linux long main mutable "
    "namespace new noexcept not not_eq nullptr operator or or_eq private protected public "
    "register reinterpret_cast requires restrict return short signed sizeof static "
    "static_assert static_cast struct switch template this thread_local throw true try "
    "typedef typeid typename typeof typeof_unqual union unix unsigned using virtual void "
    "volatile while xor xor_eq ";

// Also what the implementation keeps for itself (_Bool, __func__), and what the names of types and
// limits in <stddef.h> and <stdint.h> look like.
bool is_reserved(const std::string &name) {
    const bool is_theirs =
        name[0] == '_' && name.size() > 1 && (name[1] == '_' || (name[1] >= 'A' && name[1] <= 'Z'));
    return is_theirs || ends_with(name, "_t") || ends_with(name, "_MAX") ||
           ends_with(name, "_MIN") || ends_with(name, "_WIDTH") ||
           std::strstr(kWords, (" " + name + " ").c_str()) != nullptr;
}

// What the source calls the array: --name, or the name of the file it is written to.
std::string array_name(const GruExportOptions &options) {
    if (!options.name.empty()) {
        const bool is_name = is_letter(options.name[0]) &&
                             std::all_of(options.name.begin(), options.name.end(),
                                         [](char c) { return is_letter(c) || is_digit(c); });
        if (!is_name)
            throw Failure(kUsage, "--name " + printable(options.name) + ": not a name in C");
        if (is_reserved(options.name))
            throw Failure(kUsage, "--name " + options.name + ": C and C++ reserve this name");
        return options.name;
    }
    const std::string &path = options.output.empty() ? options.input : options.output;
    std::string name = path.substr(os::name_start(path));
    name = name.substr(0, name.find('.', 1));
    for (char &c : name)
        if (!is_letter(c) && !is_digit(c)) c = '_';
    if (name.empty() || is_digit(name[0]) || is_reserved(name)) name = "gru_" + name;
    return name;
}

std::string format(const char *pattern, ...) __attribute__((format(printf, 1, 2)));
std::string format(const char *pattern, ...) {
    va_list values;
    va_start(values, pattern);
    va_list again;
    va_copy(again, values);
    std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, pattern, values)), '\0');
    std::vsnprintf(text.data(), text.size() + 1, pattern, again);
    va_end(again);
    va_end(values);
    return text;
}

bool is_wide(const qk_gru_model &model, int which) { return model.quant[which].bits > 8; }

// A line of the comment: "x [32], int8_t, real = (code - 5) * 2^-6".
std::string describe_codes(const qk_gru_model &model, int which, int32_t count) {
    return format(" *   %s [%d], %s, real = (code %c %d) * 2^%d\n", kGruTensors[which], count,
                  is_wide(model, which) ? "int16_t" : "int8_t",
                  model.zero_point[which] < 0 ? '+' : '-', std::abs(model.zero_point[which]),
                  -model.shift[which]);
}

std::string head(const LoadedGru &loaded, const std::string &name) {
    const qk_gru_model &model = loaded.model;
    const int32_t c = model.input_size, h = model.hidden_size;
    std::string text = format(
        "/* %s: a GRU of %d inputs and %d units in integers, as it is read in place from\n"
        " * flash by qk_gru_cell_load of qk_gru.h.\n *\n",
        name.c_str(), c, h);
    text += describe_codes(model, QK_GRU_X, c) + describe_codes(model, QK_GRU_H, h);
    text +=
        format(" *   W [%d, %d] and R [%d, %d] of %d and %d bits, %s tables of %d segments\n",
               3 * h, c, 3 * h, h, model.quant[QK_GRU_W].bits, model.quant[QK_GRU_R].bits,
               model.update.kind == QK_GRU_TABLE_KNOTS ? "knots" : "uniform", model.update.count);
    const uint32_t version = qk_version();
    text += format(" *\n * %lld bytes. Made by qk gru export --c of qk %u.%u.%u; do not edit. */\n",
                   static_cast<long long>(loaded.bytes), version / 10000, version / 100 % 100,
                   version % 100);
    return text;
}

bool is_header(const std::string &path) {
    return ends_with(path, ".h") || ends_with(path, ".hh") || ends_with(path, ".hpp");
}

// A source that other files declare with `extern`, or a header that holds the array itself.
std::string source(const LoadedGru &loaded, const std::vector<char> &image, const std::string &name,
                   bool holds_it) {
    const char *const storage = holds_it ? "static const" : "const";
    const char *const n = name.c_str();
    std::string text = head(loaded, name);
    if (holds_it) text += "#pragma once\n";
    text += "#include <stddef.h>\n#include <stdint.h>\n\n";
    if (!holds_it)
        text += format(
            "#ifdef __cplusplus\nextern \"C\" {\n#endif\n"
            "extern const size_t %s_bytes;\nextern const uint8_t %s[%zu];\n"
            "#ifdef __cplusplus\n}\n#endif\n\n",
            n, n, image.size());
    text += format("%s size_t %s_bytes = %zu;\n\n", storage, n, image.size());
    text +=
        "#if defined(_MSC_VER)\n__declspec(align(8))\n#else\n__attribute__((aligned(8)))\n#endif\n";
    text += format("%s uint8_t %s[%zu] = {\n", storage, n, image.size());
    for (size_t i = 0; i < image.size(); ++i) {
        text += i % 16 == 0 ? "    " : " ";
        text += std::to_string(static_cast<unsigned char>(image[i])) + ',';
        if (i % 16 == 15 || i + 1 == image.size()) text += '\n';
    }
    return text + "};\n";
}

void print_json(const GruExportOptions &options, const LoadedGru &loaded, const std::string &name) {
    const qk_gru_model &model = loaded.model;
    const Json root = json_new_object();
    json_set(root, "file", options.input);
    json_set(root, "output", options.output);
    json_set(root, "name", name);
    json_set(root, "bytes", loaded.bytes);
    json_set(root, "alignment", 8);
    json_set(root, "input_size", model.input_size);
    json_set(root, "hidden_size", model.hidden_size);
    json_set(root, "x_bytes", is_wide(model, QK_GRU_X) ? 2 : 1);
    json_set(root, "h_bytes", is_wide(model, QK_GRU_H) ? 2 : 1);
    json_print(root);
}

}  // namespace

ExitCode run_gru_export(const CommonOptions &common, const GruExportOptions &options) {
    if (options.output.empty() && common.json)
        throw Failure(kUsage, "gru export --json needs OUT: both would go to standard output");
    CommonOptions one_thread = common;
    one_thread.threads = 1;
    const Context context = create_context(one_thread);
    const std::string name = array_name(options);
    const LoadedGru loaded = load_gru(context, options.input);
    const std::string text =
        source(loaded, read_file(options.input), name, is_header(options.output));
    if (options.output.empty()) {
        std::fwrite(text.data(), 1, text.size(), stdout);
        return kOk;
    }
    NewFile file(options.output, options.force);
    file.write(text.data(), text.size());
    commit({&file});
    if (common.json) {
        print_json(options, loaded, name);
    } else {
        std::printf("%s: const uint8_t %s[%lld], %d inputs, %d units\n", options.output.c_str(),
                    name.c_str(), static_cast<long long>(loaded.bytes), loaded.model.input_size,
                    loaded.model.hidden_size);
    }
    return kOk;
}
