#include "record/lines.hpp"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>

namespace record {
namespace {

std::vector<std::string> text_of(const std::string &path) {
    std::ifstream file(path);
    std::vector<std::string> lines;
    for (std::string line; std::getline(file, line);) lines.push_back(line);
    return lines;
}

std::optional<Line> parse(const std::string &text) {
    if (text.empty() || text[0] == '#') return std::nullopt;
    std::istringstream words(text);
    Line line = {};
    words >> std::hex >> line.all >> line.few >> std::dec >> line.cases >> line.operation >>
        line.set >> std::ws;
    std::getline(words, line.kernel);
    return line;
}

bool contains(const std::vector<std::string> &list, const std::string &word) {
    return std::find(list.begin(), list.end(), word) != list.end();
}

}  // namespace

std::string Line::text() const {
    char columns[160];
    std::snprintf(columns, sizeof(columns),
                  "%016" PRIx64 " %016" PRIx64 " %6" PRId64 " %-13s %-11s ", all, few, cases,
                  operation.c_str(), set.c_str());
    return columns + kernel;
}

std::vector<Line> read_lines(const std::string &path) {
    std::vector<Line> lines;
    for (const std::string &text : text_of(path)) {
        if (const auto line = parse(text)) lines.push_back(*line);
    }
    return lines;
}

void merge(const std::string &path, const std::string &operation,
           const std::vector<std::string> &sets, const std::vector<Line> &found) {
    const std::vector<std::string> texts = text_of(path);
    std::vector<Line> waiting = found;
    const auto take = [&](const auto &fits) -> std::optional<Line> {
        const auto at = std::find_if(waiting.begin(), waiting.end(), fits);
        if (at == waiting.end()) return std::nullopt;
        const Line line = *at;
        waiting.erase(at);
        return line;
    };
    std::vector<std::optional<Line>> next;
    for (const std::string &text : texts) {  // lines whose kernel is still here
        const auto old = parse(text);
        next.push_back(old ? take([&](const Line &l) { return l.key() == old->key(); })
                           : std::nullopt);
    }
    std::ofstream file(path);
    for (size_t i = 0; i < texts.size(); ++i) {
        const auto old = parse(texts[i]);
        if (old && !next[i]) {  // and those whose kernel has another name
            next[i] = take([&](const Line &l) {
                return l.operation == old->operation && l.set == old->set && l.all == old->all;
            });
        }
        if (next[i]) file << next[i]->text() << '\n';
        const bool ours = old && old->operation == operation && contains(sets, old->set);
        if (!next[i] && !ours) file << texts[i] << '\n';
    }
    for (const Line &line : waiting) file << line.text() << '\n';  // new ones
}

}  // namespace record
