#include "lockstep/checkpoint/pth.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "lockstep/base/atomic_file.h"
#include "test_files.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string Folder() {
  std::string pattern = std::string(std::getenv("TEST_TMPDIR")) + "/pth.XXXXXX";
  return mkdtemp(pattern.data());
}

void ExpectEqual(const Value& a, const Value& b) {
  ASSERT_EQ(a.get().index(), b.get().index());
  if (const auto* t = a.tensor()) {
    EXPECT_EQ(t->scalar_type(), b.tensor()->scalar_type());
    EXPECT_EQ(t->strides(), b.tensor()->strides());
    EXPECT_TRUE(t->equal(*b.tensor()));
  } else if (const auto* items = a.items()) {
    ASSERT_EQ(items->size(), b.items()->size());
    for (size_t i = 0; i < items->size(); ++i) ExpectEqual((*items)[i], (*b.items())[i]);
  } else if (const auto* dict = a.dict()) {
    EXPECT_EQ(dict->kind, b.dict()->kind);
    ASSERT_EQ(dict->items.size(), b.dict()->items.size());
    for (size_t i = 0; i < dict->items.size(); ++i) {
      ExpectEqual(dict->items[i].first, b.dict()->items[i].first);
      ExpectEqual(dict->items[i].second, b.dict()->items[i].second);
    }
  } else if (const auto* s = a.string()) {
    EXPECT_EQ(*s, *b.string());
  } else if (!a.is_none()) {
    EXPECT_EQ(*a.number(), *b.number());
  }
}

Value Sample() {
  const at::Tensor base = at::arange(24, at::kFloat).view({4, 6});
  ValueDict model;
  model.kind = ValueDict::Kind::kOrdered;
  model.items = {{"a", base},
                 {"transposed", base.t()},
                 {"part", base.narrow(0, 1, 2)},
                 {"scalar", at::scalar_tensor(2.5)},
                 {"empty", at::empty({0, 3})},
                 {"half", at::rand({3}).to(at::kHalf)},
                 {"bf16", at::rand({3}).to(at::kBFloat16)},
                 {"long", at::arange(5)},
                 {"bool", at::ones({2}, at::kBool)},
                 {"complex", at::ones({2}, at::kComplexFloat)},
                 {"channels_last", at::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)}};
  Value v((ValueDict()));
  v.set("model", model);
  v.set("none", Value());
  v.set("flag", true);
  v.set("numbers", ValueList{1, -1, int64_t{1} << 40, -(int64_t{1} << 40), 0.1, 1e300, -2});
  v.set("tuple", ValueTuple{{"text", "ünïcode", ValueTuple{}}});
  v.set("empty", ValueDict());
  return v;
}

TEST(Pth, KeepsEverything) {
  const std::string path = Folder() + "/deep/er/file.pt";
  const Value value = Sample();
  const absl::Status saved = SavePth(value, path);
  ASSERT_TRUE(saved.ok()) << saved;
  const auto loaded = LoadPth(path);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ExpectEqual(value, *loaded);
  // Views of one storage still share it.
  const Value& model = *loaded->find("model");
  EXPECT_TRUE(model.find("a")->tensor()->is_alias_of(*model.find("part")->tensor()));
  EXPECT_EQ(std::distance(fs::directory_iterator(fs::path(path).parent_path()), {}), 1) << "no temporary file is left";
}

TEST(Pth, ReadsWhatPythonWrote) {
  const auto file = LoadPth("tests/models/conv_net.pth");
  ASSERT_TRUE(file.ok()) << file.status();
  const Value* before = file->find("before");
  ASSERT_NE(before, nullptr);
  EXPECT_EQ(before->find("layer1.0.weight")->tensor()->sizes(), (std::vector<int64_t>{32, 1, 3, 3}));
  EXPECT_EQ(before->find("layer1.1.num_batches_tracked")->tensor()->scalar_type(), at::kLong);
  EXPECT_EQ(file->find("losses")->items()->size(), 3u);
}

