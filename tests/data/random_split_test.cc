#include "lockstep/data/random_split.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace lockstep {
namespace {

TEST(RandomSplit, GivesPythonsIndices) {
  std::ifstream file("tests/data/random_split.txt");
  int rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    std::istringstream in(line);
    int64_t n;
    uint64_t seed;
    std::string word;
    in >> n >> seed >> word;
    std::vector<std::vector<int64_t>> expected(1);
    while (in >> word) {
      if (word == "|") {
        expected.emplace_back();
      } else {
        expected.back().push_back(std::stoll(word));
      }
    }
    if (line.back() == ' ' && expected.size() < 3) expected.emplace_back();
    const auto parts = RandomSplit(n, {0.8, 0.1, 0.1}, seed);
    bool empty = false;
    for (const auto& part : expected) empty = empty || part.empty();
    if (empty) {
      EXPECT_FALSE(parts.ok()) << line;
      continue;
    }
    ASSERT_TRUE(parts.ok()) << parts.status();
    ASSERT_EQ(parts->size(), 3u);
    for (size_t p = 0; p < 3; ++p) {
      const auto* values = (*parts)[p].const_data_ptr<int64_t>();
      EXPECT_EQ(std::vector<int64_t>(values, values + (*parts)[p].numel()), expected[p]) << line;
    }
  }
  EXPECT_GT(rows, 10);
}

TEST(RandomSplit, NamesTheEmptyPart) {
  const auto parts = RandomSplit(3, {0.8, 0.1, 0.1}, 0);
  ASSERT_FALSE(parts.ok());
  EXPECT_NE(parts.status().message().find("part 2 empty"), std::string::npos) << parts.status();
}

TEST(RandomSplit, RefusesFractionsThatAreNone) {
  EXPECT_FALSE(RandomSplit(10, {0.5, 0.4}, 0).ok());
  EXPECT_FALSE(RandomSplit(10, {1.5, -0.5}, 0).ok());
  EXPECT_FALSE(RandomSplit(10, {}, 0).ok());
}

}  // namespace
}  // namespace lockstep
