#pragma once

// What the tests of DataParallel on the CPU have in common.

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "lockstep/parallel/data_parallel.h"

namespace lockstep {

inline std::vector<at::Device> Cpus(size_t count) { return std::vector<at::Device>(count, at::Device(at::kCPU)); }

/// Makes another `M`, whose values are its own.
template <typename M>
typename DataParallel<M>::MakeReplica Another() {
  return [](at::Device) { return std::make_shared<M>(); };
}

/// Of the parameters of one name, sparse ones too.
inline void ExpectSameGradients(const torch::nn::Module& a, const torch::nn::Module& b, double relative = 1e-6,
                                double absolute = 1e-12) {
  const auto dense = [](const at::Tensor& tensor) { return tensor.is_sparse() ? tensor.to_dense() : tensor; };
  const auto other = b.named_parameters();
  for (const auto& item : a.named_parameters()) {
    const at::Tensor &mine = item.value().grad(), &theirs = other[item.key()].grad();
    ASSERT_EQ(mine.defined(), theirs.defined()) << item.key();
    if (!mine.defined()) continue;
    ASSERT_EQ(mine.layout(), theirs.layout()) << item.key();
    EXPECT_TRUE(at::allclose(dense(mine), dense(theirs), relative, absolute)) << item.key();
  }
}

}  // namespace lockstep
