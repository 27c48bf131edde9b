// tlhelp32.h and psapi.h need windows.h before them.
#include <windows.h>

#include <psapi.h>
#include <tlhelp32.h>

#include <cwchar>

#include "harness/system.hpp"

namespace harness {
namespace {

int threads() {
    const HANDLE all = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
    THREADENTRY32 entry = {};
    entry.dwSize = sizeof entry;
    int count = 0;
    for (BOOL more = Thread32First(all, &entry); more; more = Thread32Next(all, &entry)) {
        count += entry.th32OwnerProcessID == GetCurrentProcessId();
    }
    CloseHandle(all);
    return count;
}

struct Rename {  // FILE_RENAME_INFO of Windows 10
    DWORD flags;
    HANDLE root;
    DWORD name_bytes;
    wchar_t name[MAX_PATH];
};

}  // namespace

Resources resources() {
    Resources now;
    PROCESS_MEMORY_COUNTERS memory = {};
    if (K32GetProcessMemoryInfo(GetCurrentProcess(), &memory, sizeof memory)) {
        now.resident_bytes = int64_t(memory.WorkingSetSize);
    }
    DWORD handles = 0;
    if (GetProcessHandleCount(GetCurrentProcess(), &handles)) now.descriptors = int(handles);
    now.threads = threads();
    return now;
}

bool can_replace_open_files() {
    constexpr DWORD replace_existing = 1, posix = 2;
    constexpr FILE_INFO_BY_HANDLE_CLASS rename_info_ex = FILE_INFO_BY_HANDLE_CLASS(22);
    wchar_t folder[MAX_PATH], name[MAX_PATH];
    Rename rename = {replace_existing | posix, nullptr, 0, {}};
    if (GetTempPathW(MAX_PATH, folder) == 0 || GetTempFileNameW(folder, L"qk", 0, name) == 0 ||
        GetTempFileNameW(folder, L"qk", 0, rename.name) == 0) {
        return false;
    }
    rename.name_bytes = DWORD(wcslen(rename.name) * sizeof(wchar_t));
    const HANDLE file = CreateFileW(name, DELETE | SYNCHRONIZE, FILE_SHARE_DELETE, nullptr,
                                    OPEN_EXISTING, 0, nullptr);
    const bool can = SetFileInformationByHandle(file, rename_info_ex, &rename, sizeof rename) != 0;
    CloseHandle(file);
    DeleteFileW(name);
    DeleteFileW(rename.name);
    return can;
}

}  // namespace harness
