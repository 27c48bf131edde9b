// Arrays in files, piece by piece: .npy (NumPy, versions 1 to 3), and .f32, .i8, .i16, the values
// alone.
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
    void write(const void *data, size_t bytes);

  private:
    friend void commit(const std::vector<const NewFile *> &files);
    Writer writer_;
};
// All take their names, or none does.
void commit(const std::vector<const NewFile *> &files);

// What an array's values are: reals, or the codes that a GRU works on.
enum class Element { kF32, kI8, kI16 };
int64_t bytes_of(Element element);
qk_format format_of(Element element);

// Sequences x [t,b,c]. A .npy holds [t,c] (b is 1) or [t,b,c]; of a .f32 the caller says b and c.
struct SequenceShape {
    int64_t steps = 0, batch = 1, size = 0;
    int rank = 3;  // 2: [t,c]
};

class SequenceReader {
  public:
    SequenceReader(const std::string &path, int64_t batch, int64_t size);
    const SequenceShape &shape() const { return shape_; }
    Element element() const { return element_; }
    // As the library wraps them: elements in a row.
    void read(void *values, int64_t steps);
    std::vector<float> read_floats();  // all; throws unless they are f32

  private:
    std::string path_;
    File file_;
    SequenceShape shape_;
    Element element_ = Element::kF32;
};

class SequenceWriter {
  public:
    SequenceWriter(const std::string &path, const SequenceShape &shape, Element element,
                   bool force);
    void write(const void *values, int64_t steps);
    const NewFile &file() const { return file_; }

  private:
    SequenceShape shape_;
    Element element_;
    NewFile file_;
};

// Throws kUsage unless the name ends in .npy, .f32, .i8 or .i16.
bool is_npy(const std::string &path);
// What a name other than *.npy says.
Element raw_element(const std::string &path);
File open_file(const std::string &path);
std::vector<char> read_file(const std::string &path);
