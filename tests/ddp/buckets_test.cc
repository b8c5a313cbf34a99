#include "lockstep/ddp/internal/buckets.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <vector>

namespace lockstep::internal {
namespace {

// A model's parts may live on several devices; `meta` stands for another one.
TEST(AssignBuckets, ParametersOfTwoDevicesNeverShareABucket) {
  const auto cpu = at::ones({10}), meta = at::ones({10}, at::TensorOptions(at::kMeta));
  const std::vector<at::Tensor> parameters = {cpu, meta, cpu, meta, cpu};
  const auto buckets = AssignBuckets(parameters, {4, 3, 2, 1, 0}, 1 << 20, 1 << 20);
  EXPECT_EQ(buckets, (std::vector<std::vector<size_t>>{{4, 2, 0}, {3, 1}}));
}

TEST(AssignBuckets, EachDeviceHasAFirstBucketOfItsOwnCapacity) {
  const auto cpu = at::ones({10}), meta = at::ones({10}, at::TensorOptions(at::kMeta));
  const std::vector<at::Tensor> parameters = {cpu, cpu, cpu, meta, meta, meta};
  const auto buckets = AssignBuckets(parameters, {0, 3, 1, 4, 2, 5}, /*first_cap_bytes=*/40, /*cap_bytes=*/80);
  EXPECT_EQ(buckets, (std::vector<std::vector<size_t>>{{0}, {3}, {1, 2}, {4, 5}}));
}

}  // namespace
}  // namespace lockstep::internal
