// The tables in docs/collectives.md are made here: `./bazelw run //tests/comm:definedness_test` writes them, the test
// compares. That what they say is true, collectives_test shows on shm and Gloo.

#include "lockstep/comm/definedness.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace lockstep {
namespace {

const std::vector<std::string> kBackends = {"shm", "gloo", "nccl"};
const std::vector<c10::ScalarType> kDtypes = {
    c10::kBool,   c10::kByte,        c10::kChar,         c10::kShort,         c10::kInt,           c10::kLong,
    c10::kUInt16, c10::kUInt32,      c10::kUInt64,       c10::kHalf,          c10::kBFloat16,      c10::kFloat,
    c10::kDouble, c10::kComplexHalf, c10::kComplexFloat, c10::kComplexDouble, c10::kFloat8_e4m3fn, c10::kFloat8_e5m2};
constexpr char kBegin[] = "<!-- Made by //tests/comm:definedness_test. -->\n", kEnd[] = "<!-- End. -->\n";

std::string Table() {
  std::string text = "| dtype | moved by | sum | avg | product | min, max | band, bor, bxor |\n";
  text += "| --- | --- | --- | --- | --- | --- | --- |\n";
  for (c10::ScalarType dtype : kDtypes) {
    text += std::string("| ") + c10::toString(dtype) + " |";
    const auto cell = [&](const auto& defined) {
      std::string names;
      for (const std::string& backend : kBackends) {
        if (defined(backend)) names += (names.empty() ? "" : ", ") + backend;
      }
      text += " " + (names.empty() ? "–" : names) + " |";
    };
    cell([&](const std::string& backend) { return IsMovable(backend, dtype); });
    for (auto reduction : {c10d::ReduceOp::SUM, c10d::ReduceOp::AVG, c10d::ReduceOp::PRODUCT, c10d::ReduceOp::MIN,
                           c10d::ReduceOp::BAND}) {
      cell([&](const std::string& backend) { return IsReductionDefined(backend, reduction, dtype); });
    }
    text += "\n";
  }
  return text;
}

std::string Read(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

TEST(Definedness, TheDocumentShowsIt) {
  const char* workspace = std::getenv("BUILD_WORKSPACE_DIRECTORY");  // set by `bazel run`
  const std::string path = (workspace == nullptr ? "" : std::string(workspace) + "/") + "docs/collectives.md";
  const std::string document = Read(path);
  const size_t begin = document.find(kBegin), end = document.find(kEnd);
  ASSERT_NE(begin, std::string::npos) << path;
  ASSERT_NE(end, std::string::npos) << path;
  const std::string wanted =
      document.substr(0, begin + sizeof(kBegin) - 1) + "\n" + Table() + "\n" + document.substr(end);
  if (workspace != nullptr) {
    std::ofstream(path) << wanted;
  } else {
    EXPECT_EQ(document, wanted) << "run ./bazelw run //tests/comm:definedness_test";
  }
}

TEST(Definedness, ReductionsComeInPairs) {
  for (const std::string& backend : kBackends) {
    for (c10::ScalarType dtype : kDtypes) {
      EXPECT_EQ(IsReductionDefined(backend, c10d::ReduceOp::MIN, dtype),
                IsReductionDefined(backend, c10d::ReduceOp::MAX, dtype));
      EXPECT_EQ(IsReductionDefined(backend, c10d::ReduceOp::BAND, dtype),
                IsReductionDefined(backend, c10d::ReduceOp::BXOR, dtype));
      EXPECT_FALSE(IsReductionDefined(backend, c10d::ReduceOp::PREMUL_SUM, dtype));
    }
  }
}

}  // namespace
}  // namespace lockstep
