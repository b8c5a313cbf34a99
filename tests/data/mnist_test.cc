#include "lockstep/data/mnist.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <zlib.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

std::string Folder() {
  std::string pattern = std::string(std::getenv("TEST_TMPDIR")) + "/mnist.XXXXXX";
  return mkdtemp(pattern.data());
}

std::string Write(const std::string& text, const std::string& name = "data.csv") {
  const std::string path = Folder() + "/" + name;
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

/// A row whose pixel i is (i + label) mod 256; `columns` counts the label.
std::string Row(int label, int columns = 785, const std::string& end = "\n") {
  std::string row = std::to_string(label);
  for (int i = 0; i + 1 < columns; ++i) row += "," + std::to_string((i + label) % 256);
  return row + end;
}

/// A row with `field` in `column`, which counts from 1.
std::string RowWith(int column, const std::string& field) {
  std::string row;
  for (int c = 1; c <= 785; ++c) row += (c == 1 ? "" : ",") + (c == column ? field : std::string("7"));
  return row + "\n";
}

void ExpectGood(const std::string& text, int rows) {
  const auto data = LoadMnistCsv(Write(text));
  ASSERT_TRUE(data.ok()) << data.status();
  ASSERT_EQ(data->images.sizes(), (std::vector<int64_t>{rows, 1, 28, 28}));
  ASSERT_EQ(data->labels.numel(), rows);
  for (int r = 0; r < rows; ++r) {
    const int64_t label = data->labels[r].item<int64_t>();
    EXPECT_EQ(label, r);
    EXPECT_EQ(data->images[r].flatten()[300].item<int>(), (300 + r) % 256);
    EXPECT_EQ(data->images[r].flatten()[783].item<int>(), (783 + r) % 256);
  }
}

void ExpectError(const std::string& text, const std::string& want) {
  const auto data = LoadMnistCsv(Write(text));
  ASSERT_FALSE(data.ok()) << want;
  EXPECT_NE(data.status().message().find(want), std::string::npos) << data.status() << "\nwant: " << want;
  EXPECT_EQ(data.status().message().find('\n'), std::string::npos);
}

TEST(MnistCsv, ReadsRows) { ExpectGood(Row(0) + Row(1) + Row(2), 3); }
TEST(MnistCsv, ReadsALastRowWithoutNewline) { ExpectGood(Row(0) + Row(1, 785, ""), 2); }
TEST(MnistCsv, ReadsCrLf) { ExpectGood(Row(0, 785, "\r\n") + Row(1, 785, "\r\n"), 2); }
TEST(MnistCsv, ReadsAByteOrderMark) { ExpectGood("\xEF\xBB\xBF" + Row(0) + Row(1), 2); }
TEST(MnistCsv, ReadsAHeader) { ExpectGood("label,p0,p1\n" + Row(0) + Row(1), 2); }
TEST(MnistCsv, ReadsABomAndAHeader) { ExpectGood("\xEF\xBB\xBF\"label\",\"p0\"\r\n" + Row(0), 1); }
TEST(MnistCsv, ReadsTrailingBlankLines) { ExpectGood(Row(0) + Row(1) + "\n\r\n  \n", 2); }
TEST(MnistCsv, ReadsSpacesAroundNumbers) { ExpectGood("0, 0 ,1" + Row(0).substr(5), 1); }

TEST(MnistCsv, NamesWhatIsWrong) {
  ExpectError("", "no rows");
  ExpectError("label,p0\n", "no rows");
  ExpectError(Row(0) + Row(1, 784), "row 2, column 784: the row ends after 784 columns; want 785");
  ExpectError(Row(0) + Row(1, 786), "row 2, column 786: the row has 786 columns; want 785");
  ExpectError(Row(0) + RowWith(5, "x"), "row 2, column 5: 'x' is no whole number");
  ExpectError("h,h\n" + RowWith(785, "-3"), "row 2, column 785: '-3'");
  ExpectError(RowWith(9, "256"), "row 1, column 9: pixel 256");
  ExpectError(RowWith(9, "99999999999999999999"), "row 1, column 9");
  ExpectError(RowWith(9, "1.5"), "row 1, column 9: '1.5'");
  ExpectError(RowWith(9, ""), "row 1, column 9");
  ExpectError(RowWith(785, ""), "row 1, column 785");
  ExpectError(RowWith(1, "10"), "row 1, column 1: label 10 is not from 0 to 9");
  ExpectError(RowWith(1, ""), "row 1, column 1");
  ExpectError(Row(0) + "\n" + Row(1), "row 2, column 1: a blank line between rows");
  ExpectError(RowWith(3, std::string("1\0", 2)), "row 1, column 3");
}

TEST(MnistCsv, ADamagedFirstRowIsNoHeader) {
  ExpectError(RowWith(1, "x") + Row(0), "row 1, column 1: 'x'");
  ExpectError(RowWith(1, "\"5\""), "row 1, column 1: '\\\"5\\\"'");
}

TEST(MnistCsv, ShowsNoControlCharacters) {
  ExpectError(RowWith(2, "\x1b[31m"), "row 1, column 2: '\\x1b[31m'");
  ExpectError(RowWith(2, std::string("\0x", 2)), "row 1, column 2: '\\x00x'");
}

TEST(MnistCsv, NamesAMissingFileAPipeAndAFolder) {
  const std::string pipe = Folder() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(LoadMnistCsv(pipe).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(LoadMnistCsv("/nowhere/x.csv").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(LoadMnistCsv(Folder()).ok());
}

std::string Big(uint32_t v) {
  return {static_cast<char>(v >> 24), static_cast<char>(v >> 16), static_cast<char>(v >> 8), static_cast<char>(v)};
}
std::string Images(int n, char value) { return Big(0x803) + Big(n) + Big(28) + Big(28) + std::string(n * 784, value); }
std::string Labels(int n, char value) { return Big(0x801) + Big(n) + std::string(n, value); }

void Put(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

TEST(MnistIdx, ConcatenatesTrainBeforeT10k) {
  const std::string folder = Folder();
  Put(folder + "/train-images-idx3-ubyte", Images(3, 9));
  Put(folder + "/train-labels-idx1-ubyte", Labels(3, 1));
  const std::string zipped = folder + "/t10k-images-idx3-ubyte.gz";
  gzFile gz = gzopen(zipped.c_str(), "wb");
  const std::string bytes = Images(2, 200);
  gzwrite(gz, bytes.data(), bytes.size());
  gzclose(gz);
  Put(folder + "/t10k-labels-idx1-ubyte", Labels(2, 4));
  const auto data = LoadMnist(folder);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->images.size(0), 5);
  EXPECT_EQ(data->images[0].max().item<int>(), 9);
  EXPECT_EQ(data->images[4].min().item<int>(), 200);
  EXPECT_EQ(data->labels[4].item<int>(), 4);
}

void ExpectIdxError(const std::string& images, const std::string& labels, const std::string& want) {
  const std::string folder = Folder();
  if (!images.empty()) Put(folder + "/train-images-idx3-ubyte", images);
  if (!labels.empty()) Put(folder + "/train-labels-idx1-ubyte", labels);
  const auto data = LoadMnistIdx(folder);
  ASSERT_FALSE(data.ok()) << want;
  EXPECT_NE(data.status().message().find(want), std::string::npos) << data.status();
}

TEST(MnistIdx, NamesADamagedGzip) {
  const std::string folder = Folder(), zipped = folder + "/train-images-idx3-ubyte.gz";
  gzFile gz = gzopen(zipped.c_str(), "wb");
  const std::string bytes = Images(2, 200);
  gzwrite(gz, bytes.data(), bytes.size());
  gzclose(gz);
  Put(folder + "/train-labels-idx1-ubyte", Labels(2, 1));
  ASSERT_TRUE(LoadMnistIdx(folder).ok());
  std::ifstream in(zipped, std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  for (size_t cut : {4, 8, 20}) {
    Put(zipped, whole.substr(0, whole.size() - cut));
    EXPECT_NE(LoadMnistIdx(folder).status().message().find("truncated"), std::string::npos) << cut;
  }
  std::string checksum = whole;
  checksum[checksum.size() - 8] ^= 1;
  Put(zipped, checksum);
  EXPECT_NE(LoadMnistIdx(folder).status().message().find("damaged"), std::string::npos)
      << LoadMnistIdx(folder).status();
  fs::remove(zipped);
  ASSERT_EQ(mkfifo((folder + "/train-images-idx3-ubyte").c_str(), 0600), 0);
  EXPECT_NE(LoadMnistIdx(folder).status().message().find("not a regular file"), std::string::npos);
}

TEST(MnistIdx, NamesWhatIsWrong) {
  ExpectIdxError("", "", "train-images-idx3-ubyte");
  ExpectIdxError(Images(2, 0), "", "labels-idx1-ubyte is missing");
  ExpectIdxError(Images(2, 0).substr(0, 900), Labels(2, 0), "truncated: 884 bytes of data, want 1568");
  ExpectIdxError(Images(2, 0).substr(0, 7), Labels(2, 0), "truncated");
  ExpectIdxError(Labels(2, 0), Labels(2, 0), "wrong magic number 0x00000801, want 0x00000803");
  ExpectIdxError(Images(2, 0) + "x", Labels(2, 0), "longer");
  ExpectIdxError(Images(2, 0), Labels(3, 0), "2 pictures");
  ExpectIdxError(Images(2, 0), Labels(2, 10), "label 10 is not from 0 to 9");
  ExpectIdxError(Images(0, 0), Labels(0, 0), "no pictures");
  ExpectIdxError(Big(0x803) + Big(0xFFFFFFFF) + Big(28) + Big(28), Labels(2, 0), "truncated");
}

}  // namespace
}  // namespace lockstep
