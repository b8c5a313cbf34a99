#include "lockstep/data/tensor_loader.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "lockstep/samplers/distributed_sampler.h"

namespace lockstep {
namespace {

std::vector<int64_t> Values(const at::Tensor& t) {
  const at::Tensor c = t.contiguous();
  return {c.const_data_ptr<int64_t>(), c.const_data_ptr<int64_t>() + c.numel()};
}

TEST(TensorLoader, GivesTheSamplersOrderWithAndWithoutPrefetch) {
  const at::Tensor data = at::arange(23) * 10, target = at::arange(23);
  for (size_t prefetch : {0, 1, 3}) {
    TensorLoader loader(data, target, DistributedSampler(23, 2, 0, {true, 5}), {4, false, prefetch, 12});
    EXPECT_EQ(loader.num_batches(), 3u);
    for (size_t epoch = 0; epoch < 3; ++epoch) {
      DistributedSampler expected(23, 2, 0, {true, 5});
      expected.set_epoch(epoch);
      expected.reset();
      loader.StartEpoch(epoch);
      size_t batches = 0;
      while (auto batch = loader.Next()) {
        const auto indices = expected.next(4);
        ASSERT_TRUE(indices);
        EXPECT_EQ(Values(batch->target), std::vector<int64_t>(indices->begin(), indices->end()));
        EXPECT_TRUE(batch->data.equal(batch->target * 10));
        ++batches;
      }
      EXPECT_EQ(batches, 3u);
      EXPECT_FALSE(loader.Next());
    }
  }
}

TEST(TensorLoader, DropsAShortLastBatch) {
  TensorLoader loader(at::arange(10), at::arange(10), DistributedSampler(10, 1, 0), {4, true, 2, 10});
  loader.StartEpoch(0);
  EXPECT_EQ(loader.num_batches(), 2u);
  EXPECT_TRUE(loader.Next());
  EXPECT_TRUE(loader.Next());
  EXPECT_FALSE(loader.Next());
}

TEST(TensorLoader, AnEpochMayBeLeftEarly) {
  TensorLoader loader(at::arange(100), at::arange(100), DistributedSampler(100, 1, 0, {false}), {10, false, 2, 100});
  for (int i = 0; i < 20; ++i) {
    loader.StartEpoch(i);
    EXPECT_EQ(loader.Next()->data[0].item<int64_t>(), 0);
  }
}

TEST(TensorLoader, AnExceptionInTheThreadReachesTheCaller) {
  TensorLoader loader(at::arange(10), at::arange(10), DistributedSampler(10, 1, 0, {false}), {5, false, 2, 10},
                      [](TensorBatch batch, const BatchKeys&) -> TensorBatch {
                        if (batch.target[0].item<int64_t>() == 5) throw std::runtime_error("bad sample");
                        return batch;
                      });
  loader.StartEpoch(0);
  EXPECT_TRUE(loader.Next());
  EXPECT_THROW(loader.Next(), std::runtime_error);
}

TEST(TensorLoader, ItsBatchesCanBeTrainedOn) {
  TensorLoader loader(at::rand({10, 3}), at::arange(10), DistributedSampler(10, 1, 0), {5, false, 2, 10});
  loader.StartEpoch(0);
  at::Tensor weight = at::rand({3}).requires_grad_();
  (loader.Next()->data.matmul(weight)).sum().backward();
  EXPECT_TRUE(weight.grad().defined());
}

TEST(TensorLoader, RefusesWhatDoesNotFit) {
  EXPECT_THROW(TensorLoader(at::arange(3), at::arange(4), DistributedSampler(3, 1, 0), {1}), c10::Error);
  EXPECT_THROW(TensorLoader(at::arange(3), at::arange(3), DistributedSampler(3, 1, 0), {0}), c10::Error);
}

}  // namespace
}  // namespace lockstep
