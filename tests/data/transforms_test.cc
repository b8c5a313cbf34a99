#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "lockstep/checkpoint/pth.h"
#include "lockstep/data/transforms/color_jitter.h"
#include "lockstep/data/transforms/crop.h"
#include "lockstep/data/transforms/mix.h"
#include "lockstep/data/transforms/pixels.h"
#include "lockstep/data/transforms/random_erasing.h"
#include "lockstep/data/transforms/resize.h"
#include "lockstep/data/transforms/transform.h"

namespace lockstep {
namespace {

using namespace transforms;  // NOLINT

class Transforms : public testing::Test {
 protected:
  void SetUp() override {
    auto file = LoadPth("tests/data/transforms.pth");
    ASSERT_TRUE(file.ok()) << file.status();
    golden_ = *std::move(file);
    pictures_ = *golden_.find("pictures")->tensor();
    floats_ = pictures_.to(at::kFloat).div(255);
  }

  at::Tensor Golden(const std::string& name) { return *golden_.find(name)->tensor(); }

  Value golden_;
  at::Tensor pictures_, floats_;  // (3, 3, 16, 12)
};

BatchKeys Keys(size_t samples, size_t epoch = 0, uint64_t seed = 1) {
  BatchKeys keys{seed, epoch, {}, 0};
  for (size_t i = 0; i < samples; ++i) keys.samples.push_back(i);
  return keys;
}

at::Tensor Apply(const Transform& transform, const at::Tensor& data, const BatchKeys& keys) {
  return transform({data, at::zeros({data.size(0)}, at::kLong)}, keys).data;
}
at::Tensor Apply(const Transform& transform, const at::Tensor& data) {
  return Apply(transform, data, Keys(static_cast<size_t>(data.size(0))));
}

void ExpectThrows(const std::function<void()>& what, const std::string& text) {
  try {
    what();
    FAIL() << "nothing was thrown; expected " << text;
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
  }
}

/// Of the same type, and equal to the number of grey levels (floats: to 1e-5).
void ExpectSame(const at::Tensor& got, const at::Tensor& expected, int levels = 0) {
  ASSERT_EQ(got.scalar_type(), expected.scalar_type());
  ASSERT_EQ(got.sizes(), expected.sizes());
  const double apart = (got.to(at::kDouble) - expected.to(at::kDouble)).abs().max().item<double>();
  EXPECT_LE(apart, got.is_floating_point() ? 1e-5 : levels);
}

TEST_F(Transforms, ResizingEqualsTorchvisions) {
  for (const std::string type : {"uint8", "float"}) {
    const at::Tensor& x = type == "uint8" ? pictures_ : floats_;
    ExpectSame(Apply(Resize(20, 30), x), Golden(type + " up"), 1);
    ExpectSame(Apply(Resize(7, 5), x), Golden(type + " down"), 1);
    ExpectSame(Apply(ResizeShorterSide(8), x), Golden(type + " shorter"), 1);
    ExpectSame(Apply(Resize(7, 5, /*antialias=*/false), x), Golden(type + " aliased"), 1);
  }
}

TEST_F(Transforms, ResizeAndRandomCropIsResizeThenRandomCrop) {
  for (const auto& [height, width] : {std::pair{40, 36}, std::pair{9, 8}, std::pair{16, 30}}) {
    for (size_t epoch = 0; epoch < 5; ++epoch) {
      const BatchKeys keys = Keys(3, epoch);
      const at::Tensor both = Apply(ResizeAndRandomCrop(height, width, 8, 7), floats_, keys);
      ExpectSame(both, Apply(RandomCrop(8, 7), Apply(Resize(height, width), floats_), keys));
    }
  }
}

TEST_F(Transforms, CropsAndFlipsEqualTorchvisions) {
  ExpectSame(Apply(CenterCrop(5, 7), pictures_), Golden("center"));
  ExpectSame(Apply(CenterCrop(21, 9), pictures_), Golden("center larger"));
  ExpectSame(Apply(RandomHorizontalFlip(1), pictures_), Golden("flip"));
  ExpectSame(Apply(RandomHorizontalFlip(0), pictures_), pictures_);
}

TEST_F(Transforms, ColoursEqualTorchvisions) {
  ExpectSame(Apply(Normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}), floats_), Golden("normalize"));
  ColorJitterOptions brightness, contrast, saturation, hue, back;
  brightness.brightness = {1.3, 1.3};
  contrast.contrast = {0.6, 0.6};
  saturation.saturation = {1.7, 1.7};
  hue.hue = {0.13, 0.13};
  back.hue = {-0.4, -0.4};
  ExpectSame(Apply(ColorJitter(brightness), floats_), Golden("brightness"));
  ExpectSame(Apply(ColorJitter(contrast), floats_), Golden("contrast"));
  ExpectSame(Apply(ColorJitter(saturation), floats_), Golden("saturation"));
  ExpectSame(Apply(ColorJitter(hue), floats_), Golden("hue"));
  ExpectSame(Apply(ColorJitter(back), floats_), Golden("hue back"));
  ExpectSame(Apply(ToFloat(), pictures_), floats_);
}

