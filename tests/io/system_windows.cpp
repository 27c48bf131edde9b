// Programs reach another library's functions through pointers, __imp_NAME: these lead here.
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>

#include "system.hpp"

namespace io_test {

std::vector<std::string> calls_of_a_commit() {
    return {"create", "pwrite", "flock", "fsync", "link", "rename", "unlink", "open"};
}

namespace {

template <typename Function>
Function own(const char *name, Function) {
    const FARPROC function = GetProcAddress(GetModuleHandleW(L"kernel32.dll"), name);
    return reinterpret_cast<Function>(reinterpret_cast<void *>(function));
}

std::string narrow(const wchar_t *path) {
    char text[MAX_PATH * 3] = "";
    WideCharToMultiByte(CP_UTF8, 0, path, -1, text, sizeof text, nullptr, nullptr);
    return base(text);
}

bool called(const char *name, const std::string &arguments) {
    if (!fails(name, arguments)) return false;
    SetLastError(ERROR_IO_DEVICE);
    return true;
}

HANDLE WINAPI create_file(LPCWSTR path, DWORD access, DWORD share, SECURITY_ATTRIBUTES *security,
                          DWORD how, DWORD flags, HANDLE like) {
    if (called(how == CREATE_NEW ? "create" : "open", narrow(path))) return INVALID_HANDLE_VALUE;
    return own("CreateFileW", create_file)(path, access, share, security, how, flags, like);
}
BOOL WINAPI write_file(HANDLE file, LPCVOID from, DWORD bytes, LPDWORD done, LPOVERLAPPED at) {
    return !called("pwrite", "") && own("WriteFile", write_file)(file, from, bytes, done, at);
}
BOOL WINAPI lock_file(HANDLE file, DWORD flags, DWORD zero, DWORD low, DWORD high,
                      LPOVERLAPPED at) {
    return !called("flock", "") && own("LockFileEx", lock_file)(file, flags, zero, low, high, at);
}
BOOL WINAPI flush(HANDLE file) {
    return !called("fsync", "") && own("FlushFileBuffers", flush)(file);
}
BOOL WINAPI hard_link(LPCWSTR to, LPCWSTR from, SECURITY_ATTRIBUTES *security) {
    return !called("link", narrow(from) + " " + narrow(to)) &&
           own("CreateHardLinkW", hard_link)(to, from, security);
}
BOOL WINAPI move_file(LPCWSTR from, LPCWSTR to, DWORD flags) {
    return !called("rename", narrow(from) + " " + narrow(to)) &&
           own("MoveFileExW", move_file)(from, to, flags);
}
BOOL WINAPI delete_file(LPCWSTR path) {
    return !called("unlink", narrow(path)) && own("DeleteFileW", delete_file)(path);
}
// The rename of Windows 10, which not every file system has, and here none: what replaces nothing
// that is open is the harder case.
BOOL WINAPI set_information(HANDLE file, FILE_INFO_BY_HANDLE_CLASS kind, LPVOID info, DWORD bytes) {
    SetLastError(ERROR_INVALID_PARAMETER);
    return kind != FILE_INFO_BY_HANDLE_CLASS(22) &&
           own("SetFileInformationByHandle", set_information)(file, kind, info, bytes);
}

}  // namespace
}  // namespace io_test

extern "C" {

decltype(&CreateFileW) __imp_CreateFileW = io_test::create_file;
decltype(&WriteFile) __imp_WriteFile = io_test::write_file;
decltype(&LockFileEx) __imp_LockFileEx = io_test::lock_file;
decltype(&FlushFileBuffers) __imp_FlushFileBuffers = io_test::flush;
decltype(&CreateHardLinkW) __imp_CreateHardLinkW = io_test::hard_link;
decltype(&MoveFileExW) __imp_MoveFileExW = io_test::move_file;
decltype(&DeleteFileW) __imp_DeleteFileW = io_test::delete_file;
decltype(&SetFileInformationByHandle) __imp_SetFileInformationByHandle = io_test::set_information;

}  // extern "C"
