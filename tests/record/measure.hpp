// Runs a list of kernels over a table and holds them against record.txt.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "record/cases.hpp"
#include "record/lines.hpp"

namespace record {

// What a list is recorded on. Each kernel runs with the first of the devices that it takes a case
// with, and with the last, which has everything; the name of the first stands in its line.
struct Place {
    std::vector<qk::Device> devices;
    std::vector<std::string> sets;  // their names
    uint64_t every = 1;             // cases whose number this divides, and the few
    uint64_t few = 16;
    int64_t largest = INT64_MAX;  // codes times rows of x
    bool (*leaves_out)(const std::string &kernel) = [](const std::string &) { return false; };
};

// Builds that run less than a third of the sweeps run the few only.
inline bool only_few() {
    const char *const every = std::getenv("QK_SWEEP_EVERY");
    return every != nullptr && std::atoi(every) > 3;
}

class Sums {
  public:
    void add(bool is_few, uint64_t digest) {
        ++cases;
        all.number(digest);
        if (is_few) few.number(digest);
    }
    bool operator==(const Sums &other) const {
        return cases == other.cases && all.value() == other.all.value();
    }

    int64_t cases = 0;
    Digest all, few;
};

struct Found {
    size_t least = 0;
    Sums with_least, with_all;
};

template <class Args>
using Table = void (*)(sweep::Home *, uint64_t every, const Visit<Args> &);

inline int64_t size_of(const qk::LinearArgs &args) {
    return args.x.rows * args.w.geometry.n * args.w.geometry.k;
}
inline int64_t size_of(const qk::DequantizeArgs &args) { return args.to.rows * args.to.columns; }
inline int64_t size_of(const qk::QuantizeArgs &args) { return args.from.rows * args.from.columns; }
inline int64_t size_of(const qk::RepackArgs &args) {
    return args.to.geometry.n * args.to.geometry.k;
}
template <class Args>
int64_t size_of(const Args &) {
    return 0;
}

template <class Args>
uint64_t digest_on(const qk::Device &device, sweep::Home *home, const qk::Kernel<Args> &kernel,
                   const Case<Args> &c) {
    home->device = device;
    c.clear();
    EXPECT_EQ(sweep::run(home, kernel, c.args, c.number), QK_OK) << kernel.name;
    Digest digest;
    c.digest(&digest);
    return digest.value();
}

template <class Args>
std::vector<Line> measure(const char *operation, const qk::Backend &backend,
                          const qk::KernelList<Args> &list, Table<Args> table, const Place &place) {
    sweep::Home home(backend);
    home.memory.mostly_aligned();
    std::vector<Found> found(size_t(list.count));
    table(&home, only_few() ? place.few : place.every, [&](const Case<Args> &c) {
        if (size_of(c.args) > place.largest) return;
        for (int32_t i = 0; i < list.count; ++i) {
            const qk::Kernel<Args> &kernel = *list.kernels[i];
            if (place.leaves_out(kernel.name)) continue;
            if (!kernel.can_run(c.args, place.devices.back())) continue;
            size_t level = 0;
            while (!kernel.can_run(c.args, place.devices[level])) ++level;
            Found &each = found[size_t(i)];
            EXPECT_TRUE(each.with_all.cases == 0 || each.least == level) << kernel.name;
            each.least = level;
            const uint64_t all = digest_on(place.devices.back(), &home, kernel, c);
            const bool other = level + 1 < place.devices.size();
            const bool is_few = c.number % place.few == 0;
            each.with_all.add(is_few, all);
            each.with_least.add(is_few,
                                other ? digest_on(place.devices[level], &home, kernel, c) : all);
        }
    });
    EXPECT_TRUE(home.memory.intact()) << operation;
    std::vector<Line> lines;
    for (int32_t i = 0; i < list.count; ++i) {
        const Found &each = found[size_t(i)];
        const Sums &sums = each.with_all;
        if (sums.cases == 0) continue;  // not for this device
        const std::string name = list.kernels[i]->name, set = place.sets[each.least];
        EXPECT_TRUE(sums == each.with_least)
            << operation << " / " << name << ": other bits with " << set << " than with all";
        lines.push_back({sums.all.value(), sums.few.value(), sums.cases, operation, set, name});
    }
    return lines;
}

inline bool contains(const std::vector<std::string> &list, const std::string &word) {
    return std::find(list.begin(), list.end(), word) != list.end();
}

// The line of a kernel among those of `sets`, or null.
inline const Line *find_line(const std::vector<Line> &lines, const std::vector<std::string> &sets,
                             const std::string &operation, const std::string &kernel) {
    for (const Line &line : lines) {
        if (contains(sets, line.set) && line.operation == operation && line.kernel == kernel) {
            return &line;
        }
    }
    return nullptr;
}

inline void expect_recorded(const std::vector<Line> &lines, const std::vector<std::string> &sets,
                            const Line &found) {
    const Line *const line = find_line(lines, sets, found.operation, found.kernel);
    if (line == nullptr) {
        ADD_FAILURE() << "record.txt has no line for " << found.key()
                      << ": run tests/record/update, which writes it";
        return;
    }
    EXPECT_EQ(found.set, line->set) << found.key();
    EXPECT_EQ(found.few, line->few) << found.key() << ": other bits than on record";
    if (only_few()) return;
    EXPECT_EQ(found.cases, line->cases) << found.key() << ": takes other cases";
    EXPECT_EQ(found.all, line->all) << found.key() << ": other bits than on record";
}

// Under tests/record/update: lines are written, not compared.
inline bool writes() { return std::getenv("QK_RECORD_WRITE") != nullptr; }

template <class Args>
std::vector<std::string> names_of(const qk::KernelList<Args> &list) {
    std::vector<std::string> names;
    for (int32_t i = 0; i < list.count; ++i) names.push_back(list.kernels[i]->name);
    return names;
}

}  // namespace record
