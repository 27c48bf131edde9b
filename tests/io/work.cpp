// Work in proportion to the metadata: comparisons of names are counted, not seconds.
#include <gtest/gtest.h>

#include "maker.hpp"
#include "qk_io.h"
#include "system.hpp"

namespace {

using io_test::Folder;
using io_test::the_system;

// Comparisons of names that a writer makes for these names, as metadata, tensors and layers.
int64_t comparisons_of(const std::vector<std::string> &names) {
    const Folder folder;
    qk_writer *writer = nullptr;
    qk_context *context = nullptr;
    qk_io_message message = {};
    EXPECT_EQ(QK_OK, qk_context_create(nullptr, &context));
    EXPECT_EQ(QK_OK, qk_writer_create(folder.path("f").c_str(), nullptr, &writer, &message));
    qk_tensor_desc desc = QK_TENSOR_DESC_INIT;
    desc.rank = 2;
    desc.shape[0] = desc.shape[1] = 1;
    qk_tensor *tensor = nullptr;
    EXPECT_EQ(QK_OK, qk_tensor_create(context, &desc, &tensor));
    the_system() = {};
    for (const std::string &name : names) {
        EXPECT_EQ(QK_OK, qk_writer_metadata(writer, name.c_str(), "", &message));
        EXPECT_EQ(QK_OK, qk_writer_declare_layer(writer, QK_DIALECT_DENSE, name.c_str(), &desc,
                                                 QK_FORMAT_F32, &message));
    }
    const int64_t declared = the_system().comparisons;
    EXPECT_EQ(QK_ERROR_ARGUMENT, qk_writer_metadata(writer, names[1].c_str(), "", &message));
    EXPECT_EQ(QK_ERROR_ARGUMENT, qk_writer_declare_layer(writer, QK_DIALECT_DENSE, names[1].c_str(),
                                                         &desc, QK_FORMAT_F32, &message));
    // The first write lays the file out, which sorts the names.
    EXPECT_EQ(QK_OK, qk_writer_write_layer(writer, context, names[0].c_str(), tensor, &message));
    the_system().comparisons = 0;
    the_system().calls.clear();
    for (size_t i = 1; i < names.size(); ++i) {
        EXPECT_EQ(QK_OK,
                  qk_writer_write_layer(writer, context, names[i].c_str(), tensor, &message));
    }
    const int64_t written = the_system().comparisons;
    EXPECT_EQ(QK_OK, qk_writer_finish(writer, &message)) << message.text;
    qk_tensor_destroy(tensor);
    qk_writer_destroy(writer);
    qk_context_destroy(context);
    return declared + written;
}

std::vector<std::string> numbers(int64_t count) {
    std::vector<std::string> names;
    for (int64_t i = 0; i < count; ++i) names.push_back("model.layers." + std::to_string(i));
    return names;
}

// Names that the 64-bit hash FNV-1a, the usual one, puts into the same of 4096 places.
std::vector<std::string> colliding(size_t count) {
    std::vector<std::string> names;
    for (uint64_t i = 0; names.size() < count; ++i) {
        const std::string name = std::to_string(i);
        uint64_t hash = 14695981039346656037u;
        for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
        if (hash % 4096 == 7) names.push_back(name);
    }
    return names;
}

TEST(Work, OfAWriterGrowsWithTheNumberOfNames) {
    const int64_t small = comparisons_of(numbers(1000)), large = comparisons_of(numbers(8000));
    EXPECT_GT(small, 1000) << "nothing was counted";
    EXPECT_LT(large, 16 * small) << "8 times the names";
    EXPECT_LT(large, 8000 * 40);
}

TEST(Work, NamesCannotBeChosenToCollide) { EXPECT_LT(comparisons_of(colliding(1000)), 1000 * 40); }

int64_t comparisons_to_open(int64_t count) {
    std::string header = "{\"__metadata__\":{";
    for (int64_t i = 0; i < count; ++i) {
        header += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":\"\"";
    }
    header += "}";
    for (int64_t i = 0; i < count; ++i) {
        header += ",\"" + std::to_string(i) +
                  ".weight\":{\"dtype\":\"U8\",\"shape\":[0,1],\"data_offsets\":[0,0]}";
    }
    const std::string file = io_test::raw_file(header + "}");
    qk_checkpoint *checkpoint = nullptr;
    qk_io_message message = {};
    the_system() = {};
    EXPECT_EQ(QK_OK, qk_checkpoint_open_memory(file.data(), file.size(), nullptr, 0, nullptr,
                                               &checkpoint, &message))
        << message.text;
    const int64_t made = the_system().comparisons;
    EXPECT_EQ(count, qk_checkpoint_layer_count(checkpoint));
    qk_checkpoint_destroy(checkpoint);
    return made;
}

TEST(Work, OfOpeningGrowsWithTheNumberOfNames) {
    const int64_t small = comparisons_to_open(1000), large = comparisons_to_open(8000);
    EXPECT_GT(small, 1000) << "nothing was counted";
    EXPECT_LT(large, 16 * small) << "8 times the names, and the logarithm of sorting them";
}

}  // namespace
