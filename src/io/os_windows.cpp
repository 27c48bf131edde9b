// Windows, as POSIX as it can be: every open file may be renamed and deleted by others, as qk's own
// locks, which are on a byte that no file has, and not the modes of sharing, say what is in use.
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "files.hpp"
#include "os.hpp"

namespace qk_io::os {
namespace {

constexpr DWORD kShareAll = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
constexpr int kWideChars = int{kPathBytes} + 16;

struct Meaning {
    DWORD error;
    int number;
};
constexpr Meaning kMeanings[] = {{ERROR_FILE_NOT_FOUND, ENOENT},
                                 {ERROR_PATH_NOT_FOUND, ENOENT},
                                 {ERROR_INVALID_NAME, ENOENT},
                                 {ERROR_BAD_NETPATH, ENOENT},
                                 {ERROR_BAD_NET_NAME, ENOENT},
                                 {ERROR_ACCESS_DENIED, EACCES},
                                 {ERROR_SHARING_VIOLATION, EBUSY},
                                 {ERROR_LOCK_VIOLATION, EWOULDBLOCK},
                                 {ERROR_USER_MAPPED_FILE, EBUSY},
                                 {ERROR_FILE_EXISTS, EEXIST},
                                 {ERROR_ALREADY_EXISTS, EEXIST},
                                 {ERROR_DISK_FULL, ENOSPC},
                                 {ERROR_HANDLE_DISK_FULL, ENOSPC},
                                 {ERROR_TOO_MANY_OPEN_FILES, EMFILE},
                                 {ERROR_NOT_ENOUGH_MEMORY, ENOMEM},
                                 {ERROR_OUTOFMEMORY, ENOMEM},
                                 {ERROR_COMMITMENT_LIMIT, ENOMEM},
                                 {ERROR_FILENAME_EXCED_RANGE, ENAMETOOLONG},
                                 {ERROR_DIRECTORY, ENOTDIR},
                                 {ERROR_WRITE_PROTECT, EROFS},
                                 {ERROR_NO_UNICODE_TRANSLATION, EILSEQ}};

bool failed() {
    const DWORD error = GetLastError();
    errno = EIO;
    for (const Meaning &meaning : kMeanings) {
        if (meaning.error == error) errno = meaning.number;
    }
    return false;
}

// Paths of the old limit and longer have to be absolute, without "." and "..", and marked.
constexpr wchar_t kMark[] = L"\\\\?\\", kNetMark[] = L"\\\\?\\UNC";
constexpr size_t kShortPath = 240;

[[gnu::noinline]] bool mark_long(wchar_t *path) {
    wchar_t whole[kWideChars];
    const DWORD length = GetFullPathNameW(path, kWideChars, whole, nullptr);
    const bool net = whole[0] == L'\\' && whole[1] == L'\\';
    const wchar_t *const mark = net ? kNetMark : kMark, *const rest = net ? whole + 1 : whole;
    if (length == 0 || wcslen(mark) + length >= size_t{kWideChars}) {
        SetLastError(ERROR_FILENAME_EXCED_RANGE);
        return failed();
    }
    wcscpy(path, mark);
    wcscat(path, rest);
    return true;
}

class Path {
  public:
    explicit Path(const char *path) {
        const int length =
            MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, path, -1, text_, kWideChars - 16);
        good_ = length > 0 || failed();
        if (good_ && wcslen(text_) >= kShortPath && wcsncmp(text_, kMark, 4) != 0) {
            good_ = mark_long(text_);
        }
    }
    bool good() const { return good_; }
    const wchar_t *get() const { return text_; }

