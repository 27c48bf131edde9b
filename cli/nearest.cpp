#include "nearest.hpp"

#include <algorithm>

namespace {

// Insertions, deletions, replacements and swaps of neighbours that make one of the other; more
// than `limit` is as good as any number.
size_t mistakes(const std::string &a, const std::string &b, size_t limit) {
    if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > limit) return limit + 1;
    std::vector<size_t> before, last(b.size() + 1), now(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        now[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t replaced = last[j - 1] + (a[i - 1] != b[j - 1]);
            now[j] = std::min({replaced, last[j] + 1, now[j - 1] + 1});
            const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) now[j] = std::min(now[j], before[j - 2] + 1);
        }
        before = last;
        last.swap(now);
    }
    return last[b.size()];
}

}  // namespace

std::string nearest(const std::string &word, const std::vector<std::string> &words) {
    if (word.size() > 1) {
        for (const std::string &candidate : words) {
            if (candidate.compare(0, word.size(), word) == 0) return candidate;
        }
        for (const std::string &candidate : words) {
            if (candidate.find(word) != std::string::npos) return candidate;
        }
    }
    std::string best;
    size_t fewest = std::max<size_t>(2, word.size() / 3) + 1;
    for (const std::string &candidate : words) {
        const size_t count = mistakes(word, candidate, fewest - 1);
        if (count >= fewest || count >= candidate.size()) continue;
        fewest = count;
        best = candidate;
    }
    return best;
}
