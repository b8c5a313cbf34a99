#include "lockstep/data/cifar.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = "tests/data/cifar/";

std::string Folder() {
  std::string pattern = std::string(std::getenv("TEST_TMPDIR")) + "/cifar.XXXXXX";
  return mkdtemp(pattern.data());
}

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void Put(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

/// A folder with a copy of one of the archives.
std::string With(const std::string& archive) {
  const std::string folder = Folder();
  Put(folder + "/" + archive, Slurp(kGolden + archive));
  return folder;
}

/// The picture that make_golden.py calls the index-th.
at::Tensor Picture(int index) {
  const auto along = [](int64_t n, std::vector<int64_t> shape) { return at::arange(n, at::kLong).reshape(shape); };
  return ((index * 40 + along(3, {3, 1, 1}) * 80 + along(32, {32, 1}) * 2 + along(32, {32})) % 256).to(at::kByte);
}

void ExpectPictures(const absl::StatusOr<CifarData>& data, int first, const std::vector<int64_t>& labels) {
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->images.sizes(), (std::vector<int64_t>{static_cast<int64_t>(labels.size()), 3, 32, 32}));
  EXPECT_TRUE(data->images.is_contiguous());
  ASSERT_EQ(data->labels.scalar_type(), at::kLong);
  for (size_t i = 0; i < labels.size(); ++i) {
    EXPECT_TRUE(data->images[i].equal(Picture(first + i))) << i;
    EXPECT_EQ(data->labels[i].item<int64_t>(), labels[i]) << i;
  }
}

TEST(Cifar10, BothArchivesGiveWhatIsInThem) {
  for (const char* kind : {"binary", "python"}) {
    const std::string name = std::string("cifar-10-") + kind, folder = With(name + ".tar.gz");
    const std::string batches = name + (kind[0] == 'b' ? "/cifar-10-batches-bin" : "/cifar-10-batches-py");
    // The file, the folder with the file, what was unpacked, and the batches themselves.
    for (const std::string& path : {"/" + name + ".tar.gz", std::string(), "/" + name, "/" + batches}) {
      const auto train = LoadCifar10(folder + path, CifarSplit::kTrain);
      ExpectPictures(train, 0, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
      ASSERT_EQ(train->classes.size(), 10u);
      EXPECT_EQ(train->classes[9], "truck");
      ExpectPictures(LoadCifar10(folder + path, CifarSplit::kTest), 10, {0, 1});
      EXPECT_EQ(*FindCifar10(folder + path), folder + "/" + batches);
    }
  }
}

TEST(Cifar100, FineAndCoarseLabels) {
  for (const char* kind : {"binary", "python"}) {
    const std::string folder = With(std::string("cifar-100-") + kind + ".tar.gz");
    const auto fine = LoadCifar100(folder, CifarSplit::kTrain);
    ExpectPictures(fine, 0, {99, 98, 97});
    EXPECT_EQ(fine->classes.at(99), "fine_99");
    const auto coarse = LoadCifar100(folder, CifarSplit::kTest, Cifar100Labels::kCoarse);
    ExpectPictures(coarse, 3, {16, 15, 14});
    EXPECT_EQ(coarse->classes.size(), 20u);
    EXPECT_EQ(coarse->classes.at(19), "coarse_19");
  }
}

void ExpectError(const absl::StatusOr<CifarData>& data, const std::string& want,
                 absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  ASSERT_FALSE(data.ok()) << want;
  EXPECT_EQ(data.status().code(), code) << data.status();
  EXPECT_NE(data.status().message().find(want), std::string::npos) << data.status() << "\nwant: " << want;
  EXPECT_EQ(data.status().message().find('\n'), std::string::npos);
}

TEST(Cifar10, WhatIsMissingIsNamed) {
  const std::string folder = Folder();
  for (const char* want : {"cifar-10-batches-bin (data_batch_1.bin", "test_batch.bin, batches.meta.txt",
                           "cifar-10-batches-py (data_batch_1, ", "cifar-10-binary.tar.gz or cifar-10-python.tar.gz",
                           "nothing is fetched"}) {
    ExpectError(LoadCifar10(folder, CifarSplit::kTrain), want, absl::StatusCode::kNotFound);
    ExpectError(LoadCifar10("/nowhere", CifarSplit::kTest), want, absl::StatusCode::kNotFound);
  }
  ExpectError(LoadCifar100(folder, CifarSplit::kTrain), "cifar-100-python.tar.gz", absl::StatusCode::kNotFound);
  // CIFAR-100 is no CIFAR-10.
  ExpectError(LoadCifar10(With("cifar-100-binary.tar.gz") + "/cifar-100-binary.tar.gz", CifarSplit::kTrain),
              "was unpacked", absl::StatusCode::kNotFound);
  for (const char* kind : {"binary", "python"}) {
    const std::string name = std::string("cifar-10-") + kind;
    const std::string batches = *FindCifar10(With(name + ".tar.gz"));
    const std::string batch = batches + (kind[0] == 'b' ? "/data_batch_4.bin" : "/data_batch_4");
    fs::remove(batch);
    ExpectError(LoadCifar10(batches, CifarSplit::kTrain), batch, absl::StatusCode::kNotFound);
    EXPECT_TRUE(LoadCifar10(batches, CifarSplit::kTest).ok());
    const std::string names = batches + (kind[0] == 'b' ? "/batches.meta.txt" : "/batches.meta");
    fs::remove(names);
    ExpectError(LoadCifar10(batches, CifarSplit::kTest), names, absl::StatusCode::kNotFound);
  }
}

TEST(Cifar10, DamagedBinariesAreNamed) {
  const std::string batches = *FindCifar10(With("cifar-10-binary.tar.gz"));
  const std::string batch = batches + "/test_batch.bin", good = Slurp(batch);
  const auto expect = [&](const std::string& bytes, const std::string& want) {
    Put(batch, bytes);
    ExpectError(LoadCifar10(batches, CifarSplit::kTest), want);
    ExpectError(LoadCifar10(batches, CifarSplit::kTest), batch);
  };
  expect("", "empty");
  expect(good.substr(0, 3072), "3072 bytes are no multiple of 3073");
  expect(good + "x", "6147 bytes are no multiple of 3073");
  expect("\x0a" + good.substr(1), "label 10 is not from 0 to 9");
  expect("\xff" + good.substr(1), "label 255 is not from 0 to 9");
  fs::remove(batch);
  ASSERT_EQ(mkfifo(batch.c_str(), 0600), 0);
  ExpectError(LoadCifar10(batches, CifarSplit::kTest), "not a regular file");
  fs::remove(batch);
  Put(batch, good);
  Put(batches + "/batches.meta.txt", "cat\r\ndog\r\n");
  ExpectError(LoadCifar10(batches, CifarSplit::kTest), "names of 10 labels");
}

TEST(Cifar10, DamagedPicklesAreNamed) {
  const std::string batches = *FindCifar10(With("cifar-10-python.tar.gz"));
  const std::string batch = batches + "/test_batch", good = Slurp(batch);
  const auto expect = [&](const std::string& bytes, const std::string& want) {
    Put(batch, bytes);
    ExpectError(LoadCifar10(batches, CifarSplit::kTest), want);
    ExpectError(LoadCifar10(batches, CifarSplit::kTest), batch);
  };
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string bytes = good;
    return bytes.replace(bytes.find(from), from.size(), to);
  };
  expect("", "empty");
  expect(good.substr(0, good.size() / 2), "truncated");
  expect(replaced("labels", "lebals"), "has no 'labels'");
  expect(replaced("data", "dada"), "has no 'data'");
  expect(replaced(std::string("](K\0K\x01", 6), std::string("](K\0K\x0a", 6)), "label 10 is not from 0 to 9");
  expect(replaced(std::string("](K\0K\x01", 6), std::string("](K\0N", 5)), "a label of type");
  expect(replaced(std::string("](K\0K\x01", 6), std::string("](K\0", 4)), "as many labels as pictures, 2");
  expect(replaced(std::string("K\x02M\0\x0c", 5), std::string("K\x04M\0\x06", 5)), "3072 in each row");
  expect(replaced("u1", "i1"), "no array of bytes");
  expect(replaced("numpy.core.multiarray\n_reconstruct", "posix\nsystem"), "posix.system is not allowed");
  expect(std::string("\x80\x02]."), "has no 'data'");
}

