#include "lockstep/data/dataset_loader.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>

#include "lockstep/data/collate.h"
#include "lockstep/data/device_source.h"
#include "lockstep/samplers/distributed_sampler.h"

namespace lockstep {
namespace {

/// Sample i is a vector of 1 + i mod 3 numbers i. Samples of low index take longest.
struct Numbers : torch::data::datasets::Dataset<Numbers> {
  explicit Numbers(size_t size, int64_t broken = -1) : size_(size), broken_(broken) {}
  torch::data::Example<> get(size_t index) override {
    if (static_cast<int64_t>(index) == broken_) throw std::runtime_error("a broken file");
    for (size_t i = index; i < size_ * 50; ++i) std::this_thread::yield();
    const auto number = static_cast<int64_t>(index);
    return {at::full({1 + number % 3}, number), at::scalar_tensor(number, at::kLong)};
  }
  c10::optional<size_t> size() const override { return size_; }
  const size_t size_;
  const int64_t broken_;
};

using Loader = DatasetLoader<Numbers>;

TensorBatch Pad(std::vector<torch::data::Example<>> samples) { return PadSamples(std::move(samples), -1); }

std::vector<int64_t> Targets(Loader& loader) {
  std::vector<int64_t> all;
  while (auto batch = loader.Next()) {
    for (int64_t i = 0; i < batch->target.numel(); ++i) all.push_back(batch->target[i].item<int64_t>());
  }
  return all;
}

TEST(DatasetLoader, AnErrorEndsThePassAndNamesTheSampleForAnyNumberOfWorkers) {
  for (const size_t workers : {0, 2}) {
    LoaderOptions options;
    options.batch_size = 3;
    options.num_workers = workers;
    Loader loader(std::make_shared<Numbers>(20, 7), /*shuffle=*/false, options, Pad);
    loader.StartEpoch(0);
    EXPECT_TRUE(loader.Next());
    EXPECT_TRUE(loader.Next());
    try {
      loader.Next();
      FAIL() << "sample 7 is broken";
    } catch (const c10::Error& e) {
      EXPECT_NE(std::string(e.what()).find("sample 7: a broken file"), std::string::npos);
    }
    EXPECT_FALSE(loader.Next()) << workers << " workers";
  }
}

TEST(DatasetLoader, ASamplerOfMoreSamplesThanThereAreIsAnErrorThatSaysSo) {
  LoaderOptions options;
  options.batch_size = SIZE_MAX;
  Loader loader(std::make_shared<Numbers>(5), DistributedSampler(6, 1, 0, {}), options, Pad);
  EXPECT_EQ(loader.num_batches(), 1u);
  EXPECT_EQ(loader.SamplesIn(2), SIZE_MAX);
  loader.StartEpoch(0);
  try {
    loader.Next();
    FAIL() << "there is no sample 5";
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find("sample 5: the data set has 5"), std::string::npos);
  }
}

TEST(DatasetLoader, TheOrderIsTheSamplersForAnyNumberOfWorkers) {
  const auto numbers = std::make_shared<Numbers>(47);
  std::vector<std::vector<int64_t>> orders;
  for (const size_t workers : {0, 1, 2, 5}) {
    LoaderOptions options;
    options.batch_size = 3;
    options.num_workers = workers;
    options.seed = 9;
    Loader loader(numbers, /*shuffle=*/true, options, Pad);
    EXPECT_EQ(loader.num_batches(), 16u);
    for (size_t epoch = 0; epoch < 2; ++epoch) {
      loader.StartEpoch(epoch);
      orders.push_back(Targets(loader));
      EXPECT_EQ(orders.back().size(), 47u);
      EXPECT_EQ(orders.back(), orders[epoch]) << workers << " workers";
    }
  }
  EXPECT_NE(orders[0], orders[1]);
}

TEST(DatasetLoader, SamplesOfVaryingLengthArePadded) {
  Loader loader(std::make_shared<Numbers>(6), false, {6}, Pad);
  loader.StartEpoch(0);
  const auto batch = loader.Next();
  EXPECT_TRUE(batch->data[1].equal(at::tensor({1, 1, -1}, at::kLong))) << batch->data;
  EXPECT_TRUE(batch->data[5].equal(at::tensor({5, 5, 5}, at::kLong)));
}

TEST(DatasetLoader, StackedSamplesMustHaveOneShape) {
  Loader loader(std::make_shared<Numbers>(6), false, {6});
  loader.StartEpoch(0);
  try {
    loader.Next();
    FAIL();
  } catch (const c10::Error& e) {
    EXPECT_NE(std::string(e.what()).find("[1] and [2]"), std::string::npos) << e.what();
  }
}

TEST(DatasetLoader, AnExceptionComesInItsTurnAndNamesTheSample) {
  for (const size_t workers : {0, 1, 4}) {
    LoaderOptions options;
    options.batch_size = 2;
    options.num_workers = workers;
    Loader loader(std::make_shared<Numbers>(40, 7), false, options, Pad);
    for (int pass = 0; pass < 3; ++pass) {
      loader.StartEpoch(0);
      for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(loader.Next()->target[0].item<int64_t>(), 2 * i);
      try {
        loader.Next();
        FAIL();
      } catch (const c10::Error& e) {
        EXPECT_NE(std::string(e.what()).find("sample 7: a broken file"), std::string::npos) << e.what();
      }
    }
  }
}

TEST(DatasetLoader, CanBeLeftInTheMiddle) {
  for (int i = 0; i < 50; ++i) {
    LoaderOptions options;
    options.num_workers = 3;
    Loader loader(std::make_shared<Numbers>(20), true, options);
    loader.StartEpoch(0);
    if (i % 2 == 1) loader.Next();
  }
}

TEST(DatasetLoader, SkippedBatchesAreNotRead) {
  LoaderOptions options;
  options.batch_size = 2;
  Loader loader(std::make_shared<Numbers>(10, 3), false, options, Pad);  // sample 3 can't be read
  loader.StartEpoch(0);
  EXPECT_TRUE(loader.Skip(2));
  EXPECT_EQ(Targets(loader), (std::vector<int64_t>{4, 5, 6, 7, 8, 9}));
  loader.StartEpoch(0);
  EXPECT_FALSE(loader.Skip(6));
}

TEST(DatasetLoader, TransformsKnowTheSamples) {
  LoaderOptions options;
  options.batch_size = 4;
  options.seed = 3;
  options.num_workers = 2;
  Loader loader(std::make_shared<Numbers>(8), DistributedSampler(8, 2, 1), options, Pad,
                [](TensorBatch batch, const BatchKeys& keys) {
                  EXPECT_EQ(keys.seed, 3u);
                  EXPECT_EQ(keys.epoch, 5u);
                  for (size_t i = 0; i < keys.samples.size(); ++i) {
                    EXPECT_EQ(batch.target[static_cast<int64_t>(i)].item<int64_t>(),
                              static_cast<int64_t>(keys.samples[i]));
                  }
                  return batch;
                });
  loader.StartEpoch(5);
  EXPECT_EQ(Targets(loader).size(), 4u);
}

TEST(DeviceSource, PassesBatchesOfTheCpuOn) {
  Loader loader(std::make_shared<Numbers>(6), false, {2}, Pad);
  DeviceSource source(loader, at::kCPU);
  source.StartEpoch(0);
  EXPECT_EQ(source.num_batches(), 3u);
  EXPECT_TRUE(source.Skip(2));
  EXPECT_EQ(source.Next()->target[1].item<int64_t>(), 5);
  EXPECT_FALSE(source.Next());
}

}  // namespace
}  // namespace lockstep
