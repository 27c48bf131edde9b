// The accepted word nearest to one that was mistyped.
#pragma once
#include <string>
#include <vector>

// The nearest of `words`, or "" when none is near: the first that begins with the word, or that
// holds it, or else the one with the fewest typing mistakes.
std::string nearest(const std::string &word, const std::vector<std::string> &words);
