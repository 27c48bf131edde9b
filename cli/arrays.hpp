// Arrays of f32 in files, piece by piece: .npy (NumPy, versions 1 to 3) and .f32 (values alone).
#pragma once
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "common.hpp"

struct CloseFile {
    void operator()(std::FILE *file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// A file that takes its name when it is complete, and otherwise never existed.
class NewFile {
  public:
    NewFile(const std::string &path, bool force);
    ~NewFile();
    NewFile(const NewFile &) = delete;
    NewFile &operator=(const NewFile &) = delete;
    void write(const void *data, size_t bytes);
    void commit();

  private:
    std::string path_, draft_;
    File file_;
};

// Sequences x [t,b,c]. A .npy holds [t,c] (b is 1) or [t,b,c]; of a .f32 the caller says b and c.
struct SequenceShape {
    int64_t steps = 0, batch = 1, size = 0;
    int rank = 3;  // 2: [t,c]
};

class SequenceReader {
  public:
    SequenceReader(const std::string &path, int64_t batch, int64_t size);
    const SequenceShape &shape() const { return shape_; }
    void read(float *values, int64_t steps);
    std::vector<float> read_all();

  private:
    std::string path_;
    File file_;
    SequenceShape shape_;
};

class SequenceWriter {
  public:
    SequenceWriter(const std::string &path, const SequenceShape &shape, bool force);
    void write(const float *values, int64_t steps);
    void commit() { file_.commit(); }

  private:
    SequenceShape shape_;
    bool is_npy_;
    NewFile file_;
};

// Throws kUsage unless the name ends in .npy or .f32.
bool is_npy(const std::string &path);
File open_file(const std::string &path);
std::vector<char> read_file(const std::string &path);