TEST_F(Transforms, TheCallersTensorStaysAsItIs) {
  const at::Tensor before = floats_.clone();
  RandomErasingOptions erase;
  erase.p = 1;
  ColorJitterOptions jitter;
  jitter.brightness = {0.5, 0.6};
  Apply(Compose({ToFloat(2), RandomErasing(erase), ColorJitter(jitter), CutMix(1, 10)}), floats_);
  EXPECT_TRUE(floats_.equal(before));
}

TEST_F(Transforms, RandomCropsAreWindowsAndReachEveryPlace) {
  const at::Tensor wide = at::constant_pad_nd(pictures_, {2, 2, 2, 2}, 7);
  std::set<std::pair<int64_t, int64_t>> places;
  for (size_t epoch = 0; epoch < 200; ++epoch) {
    const at::Tensor crops = Apply(RandomCrop(16, 12, 2, 7), pictures_, Keys(3, epoch));
    int found = 0;
    for (int64_t top = 0; top <= 4; ++top) {
      for (int64_t left = 0; left <= 4; ++left) {
        if (!crops[0].equal(wide[0].narrow(1, top, 16).narrow(2, left, 12))) continue;
        places.emplace(top, left);
        ++found;
      }
    }
    ASSERT_EQ(found, 1);
  }
  EXPECT_EQ(places.size(), 25u);
}

TEST_F(Transforms, WhatIsDrawnDependsOnSeedEpochAndSampleAlone) {
  RandomErasingOptions erase;
  erase.noise = true;
  ColorJitterOptions jitter;
  jitter.brightness = {0.5, 1.5};
  jitter.hue = {-0.2, 0.2};
  const Transform all = Compose({RandomCrop(16, 12, 3), ToFloat(), RandomHorizontalFlip(), ColorJitter(jitter),
                                 Compose({RandomCrop(12, 12)}), RandomErasing(erase)});
  const at::Tensor together = Apply(all, pictures_);
  for (size_t i = 0; i < 3; ++i) {
    BatchKeys one = Keys(3);
    one.samples = {i};
    const auto n = static_cast<int64_t>(i);
    EXPECT_TRUE(Apply(all, pictures_.narrow(0, n, 1), one)[0].equal(together[n]));
  }
  EXPECT_FALSE(Apply(all, pictures_, Keys(3, 1)).equal(together));
  EXPECT_FALSE(Apply(all, pictures_, Keys(3, 0, 2)).equal(together));
}

TEST_F(Transforms, TwoOfOneKindDrawDifferentNumbers) {
  int differ = 0;
  for (size_t epoch = 0; epoch < 20; ++epoch) {  // twice the same flip would always give the picture itself
    const Transform twice = Compose({RandomHorizontalFlip(), RandomHorizontalFlip()});
    differ += Apply(twice, pictures_, Keys(3, epoch)).equal(pictures_) ? 0 : 1;
  }
  EXPECT_GT(differ, 5);
}

TEST_F(Transforms, FlipsAreAsOftenAsAsked) {
  const at::Tensor many = at::arange(2, at::kFloat).view({1, 1, 1, 2}).repeat({4000, 1, 1, 1});
  const double flipped = Apply(RandomHorizontalFlip(0.3), many).select(3, 0).mean().item<double>();
  EXPECT_NEAR(flipped, 0.3, 0.03);
}

