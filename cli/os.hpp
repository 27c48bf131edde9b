// What the command asks of the operating system. CMake takes os_posix.cpp or os_windows.cpp, which
// answer; no other file here knows which system it is. Paths and arguments are UTF-8.
#pragma once
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace os {

// The command line; texts leave the program as they are, byte for byte.
std::vector<std::string> start(int argc, char **argv);

enum class Kind { kNothing, kFile, kDirectory, kOther };
Kind kind_of(const std::string &path);       // of what its links lead to
bool is_something(const std::string &path);  // be it a link that leads to nothing

struct Identity {  // of a file, whatever its names
    uint64_t device = 0, number = 0;
    int64_t bytes = 0;
    bool is_same(const Identity &other) const {
        return device == other.device && number == other.number;
    }
};
bool identify(const std::string &path, Identity *identity);

std::FILE *open_file(const std::string &path);  // to read bytes
int64_t regular_bytes(std::FILE *file);         // -1: errno says why; -2: it is no regular file
bool make_directory(const std::string &path);
void remove_directory(const std::string &path);
bool list(const std::string &directory, std::vector<std::string> *names);
size_t name_start(const std::string &path);  // where the last of its names begins
bool is_name(const std::string &text);       // one name, without any separator

bool matches(const char *pattern, const char *text);  // as the shell does: * ? [a-z] [!a]

// Of the terminal on stderr; 0 where a line cannot be drawn again.
size_t terminal_columns();

// Calls handler where a signal asks the program to end, unless it was told to ignore that one.
void on_interrupt(void (*handler)(int signal));

// Pages of a mapped file that another program made shorter. lost_until(address, page_bytes) says
// where the file's pages end, 0 where it is none of ours; zeros replace them. It runs in a signal
// handler.
void on_lost_pages(uintptr_t (*lost_until)(uintptr_t address, uintptr_t page_bytes));

}  // namespace os