  private:
    bool good_;
    wchar_t text_[kWideChars];
};

HANDLE win(Handle file) { return reinterpret_cast<HANDLE>(file); }

Handle open_path(const char *path, DWORD access, DWORD how, DWORD flags) {
    const Path wide(path);
    if (!wide.good()) return kNone;
    const HANDLE file = CreateFileW(wide.get(), access, kShareAll, nullptr, how, flags, nullptr);
    if (file == INVALID_HANDLE_VALUE) failed();
    return reinterpret_cast<Handle>(file);
}

bool is_link(HANDLE file) {
    FILE_ATTRIBUTE_TAG_INFO info;
    return GetFileInformationByHandleEx(file, FileAttributeTagInfo, &info, sizeof info) != 0 &&
           (info.FileAttributes & FILE_ATTRIBUTE_REPARSE_POINT) != 0 &&
           info.ReparseTag == IO_REPARSE_TAG_SYMLINK;
}

bool status_at(const char *path, DWORD flags, Status *status) {
    const Handle file = open_path(path, 0, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS | flags);
    if (file == kNone) return false;
    const bool good = status_of(file, status);
    const int error = errno;
    close_file(file);
    errno = error;
    return good;
}

// LockFileEx on a byte past the end of any file.
bool lock(Handle file, DWORD flags) {
    OVERLAPPED at = {};
    at.OffsetHigh = 1u << 30;
    return LockFileEx(win(file), LOCKFILE_FAIL_IMMEDIATELY | flags, 0, 1, 0, &at) != 0 || failed();
}

// FILE_RENAME_INFO of Windows 10: replaces what others have open, as rename does elsewhere.
struct Rename {
    DWORD flags;
    HANDLE root;
    DWORD name_bytes;
    wchar_t name[kWideChars];
};

bool rename_open(const char *from, const Path &to) {
    constexpr DWORD replace_existing = 1, posix = 2;
    constexpr FILE_INFO_BY_HANDLE_CLASS file_rename_info_ex = FILE_INFO_BY_HANDLE_CLASS(22);
    const Handle file = open_path(from, DELETE | SYNCHRONIZE, OPEN_EXISTING, 0);
    if (file == kNone) return false;
    Rename rename = {replace_existing | posix, nullptr, DWORD(wcslen(to.get()) * 2), {}};
    wcscpy(rename.name, to.get());
    const bool renamed =
        SetFileInformationByHandle(win(file), file_rename_info_ex, &rename, sizeof rename) != 0;
    close_file(file);
    return renamed;
}

}  // namespace

