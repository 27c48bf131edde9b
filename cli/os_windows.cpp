#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include "os.hpp"

#include <cerrno>
#include <csignal>

#include <fcntl.h>
#include <io.h>
#include <windows.h>

#include <shellapi.h>

namespace os {
namespace {

std::wstring wide(const std::string &text) {
    std::wstring result(text.size() + 1, L'\0');
    const int length = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text.c_str(), -1,
                                           &result[0], int(result.size()));
    result.resize(length > 0 ? size_t(length) - 1 : 0);
    return result;
}

std::string narrow(const wchar_t *text) {
    const int length = WideCharToMultiByte(CP_UTF8, 0, text, -1, nullptr, 0, nullptr, nullptr);
    std::string result(length > 0 ? size_t(length) : 1, '\0');
    WideCharToMultiByte(CP_UTF8, 0, text, -1, &result[0], length, nullptr, nullptr);
    result.pop_back();
    return result;
}

// Paths near the old limit and beyond have to be absolute and marked.
std::wstring path_of(const std::string &text) {
    const std::wstring path = wide(text);
    if (path.size() < 240 || path.compare(0, 4, L"\\\\?\\") == 0) return path;
    std::wstring whole(32768, L'\0');
    whole.resize(GetFullPathNameW(path.c_str(), DWORD(whole.size()), &whole[0], nullptr));
    const bool net = whole.compare(0, 2, L"\\\\") == 0;
    return net ? L"\\\\?\\UNC" + whole.substr(1) : L"\\\\?\\" + whole;
}

bool is_separator(char letter) { return letter == '/' || letter == '\\' || letter == ':'; }

DWORD attributes_of(const std::string &path) { return GetFileAttributesW(path_of(path).c_str()); }

// The end of the set that begins at '[', or null for one that does not end: then '[' is a letter.
const char *set_end(const char *set) {
    set += set[1] == '!' || set[1] == '^' ? 2 : 1;
    if (*set == ']') ++set;
    while (*set != 0 && *set != ']') ++set;
    return *set == 0 ? nullptr : set;
}

bool set_has(const char *set, const char *end, char letter) {
    const bool others = set[1] == '!' || set[1] == '^';
    bool found = false;
    for (set += others ? 2 : 1; set < end; ++set) {
        const bool range = set[1] == '-' && set + 2 < end;
        const char last = range ? set[2] : *set;
        found = found || (*set <= letter && letter <= last);
        if (range) set += 2;
    }
    return found != others;
}

HANDLE open_to_look(const std::string &path) {
    return CreateFileW(path_of(path).c_str(), 0,
                       FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE, nullptr,
                       OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS, nullptr);
}

}  // namespace

std::vector<std::string> start(int, char **) {
    for (std::FILE *const stream : {stdin, stdout, stderr}) _setmode(_fileno(stream), _O_BINARY);
    SetConsoleOutputCP(CP_UTF8);
    std::vector<std::string> arguments;
    int count = 0;
    wchar_t **const given = CommandLineToArgvW(GetCommandLineW(), &count);
    for (int i = 0; i < count; ++i) arguments.push_back(narrow(given[i]));
    LocalFree(given);
    return arguments;
}

Kind kind_of(const std::string &path) {
    const HANDLE file = open_to_look(path);
    if (file == INVALID_HANDLE_VALUE) return Kind::kNothing;
    BY_HANDLE_FILE_INFORMATION info = {};
    const bool disk =
        GetFileType(file) == FILE_TYPE_DISK && GetFileInformationByHandle(file, &info);
    CloseHandle(file);
    const bool directory = (info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
    return !disk ? Kind::kOther : directory ? Kind::kDirectory : Kind::kFile;
}

bool is_something(const std::string &path) {
    return attributes_of(path) != INVALID_FILE_ATTRIBUTES;
}

bool identify(const std::string &path, Identity *identity) {
    const HANDLE file = open_to_look(path);
    if (file == INVALID_HANDLE_VALUE) return false;
    BY_HANDLE_FILE_INFORMATION info;
    const bool known = GetFileInformationByHandle(file, &info) != 0;
    CloseHandle(file);
    if (!known) return false;
    *identity = {info.dwVolumeSerialNumber,
                 uint64_t{info.nFileIndexHigh} << 32 | info.nFileIndexLow,
                 int64_t(uint64_t{info.nFileSizeHigh} << 32 | info.nFileSizeLow)};
    return true;
}

std::FILE *open_file(const std::string &path) { return _wfopen(path_of(path).c_str(), L"rb"); }

int64_t regular_bytes(std::FILE *file) {
    const HANDLE handle = reinterpret_cast<HANDLE>(_get_osfhandle(_fileno(file)));
    if (GetFileType(handle) != FILE_TYPE_DISK) return -2;
    LARGE_INTEGER bytes;
    errno = EIO;
    return GetFileSizeEx(handle, &bytes) ? bytes.QuadPart : -1;
}

bool make_directory(const std::string &path) {
    if (CreateDirectoryW(path_of(path).c_str(), nullptr)) return true;
    const DWORD error = GetLastError();
    errno = error == ERROR_ALREADY_EXISTS   ? EEXIST
            : error == ERROR_PATH_NOT_FOUND ? ENOENT
            : error == ERROR_DISK_FULL      ? ENOSPC
                                            : EACCES;
    return false;
}

void remove_directory(const std::string &path) { RemoveDirectoryW(path_of(path).c_str()); }

bool list(const std::string &directory, std::vector<std::string> *names) {
    WIN32_FIND_DATAW entry;
    const HANDLE search = FindFirstFileW(path_of(directory + "/*").c_str(), &entry);
    if (search == INVALID_HANDLE_VALUE) return false;
    do {
        names->push_back(narrow(entry.cFileName));
    } while (FindNextFileW(search, &entry));
    FindClose(search);
    return true;
}

size_t name_start(const std::string &path) { return path.find_last_of("/\\:") + 1; }

bool is_name(const std::string &text) {
    for (const char letter : text) {
        if (is_separator(letter)) return false;
    }
    return true;
}

bool matches(const char *pattern, const char *text) {
    for (; *pattern != 0; ++pattern, ++text) {
        if (*pattern == '*') {
            while (*pattern == '*') ++pattern;
            for (; *text != 0; ++text) {
                if (matches(pattern, text)) return true;
            }
            return *pattern == 0;
        }
        if (*text == 0) return false;
        const char *const end = *pattern == '[' ? set_end(pattern) : nullptr;
        const bool literal = *pattern == '\\' && pattern[1] != 0;
        if (literal) ++pattern;
        const bool same = end != nullptr ? set_has(pattern, end, *text)
                                         : *pattern == *text || (*pattern == '?' && !literal);
        if (!same) return false;
        if (end != nullptr) pattern = end;
    }
    return *text == 0;
}

size_t terminal_columns() {
    CONSOLE_SCREEN_BUFFER_INFO info;
    if (!GetConsoleScreenBufferInfo(GetStdHandle(STD_ERROR_HANDLE), &info)) return 0;
    return size_t(info.srWindow.Right - info.srWindow.Left + 1);
}

void on_interrupt(void (*handler)(int signal)) {
    for (const int signal : {SIGINT, SIGTERM, SIGBREAK}) {
        if (std::signal(signal, handler) == SIG_IGN) std::signal(signal, SIG_IGN);
    }
}

// Nobody can make a file shorter while it is mapped.
void on_lost_pages(uintptr_t (*)(uintptr_t address, uintptr_t page_bytes)) {}

}  // namespace os
