// All or nothing: everything is on the disk before the first rename, the old files keep a second
// name until the last one, and a failure in between takes the renames back.
#include <errno.h>
#include <string.h>

#include "leftovers.hpp"
#include "replace.hpp"

namespace qk_io {
namespace {

struct Step {
    Replacement *file;  // takes its place at path; NULL: path is removed
    const char *path;
    os::Handle old;  // holds the old contents' second name
    bool existed;    // something was at path
    bool saved;      // and has a second name
    bool done;
};

struct Commit {
    Step *steps;
    int64_t count;
    uint64_t stamp;  // of the second names
    qk_io_message *message;
};

qk_status old_name(const Commit &c, int64_t index, char *name) {
    return unfinished_name(name, c.steps[index].path, c.stamp, index, kOldEnding, c.message);
}

// Contents and mode are on the disk before anything has a new name: a crash leaves old files or
// whole new ones.
qk_status complete(Step *step, qk_io_message *message) {
    os::Status old = {};
    step->existed = os::status_of_link(step->path, &old);
    if (!step->existed && errno != ENOENT) return file_error(message, step->path, "replace");
    const bool link = step->file == nullptr && old.kind == os::Kind::kLink;  // goes itself
    if (step->existed && old.kind != os::Kind::kRegular && !link) {
        return fail(message, QK_ERROR_FILE, "%.300s: cannot %s: it is not a regular file",
                    step->path, step->file == nullptr ? "remove" : "replace");
    }
    if (step->file == nullptr) return QK_OK;
    if (step->existed && !os::take_permissions(step->file->file, old)) {
        return file_error(message, step->path, "set the mode");
    }
    return os::sync(step->file->file) ? QK_OK : file_error(message, step->path, "write");
}

// A file alone needs no second name: its rename happens or does not.
void save_old(Commit *c, int64_t index) {
    Step *step = &c->steps[index];
    char name[kPathBytes];
    if (c->count == 1 || !step->existed || step->file == nullptr) return;
    if (old_name(*c, index, name) != QK_OK || !os::add_name(step->path, name)) return;
    step->saved = true;
    step->old = os::open_to_read(name);
    if (step->old != os::kNone) os::hold(step->old);
}

qk_status take_place(Commit *c, int64_t index) {
    Step *step = &c->steps[index];
    char name[kPathBytes];
    if (step->file != nullptr) {
        const bool held = step->old != os::kNone && old_name(*c, index, name) == QK_OK;
        if (!os::replace(step->file->name, step->path, held ? name : nullptr, &step->old)) {
            return file_error(c->message, step->path, "replace");
        }
        replacement_close(step->file);  // so that taking it back replaces nothing open
    } else if (step->existed) {
        QK_IO_TRY(old_name(*c, index, name));
        if (!os::replace(step->path, name)) return file_error(c->message, step->path, "remove");
        step->saved = true;
    }
    step->done = true;
    return QK_OK;
}

// The last step first. What cannot be taken back stays `done`.
void take_back(Commit *c) {
    char name[kPathBytes];
    for (int64_t i = c->count - 1; i >= 0; --i) {
        Step *step = &c->steps[i];
        if (!step->done) continue;
        if (step->saved) {
            if (old_name(*c, i, name) == QK_OK && os::replace(name, step->path)) {
                step->done = step->saved = false;
            }
        } else if (!step->existed) {
            step->done = step->file != nullptr && !os::remove(step->path) && errno != ENOENT;
        }
    }
}

void add_text(qk_io_message *message, const char *text, const char *name) {
    if (message == nullptr) return;
    const qk_io_message before = *message;
    fail(message, QK_OK, "%s%s%.80s", before.text, text, name);
}

void say_what_stands(const Commit &c) {
    if (c.count == 1) return;
    int64_t standing = 0;
    char name[kPathBytes];
    for (int64_t i = 0; i < c.count; ++i) {
        const Step &step = c.steps[i];
        if (!step.done) continue;
        add_text(c.message, standing++ == 0 ? "; " : ", ", base_name(step.path));
        add_text(c.message, step.file == nullptr ? " is removed" : " is new", "");
        os::Status status;
        if (step.saved && old_name(c, i, name) == QK_OK && os::status_of_link(name, &status)) {
            add_text(c.message, " and was ", base_name(name));
        }
    }
    add_text(c.message, standing == 0 ? "; all files are as they were" : "; the others are old",
             "");
}

qk_status sync_directory(const char *path, qk_io_message *message) {
    char directory[kPathBytes];
    QK_IO_TRY(directory_of(directory, path, message));
    return os::sync_directory(directory[0] == 0 ? "." : directory)
               ? QK_OK
               : file_error(message, path,
                            "make sure that a power failure keeps the new file, "
                            "which is complete and in its place");
}

bool in_directory_of(const char *path, const char *other) {
    const size_t length = static_cast<size_t>(base_name(path) - path);
    return length == static_cast<size_t>(base_name(other) - other) &&
           memcmp(path, other, length) == 0;
}

qk_status run(Commit *c) {
    for (int64_t i = 0; i < c->count; ++i) QK_IO_TRY(complete(&c->steps[i], c->message));
    for (int64_t i = 0; i < c->count; ++i) save_old(c, i);
    qk_status status = QK_OK;
    for (int64_t i = 0; status == QK_OK && i < c->count; ++i) status = take_place(c, i);
    if (status != QK_OK) {
        take_back(c);
        say_what_stands(*c);
        return status;
    }
    for (int64_t i = 0; status == QK_OK && i < c->count; ++i) {
        if (i > 0 && in_directory_of(c->steps[i - 1].path, c->steps[i].path)) continue;
        status = sync_directory(c->steps[i].path, c->message);
    }
    return status;
}

void clean_up(Commit *c, bool failed) {
    char name[kPathBytes];
    for (int64_t i = 0; i < c->count; ++i) {
        Step *step = &c->steps[i];
        const bool stuck = failed && step->done;  // the only copy of what could not be taken back
        if (step->saved && !stuck && old_name(*c, i, name) == QK_OK) os::remove(name);
        if (step->old != os::kNone) os::close_file(step->old);
        if (step->file != nullptr) replacement_drop(step->file);
    }
}

}  // namespace

qk_status commit(Memory *memory, Replacement *const *files, int64_t count,
                 const char *const *removed, int64_t removed_count, qk_io_message *message) {
    size_t bytes = 0;
    Commit c = {nullptr, count + removed_count, os::nanoseconds(), message};
    if (__builtin_mul_overflow(static_cast<size_t>(c.count), sizeof(Step), &bytes)) {
        return out_of_memory(message);
    }
    c.steps = static_cast<Step *>(memory->allocate(bytes, alignof(Step)));
    if (c.steps == nullptr) return out_of_memory(message);
    for (int64_t i = 0; i < c.count; ++i) {
        const bool file = i < count;
        c.steps[i] = Step{file ? files[i] : nullptr,
                          file ? files[i]->path : removed[i - count],
                          os::kNone,
                          false,
                          false,
                          false};
    }
    const qk_status status = run(&c);
    bool all = true;  // a directory that cannot be synced comes after the last step
    for (int64_t i = 0; i < c.count; ++i) all = all && c.steps[i].done;
    clean_up(&c, !all);
    memory->release(c.steps);
    return status;
}

}  // namespace qk_io
