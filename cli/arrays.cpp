#include "arrays.hpp"

#include <cerrno>
#include <cstring>

#include "mapped.hpp"
#include "os.hpp"
#include "output.hpp"

namespace {

[[noreturn]] void fail_system(const char *what, const std::string &path) {
    throw Failure(kFile, std::string("cannot ") + what + " " + path + ": " + std::strerror(errno));
}

[[noreturn]] void fail_damaged(const std::string &path, const std::string &why) {
    throw Failure(kFile, path + ": " + why);
}

void read_exactly(std::FILE *file, const std::string &path, void *to, size_t bytes) {
    if (std::fread(to, 1, bytes, file) == bytes) return;
    if (std::ferror(file) != 0) fail_system("read", path);
    fail_damaged(path, "the file ends too early");
}

int64_t file_bytes(std::FILE *file, const std::string &path) {
    const int64_t bytes = os::regular_bytes(file);
    if (bytes == -1) fail_system("read", path);
    if (bytes < 0) fail_damaged(path, "not a regular file");
    return bytes;
}

// What follows 'key': in the Python dictionary of a .npy header.
std::string value_of(const std::string &header, const std::string &key, const std::string &path) {
    const size_t at = header.find("'" + key + "'");
    const size_t colon = at == std::string::npos ? at : header.find(':', at);
    const size_t begin =
        colon == std::string::npos ? colon : header.find_first_not_of(' ', colon + 1);
    if (begin == std::string::npos) fail_damaged(path, "no '" + key + "' in the .npy header");
    const char close = header[begin] == '(' ? ')' : ',';
    size_t end = header.find(close, begin);
    if (end == std::string::npos) end = header.find('}', begin);
    if (end == std::string::npos) fail_damaged(path, "the .npy header does not end");
    return header.substr(begin, end - begin);
}

// "(600, 2, 32" and "(600," as numbers.
std::vector<int64_t> numbers_in(const std::string &text, const std::string &path) {
    std::vector<int64_t> numbers;
    for (size_t i = 1; i < text.size();) {
        if (text[i] == ' ' || text[i] == ',') {
            ++i;
            continue;
        }
        int64_t number = 0;
        const size_t begin = i;
        for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
            number = number * 10 + (text[i] - '0');
            if (number > int64_t{1} << 48) fail_damaged(path, "the shape is too large");
        }
        if (i == begin) fail_damaged(path, "the shape in the .npy header is not one of numbers");
        numbers.push_back(number);
    }
    return numbers;
}

std::string read_npy_header(std::FILE *file, const std::string &path) {
    unsigned char start[8], length[4] = {};
    read_exactly(file, path, start, sizeof start);
    if (std::memcmp(start, "\x93NUMPY", 6) != 0 || start[6] < 1 || start[6] > 3) {
        fail_damaged(path, "not a .npy file of version 1 to 3");
    }
    read_exactly(file, path, length, start[6] == 1 ? 2 : 4);
    const size_t bytes =
        length[0] | size_t{length[1]} << 8 | size_t{length[2]} << 16 | size_t{length[3]} << 24;
    if (bytes > 1 << 20) fail_damaged(path, "the .npy header is longer than 1 MiB");
    std::string header(bytes, '\0');
    read_exactly(file, path, &header[0], bytes);
    return header;
}

Element npy_element(const std::string &header, const std::string &path) {
    const std::string type = value_of(header, "descr", path);
    if (type == "'<f4'") return Element::kF32;
    if (type == "'|i1'" || type == "'<i1'") return Element::kI8;
    if (type == "'<i2'") return Element::kI16;
    throw Failure(kUnsupported, path + ": its type is " + type +
                                    ", qk reads '<f4' (float32), '|i1' and '<i2' (codes)");
}

SequenceShape npy_shape(const std::string &header, const std::string &path) {
    if (value_of(header, "fortran_order", path) != "False") {
        throw Failure(kUnsupported, path + ": its order is Fortran's, qk reads C's");
    }
    const std::vector<int64_t> numbers = numbers_in(value_of(header, "shape", path), path);
    if (numbers.size() != 2 && numbers.size() != 3) {
        throw Failure(kUnsupported, path + ": " + std::to_string(numbers.size()) +
                                        " dimensions, accepted are [t,c] and [t,b,c]");
    }
    if (numbers.size() == 2) return {numbers[0], 1, numbers[1], 2};
    return {numbers[0], numbers[1], numbers[2], 3};
}

std::string npy_header(const SequenceShape &shape, Element element) {
    std::string text = "{'descr': '";
    text += element == Element::kF32 ? "<f4" : element == Element::kI8 ? "|i1" : "<i2";
    text += "', 'fortran_order': False, 'shape': (" + std::to_string(shape.steps) + ", ";
    if (shape.rank == 3) text += std::to_string(shape.batch) + ", ";
    text += std::to_string(shape.size) + "), }";
    text.append(63 - (10 + text.size()) % 64, ' ');  // data starts at a multiple of 64
    text += '\n';
    std::string header("\x93NUMPY\x01\0", 8);
    header += static_cast<char>(text.size() & 255);
    header += static_cast<char>(text.size() >> 8);
    return header + text;
}

}  // namespace

