// A broken file is refused whichever way it is opened.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "maker.hpp"
#include "qk_io.h"

namespace io_test {

// Mapped and read, with a sentence that names the file.
inline void expect_refused_from_disk(const std::string &name, const std::string &bytes,
                                     qk_status status) {
    const Folder folder;
    folder.write(name, bytes);
    for (uint32_t flags : {0u, QK_CHECKPOINT_READ}) {
        qk_checkpoint_options options = QK_CHECKPOINT_OPTIONS_INIT;
        options.flags = flags;
        qk_checkpoint *checkpoint = nullptr;
        qk_io_message message;
        EXPECT_EQ(status,
                  qk_checkpoint_open(folder.path().c_str(), &options, &checkpoint, &message));
        EXPECT_EQ(nullptr, checkpoint);
        EXPECT_NE(nullptr, strstr(message.text, name.c_str())) << message.text;
    }
}

}  // namespace io_test
