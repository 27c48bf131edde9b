// A line of record.txt: what a kernel's outputs over the whole table hash to. Columns are the
// digest of all cases and of the few, the number of cases, the operation, the least instruction set
// that the kernel runs with, and the kernel's name, which ends the line.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace record {

struct Line {
    uint64_t all, few;
    int64_t cases;
    std::string operation, set, kernel;

    std::string key() const { return operation + " / " + set + " / " + kernel; }
    std::string text() const;
};

// Comments and empty lines are kept by merge() and left out here.
std::vector<Line> read_lines(const std::string &path);

// Writes the file again with `found`, which is everything that these sets record of the operation
// here. A line keeps its place, also where a kernel got another name but the same digest.
void merge(const std::string &path, const std::string &operation,
           const std::vector<std::string> &sets, const std::vector<Line> &found);

}  // namespace record