int64_t bytes_of(Element element) {
    return element == Element::kF32 ? 4 : element == Element::kI16 ? 2 : 1;
}

qk_format format_of(Element element) {
    return element == Element::kF32   ? QK_FORMAT_F32
           : element == Element::kI16 ? QK_FORMAT_I16
                                      : QK_FORMAT_I8;
}

bool is_npy(const std::string &path) {
    if (ends_with(path, ".npy")) return true;
    raw_element(path);
    return false;
}

Element raw_element(const std::string &path) {
    if (ends_with(path, ".f32")) return Element::kF32;
    if (ends_with(path, ".i8")) return Element::kI8;
    if (ends_with(path, ".i16")) return Element::kI16;
    throw Failure(kUsage, path + ": arrays are files named *.npy, *.f32, *.i8 or *.i16");
}

File open_file(const std::string &path) {
    File file(os::open_file(path));
    if (file == nullptr) fail_system("open", path);
    return file;
}

std::vector<char> read_file(const std::string &path) {
    const File file = open_file(path);
    std::vector<char> bytes(static_cast<size_t>(file_bytes(file.get(), path)));
    if (bytes.empty()) fail_damaged(path, "the file is empty");
    read_exactly(file.get(), path, bytes.data(), bytes.size());
    return bytes;
}

NewFile::NewFile(const std::string &path, bool force) {
    refuse_existing(path, force);
    qk_writer *writer = nullptr;
    qk_io_message message = {};
    check(qk_writer_create(path.c_str(), nullptr, &writer, &message), "", message.text);
    writer_.reset(writer);
}

void NewFile::write(const void *data, size_t bytes) {
    qk_io_message message = {};
    check(qk_writer_append(writer_.get(), data, bytes, &message), "", message.text);
}

void commit(const std::vector<const NewFile *> &files) {
    std::vector<qk_writer *> writers;
    writers.reserve(files.size());
    for (const NewFile *file : files) writers.push_back(file->writer_.get());
    qk_io_message message = {};
    check_files_whole();
    check(qk_writer_finish_all(writers.data(), static_cast<int64_t>(writers.size()), nullptr, 0,
                               &message),
          "", message.text);
}

SequenceReader::SequenceReader(const std::string &path, int64_t batch, int64_t size) : path_(path) {
    const bool npy = is_npy(path);
    file_ = open_file(path);
    const int64_t bytes = file_bytes(file_.get(), path);
    int64_t data_bytes = bytes;
    if (npy) {
        const std::string header = read_npy_header(file_.get(), path);
        element_ = npy_element(header, path);
        shape_ = npy_shape(header, path);
        data_bytes -= std::ftell(file_.get());
        if (batch != 0 && shape_.batch != batch) {
            throw Failure(kUsage, path + " has a batch of " + std::to_string(shape_.batch) +
                                      ", --batch says " + std::to_string(batch));
        }
    } else {
        element_ = raw_element(path);
        shape_ = {0, batch == 0 ? 1 : batch, size, batch == 0 ? 2 : 3};
    }
    if (shape_.size != size) {
        throw Failure(kFailed, path + " has " + std::to_string(shape_.size) +
                                   " values a step, the GRU takes " + std::to_string(size));
    }
    if (shape_.batch < 1 || shape_.batch > 65535) {
        fail_damaged(path, "a batch of " + std::to_string(shape_.batch) + ", accepted 1..65535");
    }
    const int64_t step_bytes = shape_.batch * size * bytes_of(element_);  // at most 2^34
    if (!npy) shape_.steps = data_bytes / step_bytes;
    if (shape_.steps == 0) fail_damaged(path, "no complete step in it");
    if (data_bytes % step_bytes != 0 || data_bytes / step_bytes != shape_.steps) {
        fail_damaged(path, std::to_string(data_bytes) +
                               " bytes of values, not a number of steps "
                               "of " +
                               std::to_string(step_bytes));
    }
}

void SequenceReader::read(void *values, int64_t steps) {
    read_exactly(file_.get(), path_, values,
                 static_cast<size_t>(steps * shape_.batch * shape_.size * bytes_of(element_)));
}

std::vector<float> SequenceReader::read_floats() {
    if (element_ != Element::kF32) {
        throw Failure(kUnsupported, path_ + ": holds codes, float32 values are asked for");
    }
    std::vector<float> values(static_cast<size_t>(shape_.steps * shape_.batch * shape_.size));
    read(values.data(), shape_.steps);
    return values;
}

SequenceWriter::SequenceWriter(const std::string &path, const SequenceShape &shape, Element element,
                               bool force)
    : shape_(shape), element_(element), file_(path, force) {
    if (!is_npy(path)) return;
    const std::string header = npy_header(shape, element);
    file_.write(header.data(), header.size());
}

void SequenceWriter::write(const void *values, int64_t steps) {
    file_.write(values,
                static_cast<size_t>(steps * shape_.batch * shape_.size * bytes_of(element_)));
}
