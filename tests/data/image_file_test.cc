#include "lockstep/data/image_file.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "lockstep/checkpoint/pickle_file.h"

namespace lockstep {
namespace {

const std::string kFolder = "tests/data/images/";

const Value& Golden() {
  static const Value golden = LoadPickle(kFolder + "rgb.pkl").value();
  return golden;
}

std::string Slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

absl::StatusOr<at::Tensor> ReadBytes(const std::string& bytes, const ReadImageOptions& options = {}) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/picture";
  std::ofstream(path, std::ios::binary) << bytes;
  return ReadImage(path, options);
}

TEST(ReadImage, EachKindIsWhatPillowMakesOfIt) {
  ASSERT_EQ(Golden().dict()->items.size(), 23u);
  for (const auto& [name, want] : Golden().dict()->items) {
    const auto image = ReadImage(kFolder + *name.string());
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_TRUE(image->is_contiguous());
    EXPECT_EQ(image->scalar_type(), at::kByte);
    const at::Tensor wanted = want.tensor()->permute({2, 0, 1});
    ASSERT_EQ(image->sizes(), wanted.sizes()) << *name.string();
    EXPECT_TRUE(image->equal(wanted)) << *name.string() << ": differs by up to "
                                      << image->to(at::kInt).sub(wanted.to(at::kInt)).abs().max().item<int>();
  }
}

TEST(ReadImage, CutsAreErrors) {
  for (const char* name : {"rgba.png", "palette_4_bits.png", "rgb_420.jpg", "progressive.jpg", "cmyk.JPEG"}) {
    const std::string whole = Slurp(kFolder + name);
    // Of a PNG's end, the closing chunk and a checksum are not missed.
    for (size_t size = 0; size + 30 < whole.size(); size += 3) {
      const auto image = ReadBytes(whole.substr(0, size));
      ASSERT_FALSE(image.ok()) << name << " " << size;
      EXPECT_NE(image.status().message().find("/picture: "), std::string::npos) << image.status();
    }
  }
}

TEST(ReadImage, NoByteThatIsWrongEndsTheProcess) {
  ReadImageOptions options;
  options.max_pixels = 1 << 16;
  for (const auto& [name, _] : Golden().dict()->items) {
    const std::string whole = Slurp(kFolder + *name.string());
    for (size_t i = 0; i < whole.size(); i += 3) {
      std::string damaged = whole;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
      const auto image = ReadBytes(damaged, options);
      EXPECT_TRUE(!image.ok() || image->size(0) == 3);
    }
  }
}

TEST(ReadImage, WhatIsWrongIsNamed) {
  const auto expect = [](const absl::StatusOr<at::Tensor>& image, const std::string& want) {
    ASSERT_FALSE(image.ok()) << want;
    EXPECT_NE(image.status().message().find(want), std::string::npos) << image.status() << "\nwant: " << want;
  };
  const std::string png = Slurp(kFolder + "rgba.png"), jpeg = Slurp(kFolder + "rgb_444.jpg");
  expect(ReadBytes(""), "neither PNG nor JPEG");
  expect(ReadBytes("GIF89a"), "neither PNG nor JPEG");
  expect(ReadBytes(png.substr(0, 100)), "damaged PNG: truncated");
  expect(ReadBytes(jpeg.substr(0, jpeg.size() - 100)), "truncated JPEG");
  ReadImageOptions options;
  options.max_pixels = 19 * 13 - 1;
  expect(ReadBytes(png, options), "19 x 13 pixels");
  expect(ReadBytes(jpeg, options), "19 x 13 pixels");
  options.max_pixels = 19 * 13;
  EXPECT_TRUE(ReadBytes(png, options).ok());
  EXPECT_TRUE(ReadBytes(jpeg, options).ok());
  // 65,500 × 65,500 in a small file.
  std::string large = jpeg;
  const size_t frame = large.find("\xff\xc0");
  for (const size_t at : {frame + 5, frame + 7}) large.replace(at, 2, "\xff\xdc");
  expect(ReadBytes(large), "65500 x 65500 pixels");
  EXPECT_EQ(ReadImage("/nowhere.png").status().code(), absl::StatusCode::kNotFound);
  expect(ReadImage(kFolder), "not a regular file");
  const std::string pipe = std::string(std::getenv("TEST_TMPDIR")) + "/pipe.png";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  expect(ReadImage(pipe), "not a regular file");
}

}  // namespace
}  // namespace lockstep
