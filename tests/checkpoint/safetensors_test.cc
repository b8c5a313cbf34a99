#include "lockstep/checkpoint/safetensors.h"
#include "test_files.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>
#include <string>

namespace lockstep {
namespace {

using namespace std::string_literals;

void ExpectPythons(const Safetensors& file) {
  const auto expect = [&](const char* name, const at::Tensor& expected) {
    ASSERT_NE(file.tensors.find(name), nullptr) << name;
    const at::Tensor& tensor = *file.tensors.find(name)->tensor();
    EXPECT_EQ(tensor.scalar_type(), expected.scalar_type()) << name;
    EXPECT_EQ(tensor.sizes(), expected.sizes()) << name;
    EXPECT_TRUE(tensor.to(at::kDouble).equal(expected.to(at::kDouble))) << name;
  };
  expect("weight", at::arange(6., at::kFloat).view({2, 3}));
  expect("half", at::ones({3}, at::kHalf));
  expect("flag", at::tensor({1, 0}).to(at::kBool));
  expect("bf16", at::full({2}, 1.5, at::kBFloat16));
  expect("scalar", at::scalar_tensor(7, at::kLong));
  expect("empty", at::empty({0, 2}));
  expect("float8", at::tensor({1.f, 2.f}).to(at::kFloat8_e4m3fn));
  expect("unsigned", at::full({1}, 65535, at::kInt).to(at::kUInt16));
  EXPECT_EQ(file.tensors.dict()->items.size(), 8u);
  EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"note", "ünïcode"}}));
}

// See make_golden.py.
TEST(Safetensors, ReadsWhatPythonWroteAndWritesTheSameBytes) {
  const auto file = LoadSafetensors("tests/checkpoint/python.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  ExpectPythons(*file);
  const std::string path = Temporary("again.safetensors");
  const absl::Status saved = SaveSafetensors(file->tensors, path, file->metadata);
  ASSERT_TRUE(saved.ok()) << saved;
  const auto again = LoadSafetensors(path);
  ASSERT_TRUE(again.ok()) << again.status();
  ExpectPythons(*again);
}

TEST(Safetensors, WritesViewsWholeAndKeepsNothingOfTheFile) {
  const std::string path = Temporary("views.safetensors");
  const at::Tensor base = at::arange(12., at::kFloat).view({3, 4});
  Value tensors((ValueDict()));
  tensors.set("transposed", base.t());
  tensors.set("part", base.narrow(1, 1, 2));
  tensors.set("expanded", at::ones({1}).expand({5}));
  tensors.set("conjugate", at::full({1}, c10::complex<double>(1, 2), at::kComplexFloat).conj());
  ASSERT_TRUE(SaveSafetensors(tensors, path).ok());
  const auto loaded = LoadSafetensors(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  for (const auto& [name, tensor] : tensors.dict()->items) {
    EXPECT_TRUE(loaded->tensors.find(*name.string())->tensor()->equal(tensor.tensor()->resolve_conj()))
        << *name.string();
  }
  loaded->tensors.find("part")->tensor()->fill_(9);
  EXPECT_TRUE(LoadSafetensors(path)->tensors.find("part")->tensor()->equal(base.narrow(1, 1, 2)));
  ASSERT_TRUE(SaveSafetensors(Value(ValueDict()), path).ok());
  EXPECT_TRUE(LoadSafetensors(path)->tensors.dict()->items.empty());
}

TEST(Safetensors, RefusesWhatTheFormatCannotHold) {
  const std::string path = Temporary("refused.safetensors");
  Value tensors((ValueDict()));
  tensors.set("number", 3);
  EXPECT_NE(SaveSafetensors(tensors, path).message().find("'number'"), std::string::npos);
  EXPECT_FALSE(SaveSafetensors(Value(at::ones({1})), path).ok());
  tensors.set("number", at::eye(2).to_sparse());
  EXPECT_FALSE(SaveSafetensors(tensors, path).ok());
  tensors.set("number", at::ones({1}, at::kComplexDouble));
  EXPECT_NE(SaveSafetensors(tensors, path).message().find("dtype"), std::string::npos);
  EXPECT_EQ(access(path.c_str(), F_OK), -1) << "nothing is left";
  EXPECT_FALSE(SaveSafetensors(Value(ValueDict()), "/proc/nowhere/x.safetensors").ok());
  EXPECT_EQ(LoadSafetensors("/nowhere/x").status().code(), absl::StatusCode::kNotFound);
}

std::string File(const std::string& header, const std::string& data = "") {
  const uint64_t size = header.size();
  return std::string(reinterpret_cast<const char*>(&size), 8) + header + data;
}

absl::Status LoadBytes(const std::string& bytes) {
  const std::string path = Temporary("bytes.safetensors");
  std::ofstream(path, std::ios::binary) << bytes;
  return LoadSafetensors(path).status();
}

TEST(Safetensors, DamagedFilesAreErrors) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";
  ASSERT_TRUE(LoadBytes(File(good, "abcd")).ok());
  const std::map<std::string, std::string> files = {
      {"short", "abc"},
      {"no header", File("")},
      {"a header longer than the file", std::string(7, '\xff') + "\x7f{}"},
      {"no JSON", File("{nonsense")},
      {"a list", File("[1,2]")},
      {"truncated data", File(good, "abc")},
      {"data of nobody", File(good, "abcde")},
      {"an unknown dtype", File(R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", "abcd")},
      {"another shape", File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "abcd")},
      {"a negative shape", File(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", "abcd")},
      {"a shape that overflows",
       File(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4,1],"data_offsets":[0,0]}})")},
      {"offsets backwards", File(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", "abcd")},
      {"a hole", File(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", "ab")},
      {"an overlap",
       File(
           R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
           "ab")},
      {"metadata that is no text", File(R"({"__metadata__":{"a":1}})")},
      {"deep nesting", File("{\"a\":" + std::string(1000000, '[') + std::string(1000000, ']') + "}")},
  };
  for (const auto& [what, bytes] : files) {
    const absl::Status status = LoadBytes(bytes);
    EXPECT_FALSE(status.ok()) << what;
    EXPECT_NE(status.message().find("bytes.safetensors"), std::string::npos) << what << status;
    EXPECT_EQ(status.message().find('\n'), std::string::npos) << what << status;
  }
}

TEST(Fuzz, NoMutatedFileCrashesOrHangs) {
  const std::string good = Slurp("tests/checkpoint/python.safetensors");
  const int rounds = std::getenv("LOCKSTEP_EXHAUSTIVE") != nullptr ? 100000 : 2000;
  std::mt19937_64 random(1206);
  for (int i = 0; i < rounds; ++i) {
    std::string bytes = good;
    for (int change = 1 + static_cast<int>(random() % 4); change > 0; --change) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.erase(at, 1 + random() % 16); break;
        default: bytes.insert(at, bytes.substr(random() % bytes.size(), 1 + random() % 16));
      }
      if (bytes.empty()) bytes = "x";
    }
    (void)LoadBytes(bytes).ok();
  }
}

}  // namespace
}  // namespace lockstep