TEST(Pth, NamesFilesThatAreNone) {
  EXPECT_EQ(LoadPth("/nowhere/x.pt").status().code(), absl::StatusCode::kNotFound);
  const std::string folder = Folder();
  EXPECT_FALSE(LoadPth(folder).ok());
  for (const std::string& text : {std::string(), std::string("hello"), std::string(100000, '\0')}) {
    std::ofstream(folder + "/x.pt") << text;
    const auto loaded = LoadPth(folder + "/x.pt");
    ASSERT_FALSE(loaded.ok());
    EXPECT_NE(loaded.status().message().find("x.pt"), std::string::npos);
    EXPECT_EQ(loaded.status().message().find('\n'), std::string::npos) << loaded.status();
  }
}

TEST(Pth, SurvivesTruncationAndFlippedBytes) {
  const std::string folder = Folder(), good = folder + "/good.pt", bad = folder + "/bad.pt";
  ASSERT_TRUE(SavePth(Sample(), good).ok());
  const std::string bytes = Slurp(good);
  for (size_t cut : {size_t{1}, bytes.size() / 4, bytes.size() / 2, bytes.size() - 30, bytes.size() - 1}) {
    std::ofstream(bad, std::ios::binary) << bytes.substr(0, cut);
    EXPECT_FALSE(LoadPth(bad).ok()) << cut;
  }
  std::mt19937 random(1206);
  const int rounds = std::getenv("LOCKSTEP_EXHAUSTIVE") != nullptr ? 20000 : 300;
  for (int i = 0; i < rounds; ++i) {
    std::string broken = bytes;
    for (int flips = 1 + random() % 3; flips > 0; --flips)
      broken[random() % broken.size()] = static_cast<char>(random());
    std::ofstream(bad, std::ios::binary) << broken;
    (void)LoadPth(bad).ok();  // either is fine, a crash is not
  }
}

TEST(Pth, ExecutesNothing) {
  // torch.save's container with a pickle that would call os.system.
  const std::string folder = Folder(), path = folder + "/x.pt";
  ASSERT_TRUE(SavePth(Value("01234567890123456789012345678901234567890123456789"), path).ok());
  std::string bytes = Slurp(path);
  const std::string evil = std::string("\x80\x02") + "cposix\nsystem\n(X\x05\0\0\0false\x85R.";
  const auto at = bytes.find("\x80\x02X");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, evil.size(), evil);
  std::ofstream(path, std::ios::binary) << bytes;
  EXPECT_FALSE(LoadPth(path).ok());
}

TEST(AtomicFile, AFileThatCannotBeWrittenLeavesTheOldOne) {
  const std::string folder = Folder(), path = folder + "/x.pt";
  ASSERT_TRUE(SavePth(Value(1), path).ok());
  const absl::Status refused = SavePth(Value(at::empty({2}).to_sparse()), path);
  EXPECT_FALSE(refused.ok());
  EXPECT_EQ(*LoadPth(path)->number(), 1);
  EXPECT_FALSE(SavePth(Value(1), "/proc/nowhere/x.pt").ok());
  std::ofstream(folder + "/file") << "x";
  const absl::Status below_a_file = SavePth(Value(1), folder + "/file/x.pt");
  ASSERT_FALSE(below_a_file.ok());
  EXPECT_NE(below_a_file.message().find("/file/x.pt"), std::string::npos) << below_a_file;
}

TEST(AtomicFile, AProcessKilledWhileSavingLeavesAWholeFile) {
  const std::string path = Folder() + "/x.pt";
  ASSERT_TRUE(SavePth(Value(at::zeros({1 << 20})), path).ok());
  for (int round = 0; round < 8; ++round) {
    const pid_t child = fork();
    if (child == 0) {
      at::set_num_threads(1);  // the threads of a forked process are gone
      for (int i = 1;; ++i) (void)SavePth(Value(at::full({1 << 20}, i)), path);
    }
    // In the middle of a save: when the temporary file has reached one size or another.
    const std::string temporary = path + ".tmp." + std::to_string(child);
    std::error_code error;
    while (fs::file_size(temporary, error) + 1 < static_cast<uintmax_t>(round) * 500000 + 2) sched_yield();
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const auto loaded = LoadPth(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->tensor()->min().item<float>(), loaded->tensor()->max().item<float>());
  }
}

}  // namespace
}  // namespace lockstep