bool status_of(Handle file, Status *status) {
    *status = {};
    const DWORD type = GetFileType(win(file));
    if (type != FILE_TYPE_DISK) {
        status->kind = type == FILE_TYPE_PIPE ? Kind::kPipe : Kind::kDevice;
        return true;
    }
    BY_HANDLE_FILE_INFORMATION info;
    if (!GetFileInformationByHandle(win(file), &info)) return failed();
    const bool directory = (info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0;
    status->kind = is_link(win(file)) ? Kind::kLink : directory ? Kind::kDirectory : Kind::kRegular;
    status->bytes = uint64_t{info.nFileSizeHigh} << 32 | info.nFileSizeLow;
    return true;
}

bool status_of(const char *path, Status *status) { return status_at(path, 0, status); }

bool status_of_link(const char *path, Status *status) {
    return status_at(path, FILE_FLAG_OPEN_REPARSE_POINT, status);
}

Handle open_to_read(const char *path) {
    return open_path(path, GENERIC_READ, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS);
}

// Who may read it is the directory's to say.
Handle create_new(const char *path, bool) {
    return open_path(path, GENERIC_READ | GENERIC_WRITE | DELETE, CREATE_NEW,
                     FILE_ATTRIBUTE_NORMAL);
}

ptrdiff_t read_some(Handle file, void *to, size_t bytes) {
    DWORD done = 0;
    if (!ReadFile(win(file), to, DWORD(bytes), &done, nullptr)) {
        failed();
        return -1;
    }
    return ptrdiff_t(done);
}

ptrdiff_t write_some(Handle file, const void *from, size_t bytes, int64_t offset) {
    OVERLAPPED at = {};
    at.Offset = DWORD(offset);
    at.OffsetHigh = DWORD(offset >> 32);
    DWORD done = 0;
    if (!WriteFile(win(file), from, DWORD(bytes), &done, &at)) {
        failed();
        return -1;
    }
    return ptrdiff_t(done);
}

bool sync(Handle file) { return FlushFileBuffers(win(file)) != 0 || failed(); }
void close_file(Handle file) { CloseHandle(win(file)); }
bool take_permissions(Handle, const Status &) { return true; }  // the directory's

void *map(Handle file, size_t bytes) {
    const HANDLE mapping = CreateFileMappingW(win(file), nullptr, PAGE_READONLY, 0, 0, nullptr);
    void *const view =
        mapping == nullptr ? nullptr : MapViewOfFile(mapping, FILE_MAP_READ, 0, 0, bytes);
    if (view == nullptr) failed();
    if (mapping != nullptr) CloseHandle(mapping);  // the view keeps it
    return view;
}

void unmap(void *bytes, size_t) { UnmapViewOfFile(bytes); }

bool replace(const char *from, const char *to, const char *other, Handle *held) {
    const Path wide_from(from), wide_to(to);
    if (!wide_from.good() || !wide_to.good()) return false;
    if (rename_open(from, wide_to)) return true;
    // The file system has no such call: what anyone has open stays. While it is not held, another
    // process may take the second name for a leftover.
    if (other != nullptr) close_file(*held);
    const DWORD flags = MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH;
    const bool moved = MoveFileExW(wide_from.get(), wide_to.get(), flags) != 0 || failed();
    const int error = errno;
    if (other != nullptr) *held = open_to_read(other);
    if (other != nullptr && *held != kNone) hold(*held);
    errno = error;
    return moved;
}

bool add_name(const char *path, const char *other) {
    const Path wide(path), wide_other(other);
    if (!wide.good() || !wide_other.good()) return false;
    return CreateHardLinkW(wide_other.get(), wide.get(), nullptr) != 0 || failed();
}

bool remove(const char *path) {
    const Path wide(path);
    return wide.good() && (DeleteFileW(wide.get()) != 0 || failed());
}

// The end of all links at once.
ptrdiff_t read_link(const char *path, char *target, size_t bytes) {
    const Handle file = open_path(path, 0, OPEN_EXISTING, FILE_FLAG_BACKUP_SEMANTICS);
    if (file == kNone) return -1;
    wchar_t wide[kWideChars];
    const DWORD length = GetFinalPathNameByHandleW(win(file), wide, kWideChars, 0);
    const int written = length == 0 || length >= DWORD{kWideChars}
                            ? 0
                            : WideCharToMultiByte(CP_UTF8, 0, wide, int(length), target, int(bytes),
                                                  nullptr, nullptr);
    if (written == 0) failed();
    const int error = errno;
    close_file(file);
    errno = error;
    return written == 0 ? -1 : written;
}

bool sync_directory(const char *) { return true; }  // replace() has written it through

bool list(const char *directory, void (*visit)(void *user, const char *name), void *user) {
    char pattern[kPathBytes + 2], name[3 * MAX_PATH + 1];
    snprintf(pattern, sizeof pattern, "%s/*", directory);
    const Path wide(pattern);
    if (!wide.good()) return false;
    WIN32_FIND_DATAW entry;
    const HANDLE search = FindFirstFileW(wide.get(), &entry);
    if (search == INVALID_HANDLE_VALUE) return failed();
    do {
        if (WideCharToMultiByte(CP_UTF8, 0, entry.cFileName, -1, name, sizeof name, nullptr,
                                nullptr) > 0) {
            visit(user, name);
        }
    } while (FindNextFileW(search, &entry));
    FindClose(search);
    return true;
}

bool hold(Handle file) { return lock(file, 0) || errno != EWOULDBLOCK; }

void remove_unless_held(const char *path) {
    const Handle file =
        open_path(path, GENERIC_READ | DELETE, OPEN_EXISTING, FILE_FLAG_OPEN_REPARSE_POINT);
    if (file == kNone) return;
    FILE_DISPOSITION_INFO gone = {TRUE};
    if (lock(file, LOCKFILE_EXCLUSIVE_LOCK)) {
        SetFileInformationByHandle(win(file), FileDispositionInfo, &gone, sizeof gone);
    }
    close_file(file);
}

bool is_separator(char letter) { return letter == '/' || letter == '\\' || letter == ':'; }

bool is_absolute(const char *path) {
    return path[0] == '/' || path[0] == '\\' || (path[0] != 0 && path[1] == ':');
}

int64_t process() { return GetCurrentProcessId(); }

uint64_t nanoseconds() {
    FILETIME now;
    GetSystemTimePreciseAsFileTime(&now);
    return (uint64_t{now.dwHighDateTime} << 32 | now.dwLowDateTime) * 100;
}

const char *error_text(int error, char *buffer, size_t bytes) {
    snprintf(buffer, bytes, "%s", strerror(error));
    return buffer;
}

}  // namespace qk_io::os