TEST_F(Transforms, ErasedRectanglesHaveTorchvisionsSize) {
  RandomErasingOptions options;
  options.p = 1;
  options.scale = {0.2, 0.2};
  options.ratio = {1.5, 1.5};
  std::set<std::vector<int64_t>> places;
  for (size_t epoch = 0; epoch < 20; ++epoch) {
    const at::Tensor erased = Apply(RandomErasing(options), at::ones({1, 3, 16, 12}), Keys(1, epoch)) == 0;
    EXPECT_EQ(erased.sum().item<int64_t>(), *golden_.find("erased")->number());
    const at::Tensor first = erased[0][0].nonzero()[0];
    places.insert({first[0].item<int64_t>(), first[1].item<int64_t>()});
  }
  EXPECT_GT(places.size(), 10u);
}

TEST_F(Transforms, MixUpMixesNeighboursAndTheirTargets) {
  const at::Tensor data = at::eye(4).view({4, 1, 2, 2}), target = at::arange(4, at::kLong);
  const TensorBatch mixed = MixUp(0.8, 4)({data, target}, Keys(4));
  for (int64_t i = 0; i < 4; ++i) {
    const int64_t before = (i + 3) % 4;
    const double own = mixed.target[i][i].item<double>();
    EXPECT_NEAR(mixed.target[i][before].item<double>(), 1 - own, 1e-6);
    ExpectSame(mixed.data[i], data[i] * own + data[before] * (1 - own));
  }
  EXPECT_TRUE(at::allclose(mixed.target.sum(1), at::ones({4})));
}

TEST_F(Transforms, CutMixsTargetsAreTheAreas) {
  const at::Tensor data = at::arange(6, at::kFloat).view({6, 1, 1, 1}).expand({6, 3, 16, 12});
  for (size_t epoch = 0; epoch < 10; ++epoch) {
    const TensorBatch mixed = CutMix(1, 6)({data, at::arange(6, at::kLong)}, Keys(6, epoch));
    for (int64_t i = 0; i < 6; ++i) {
      const int64_t before = (i + 5) % 6;
      const double own = (mixed.data[i][0] == i).to(at::kFloat).mean().item<double>();
      EXPECT_NEAR((mixed.data[i][0] == before).to(at::kFloat).mean().item<double>(), 1 - own, 1e-6);
      EXPECT_NEAR(mixed.target[i][i].item<double>(), own, 1e-6);
      EXPECT_NEAR(mixed.target[i][before].item<double>(), 1 - own, 1e-6);
    }
  }
}

TEST_F(Transforms, MixturesCanBeMixed) {
  const TensorBatch mixed = Compose({MixUp(1, 10), CutMix(1, 10)})({floats_, at::arange(3, at::kLong)}, Keys(3));
  EXPECT_TRUE(at::allclose(mixed.target.sum(1), at::ones({3})));
}

TEST_F(Transforms, WhatDoesntFitIsNamed) {
  ExpectThrows([&] { Apply(Normalize({0.5}, {0.5}), pictures_); }, "put ToFloat before it");
  ExpectThrows([&] { Apply(Normalize({0.5, 0.5}, {1, 1}), floats_); }, "2 means for pictures of 3 channels");
  ExpectThrows([&] { Normalize({0.5}, {0}); }, "a standard deviation of 0");
  ExpectThrows([&] { Apply(RandomCrop(20, 4), pictures_); }, "20×4 out of pictures of 16×12");
  ExpectThrows([&] { Apply(CenterCrop(2, 2), pictures_[0]); }, "expected pictures (N, C, H, W)");
  ExpectThrows([&] { ResizeAndRandomCrop(8, 8, 9, 8); }, "9×8 out of 8×8");
  ExpectThrows([&] { Apply(ResizeAndRandomCrop(8, 8, 4, 4), pictures_); }, "put ToFloat before it");
  ExpectThrows([&] { RandomHorizontalFlip(1.5); }, "a probability of 1.5");
  ExpectThrows([&] { Resize(0, 3); }, "to 0×3");
  ExpectThrows([&] { MixUp(0, 10); }, "alpha must be above 0");
  ExpectThrows([&] { CutMix(1, 10)({floats_, at::zeros({3, 4})}, Keys(3)); }, "expected class indices");
  RandomErasingOptions backwards;
  backwards.scale = {0.5, 0.1};
  ExpectThrows([&] { RandomErasing(backwards); }, "the scale must be a range");
  ColorJitterOptions wide;
  wide.hue = {-0.7, 0.7};
  ExpectThrows([&] { ColorJitter(wide); }, "the hue's range from -0.7 to 0.7");
}

}  // namespace
}  // namespace lockstep
