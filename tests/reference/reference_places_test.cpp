// The reference's bytes against docs/formats.md: the bytes here are the bytes printed there.
#include <gtest/gtest.h>

#include <sstream>

#include "reference.hpp"

namespace {

using namespace reference;

constexpr Layout kLayouts[] = {Layout::row,  Layout::row_high, Layout::awq_gemm, Layout::awq_gemv,
                               Layout::gptq, Layout::gptq_v1,  Layout::word};

std::vector<uint8_t> hex(const std::string &text) {
    std::istringstream stream(text);
    std::vector<uint8_t> bytes;
    for (std::string byte; stream >> byte;) bytes.push_back(uint8_t(std::stoi(byte, nullptr, 16)));
    return bytes;
}

std::string zeros(int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += " 00";
    return text + " ";
}

template <class Code>
Weight codes_only(Layout layout, int64_t n, int64_t k, Code code) {
    Weight weight;
    weight.spec.layout = layout;
    weight.spec.n = n;
    weight.spec.k = k;
    for (int64_t r = 0; r < n; ++r) {
        for (int64_t c = 0; c < k; ++c) weight.codes.push_back(uint8_t(code(r, c)));
    }
    weight.scales.assign(size_t(n), 0);
    return weight;
}

TEST(ReferencePlaces, EightCodesInARow) {
    for (const Layout layout : kLayouts) {
        SCOPED_TRACE(name(layout));
        const Planes planes = pack(codes_only(layout, 1, 8, [](auto, auto c) { return c + 1; }));
        const char *expected = "21 43 65 87";
        if (layout == Layout::row_high) expected = "12 34 56 78";
        if (layout == Layout::awq_gemm) {
            expected =
                "01 00 00 00 02 00 00 00 03 00 00 00 04 00 00 00 "
                "05 00 00 00 06 00 00 00 07 00 00 00 08 00 00 00";
        }
        EXPECT_EQ(planes.data, hex(expected));
    }
}

TEST(ReferencePlaces, EightCodesInAColumn) {
    for (const Layout layout : kLayouts) {
        SCOPED_TRACE(name(layout));
        const Planes planes = pack(codes_only(layout, 8, 1, [](auto r, auto) { return r + 1; }));
        const char *expected =
            "01 00 00 00 02 00 00 00 03 00 00 00 04 00 00 00 "
            "05 00 00 00 06 00 00 00 07 00 00 00 08 00 00 00";
        if (layout == Layout::row) expected = "01 02 03 04 05 06 07 08";
        if (layout == Layout::row_high) expected = "12 34 56 78";
        if (layout == Layout::awq_gemm) expected = "31 75 42 86";
        EXPECT_EQ(planes.data, hex(expected));
    }
}

TEST(ReferencePlaces, OddShape) {
    for (const Layout layout : kLayouts) {
        SCOPED_TRACE(name(layout));
        const auto code = [](auto r, auto c) { return 5 * r + c + 1; };
        const char *expected = "21 43 05 00 76 98 0A 00 CB ED 0F 00";
        if (layout == Layout::row) expected = "21 43 05 76 98 0A CB ED 0F";
        if (layout == Layout::row_high) expected = "12 34 56 78 9A BC DE F0";
        if (layout == Layout::awq_gemm) {
            expected = "B1 00 06 00 C2 00 07 00 D3 00 08 00 E4 00 09 00 F5 00 0A 00";
        }
        EXPECT_EQ(pack(codes_only(layout, 3, 5, code)).data, hex(expected));
    }
}

TEST(ReferencePlaces, NineByNine) {
    for (const Layout layout :
         {Layout::awq_gemm, Layout::awq_gemv, Layout::gptq, Layout::gptq_v1, Layout::word}) {
        SCOPED_TRACE(name(layout));
        const auto code = [](auto r, auto c) { return (r + 2 * c) % 16; };
        std::vector<uint8_t> bytes = pack(codes_only(layout, 9, 9, code)).data;
        EXPECT_EQ(bytes.size(), 72u);
        bytes.resize(16);
        const char *expected = "20 64 A8 EC 31 75 B9 FD 42 86 CA 0E 53 97 DB 1F";
        if (layout == Layout::awq_gemm)
            expected = "20 64 31 75 08 00 00 00 42 86 53 97 0A 00 00 00";
        if (layout == Layout::awq_gemv || layout == Layout::word) {
            expected = "20 64 A8 EC 00 00 00 00 31 75 B9 FD 01 00 00 00";
        }
        EXPECT_EQ(bytes, hex(expected));
    }
}

Weight grouped(Layout layout, bool flat) {
    Weight weight = codes_only(layout, 3, 40, [](auto, auto) { return 0; });
    weight.spec.group_size = 16;
    weight.spec.flat = flat;
    weight.spec.zeros = true;
    weight.scales.clear();
    for (int64_t group = 0; group < groups_of(weight.spec).count; ++group) {
        weight.scales.push_back(uint32_t(group + 1));
        weight.zeros.push_back(uint8_t(group + 1));
    }
    return weight;
}

struct GroupedExample {
    Layout layout;
    std::string zero;
    std::vector<int> scale_order;
};

TEST(ReferencePlaces, ScalesAndZeros) {
    const std::vector<int> in_order = {0, 1, 2, 3, 4, 5, 6, 7, 8};
    const std::vector<int> by_group = {0, 3, 6, 1, 4, 7, 2, 5, 8};
    std::vector<int> gemv;
    for (int row = 0; row < 3; ++row) {
        for (int g = 0; g < 64; ++g) gemv.push_back(g < 3 ? 3 * row + g : -1);
    }
    const GroupedExample examples[] = {
        {Layout::row, "21 03 54 06 87 09", in_order},
        {Layout::row_high, "12 34 56 78 90", in_order},
        {Layout::awq_gemm, "71 00 04 00 82 00 05 00 93 00 06 00", by_group},
        {Layout::gptq, "41 07 00 00 52 08 00 00 63 09 00 00", by_group},
        {Layout::gptq_v1, "30 06 00 00 41 07 00 00 52 08 00 00", by_group},
        {Layout::awq_gemv, "21 03" + zeros(30) + "54 06" + zeros(30) + "87 09" + zeros(30), gemv},
        {Layout::word, "41 07 00 00 52 08 00 00 63 09 00 00", in_order},
    };
    for (const GroupedExample &example : examples) {
        SCOPED_TRACE(name(example.layout));
        const Planes planes = pack(grouped(example.layout, false));
        EXPECT_EQ(planes.zero, hex(example.zero));
        std::vector<int> order;
        for (size_t i = 0; i < planes.scale.size(); i += 2) order.push_back(planes.scale[i] - 1);
        EXPECT_EQ(order, example.scale_order);
    }
    EXPECT_EQ(pack(grouped(Layout::row, true)).zero, hex("21 43 65 87"));
    EXPECT_EQ(pack(grouped(Layout::row_high, true)).zero, hex("12 34 56 78"));
}

TEST(ReferencePlaces, FlatGroupsStraddleRows) {
    const Groups groups = groups_of(grouped(Layout::row, true).spec);
    EXPECT_EQ(groups.count, 8);
    for (int64_t i = 0; i < 120; ++i) EXPECT_EQ(groups.of_code[size_t(i)], i / 16);
    EXPECT_EQ(groups.of_code[39], 2);  // row 0, column 39
    EXPECT_EQ(groups.of_code[47], 2);  // row 1, column 7
}

TEST(ReferencePlaces, GemvScalesOfALlamaLayer) {
    Spec spec;
    spec.layout = Layout::awq_gemv;
    spec.k = 11008;
    spec.group_size = 128;
    const Groups groups = groups_of(spec);
    EXPECT_EQ(groups.count, 86);
    EXPECT_EQ(scale_owners(spec, groups).size(), 88u);
}

TEST(ReferencePlaces, EveryCodeHasOnePlace) {
    for (const Layout layout : kLayouts) {
        for (int64_t n = 1; n <= 18; ++n) {
            for (int64_t k = 1; k <= 18; ++k) {
                const auto code = [=](auto r, auto c) { return (7 * r + 3 * c + r * c) % 16; };
                const Weight weight = codes_only(layout, n, k, code);
                std::vector<int> seen(size_t(n * k));
                for (const int64_t owner : code_owners(weight.spec)) {
                    if (owner != kPadding) ++seen[size_t(owner)];
                }
                ASSERT_EQ(seen, std::vector<int>(size_t(n * k), 1)) << name(layout);
                ASSERT_EQ(unpack(weight.spec, pack(weight)).codes, weight.codes) << name(layout);
            }
        }
    }
}

TEST(ReferencePlaces, ScalesAndZerosComeBack) {
    for (const Layout layout : kLayouts) {
        for (int64_t n = 1; n <= 17; ++n) {
            for (const int64_t k : {1, 15, 16, 17, 33, 64, 300}) {
                Weight weight =
                    codes_only(layout, n, k, [](auto r, auto c) { return (r + c) % 16; });
                weight.spec.zeros = true;
                weight.spec.group_size = 16;
                weight.spec.flat = layout == Layout::row_high;
                weight.scales.clear();
                for (int64_t g = 0; g < groups_of(weight.spec).count; ++g) {
                    weight.scales.push_back(uint32_t(1000 + g));
                    weight.zeros.push_back(uint8_t(g * 5 % 16));
                }
                const Weight back = unpack(weight.spec, pack(weight));
                ASSERT_EQ(back.scales, weight.scales) << name(layout);
                ASSERT_EQ(back.zeros, weight.zeros) << name(layout);
            }
        }
    }
}

}  // namespace
