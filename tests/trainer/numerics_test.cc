#include "lockstep/trainer/numerics.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace lockstep {
namespace {

TEST(Numerics, DeterministicCanBeTurnedOnAndOff) {
  SetDeterministic(true);
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  EXPECT_TRUE(at::globalContext().deterministicCuDNN());
  EXPECT_FALSE(at::globalContext().benchmarkCuDNN());
  EXPECT_STREQ(std::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
  EXPECT_TRUE(at::empty({4}).isnan().all().item<bool>()) << "memory that nobody wrote to is known";
  SetDeterministic(false);
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

TEST(Numerics, ThePrecisionOfMatrixProducts) {
  ASSERT_TRUE(SetMatmulPrecision("medium").ok());
  EXPECT_EQ(at::globalContext().float32MatmulPrecision(), at::Float32MatmulPrecision::MEDIUM);
  EXPECT_FALSE(SetMatmulPrecision("low").ok());
  EXPECT_EQ(at::globalContext().float32MatmulPrecision(), at::Float32MatmulPrecision::MEDIUM);
  ASSERT_TRUE(SetMatmulPrecision("highest").ok());
  EXPECT_EQ(at::globalContext().float32MatmulPrecision(), at::Float32MatmulPrecision::HIGHEST);
}

}  // namespace
}  // namespace lockstep