TEST(SyntheticCifar10, TheSameBytesForASeedOnAnyMachine) {
  const std::string folder = Folder();
  ASSERT_TRUE(WriteSyntheticCifar10(folder, 13, 4, 42).ok());
  const auto train = LoadCifar10(folder, CifarSplit::kTrain), test = LoadCifar10(folder, CifarSplit::kTest);
  ASSERT_TRUE(train.ok()) << train.status();
  ASSERT_TRUE(test.ok()) << test.status();
  EXPECT_EQ(train->images.size(0), 13);
  EXPECT_EQ(test->images.size(0), 4);
  EXPECT_EQ(train->classes[3], "cat");
  std::string all;
  for (const char* file : {"data_batch_1.bin", "data_batch_5.bin", "test_batch.bin"}) {
    all += Slurp(folder + "/cifar-10-batches-bin/" + file);
  }
  EXPECT_EQ(all.size(), 3073u * (3 + 2 + 4));
  EXPECT_EQ(crc32(0, reinterpret_cast<const Bytef*>(all.data()), all.size()), 3933259786u);
  const std::string other = Folder();
  ASSERT_TRUE(WriteSyntheticCifar10(other, 13, 4, 43).ok());
  EXPECT_FALSE(LoadCifar10(other, CifarSplit::kTest)->images.equal(test->images));
}

TEST(SyntheticCifar10, RefusesWhatItCannotWrite) {
  EXPECT_EQ(WriteSyntheticCifar10(Folder(), 4, 1, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(WriteSyntheticCifar10(Folder(), 5, 0, 0).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(WriteSyntheticCifar10("/proc/nowhere", 5, 1, 0).ok());
}

/// Accuracy of the class whose mean picture, in a coarse view, is the nearest: no machine learning, and some way up.
TEST(SyntheticCifar10, CanBeLearntButNotByMeansAlone) {
  const std::string folder = Folder();
  ASSERT_TRUE(WriteSyntheticCifar10(folder, 3000, 500, 7).ok());
  const auto view = [](const CifarData& data) {
    const at::Tensor small = at::avg_pool2d(data.images.to(at::kFloat), {8, 8}).flatten(1);
    return small - small.mean(1, /*keepdim=*/true);
  };
  const auto train = LoadCifar10(folder, CifarSplit::kTrain), test = LoadCifar10(folder, CifarSplit::kTest);
  ASSERT_TRUE(train.ok() && test.ok());
  const at::Tensor x = view(*train);
  std::vector<at::Tensor> means;
  for (int c = 0; c < 10; ++c) means.push_back(x.index_select(0, train->labels.eq(c).nonzero().flatten()).mean(0));
  const at::Tensor nearest = at::cdist(view(*test), at::stack(means)).argmin(1);
  const double accuracy = (nearest == test->labels).to(at::kDouble).mean().item<double>();
  EXPECT_GT(accuracy, 0.3);
  EXPECT_LT(accuracy, 0.8);
}

}  // namespace
}  // namespace lockstep
