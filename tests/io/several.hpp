// Three files written and two removed as one, for the tests of how that ends.
#pragma once
#include <map>

#include "maker.hpp"
#include "qk_io.h"

namespace io_test {

using Contents = std::map<std::string, std::string>;

inline Contents contents(const Folder &folder) {
    Contents result;
    for (const std::string &name : folder.names()) result[name] = read_file(folder.path(name));
    return result;
}

inline const Contents kOld = {
    {"config", "old"}, {"index", "old"}, {"model", "old"}, {"shard", "old"}};
inline const Contents kNew = {{"added", "new"}, {"config", "new"}, {"model", "new"}};

// Replaces model and config, adds one file and removes two, one of which is not there.
struct Outcome {
    qk_status status;
    std::string sentence;
};
inline Outcome replace_all(const Folder &folder) {
    qk_writer *writers[3] = {};
    const char *const names[] = {"model", "config", "added"};
    const std::string removed[] = {folder.path("index"), folder.path("shard"),
                                   folder.path("absent")};
    const char *const gone[] = {removed[0].c_str(), removed[1].c_str(), removed[2].c_str()};
    qk_io_message message = {};
    qk_status status = QK_OK;
    for (int i = 0; status == QK_OK && i < 3; ++i) {
        status = qk_writer_create(folder.path(names[i]).c_str(), nullptr, &writers[i], &message);
        if (status == QK_OK) status = qk_writer_append(writers[i], "new", 3, &message);
    }
    if (status == QK_OK) status = qk_writer_finish_all(writers, 3, gone, 3, &message);
    for (qk_writer *writer : writers) qk_writer_destroy(writer);
    return {status, message.text};
}

inline void fill(const Folder &folder, const Contents &wanted) {
    for (const std::string &name : folder.names()) folder.remove(name);
    for (const auto &[name, text] : wanted) folder.write(name, text);
}

}  // namespace io_test
