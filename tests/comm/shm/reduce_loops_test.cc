#include "lockstep/comm/shm/internal/reduce_loops.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace lockstep::shm {
namespace {

using Op = c10d::ReduceOp;

at::Tensor Reduced(Op::RedOpType reduction, const std::vector<at::Tensor>& inputs) {
  at::Tensor output = at::empty_like(inputs[0]);
  std::vector<const char*> sources;
  for (const at::Tensor& input : inputs) sources.push_back(static_cast<const char*>(input.data_ptr()));
  char* to = static_cast<char*>(output.data_ptr());
  Reduce(reduction, output.scalar_type(), sources.data(), static_cast<int>(sources.size()), &to, 1, output.numel());
  return output;
}

TEST(ReduceLoops, EveryBitPatternOfHalfTypesKeepsItsValue) {
  // One source: the value goes to float and back.
  const at::Tensor bits = at::arange(-32768, 32768, at::kInt).to(at::kShort);
  for (at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const at::Tensor input = bits.view(dtype), output = Reduced(Op::SUM, {input});
    const at::Tensor number = input.eq(input);
    EXPECT_TRUE(output.view(at::kShort).masked_select(number).equal(bits.masked_select(number))) << dtype;
    EXPECT_TRUE(output.ne(output).equal(input.ne(input))) << "NaN stays NaN, " << dtype;
  }
}

TEST(ReduceLoops, HalfTypesAreSummedInFloatAndRoundedOnce) {
  for (at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    for (int n : {1, 2, 3, 4, 7}) {
      std::vector<at::Tensor> inputs;
      at::Tensor sum = at::zeros({1000});
      for (int i = 0; i < n; ++i) {
        inputs.push_back((at::rand({1000}) * 100 - 50).to(dtype));
        sum += inputs.back().to(at::kFloat);
      }
      EXPECT_TRUE(Reduced(Op::SUM, inputs).equal(sum.to(dtype))) << dtype << " " << n;
      EXPECT_TRUE(Reduced(Op::AVG, inputs).equal((sum / n).to(dtype))) << dtype << " " << n;
    }
  }
  const at::Tensor large = at::full({33}, 65504.0).to(at::kHalf);
  EXPECT_TRUE(Reduced(Op::AVG, {large, large, large}).equal(large)) << "the sum would overflow half";
  EXPECT_TRUE(Reduced(Op::SUM, {large, large}).isinf().all().item<bool>());
}

TEST(ReduceLoops, NanWinsInMinAndMax) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
    const at::Tensor a = at::tensor({1.0f, nan, 3.0f, -2.0f}).repeat({5}).to(dtype);
    const at::Tensor b = at::tensor({2.0f, 0.0f, nan, -5.0f}).repeat({5}).to(dtype);
    for (const auto& [first, second] : {std::pair(a, b), std::pair(b, a)}) {
      const at::Tensor low = Reduced(Op::MIN, {first, second}), high = Reduced(Op::MAX, {first, second});
      EXPECT_TRUE(at::equal(at::nan_to_num(low, 99), at::nan_to_num(at::minimum(a, b), 99))) << dtype;
      EXPECT_TRUE(at::equal(at::nan_to_num(high, 99), at::nan_to_num(at::maximum(a, b), 99))) << dtype;
    }
  }
}

TEST(ReduceLoops, AnyLengthAnyNumberOfSourcesIntoSeveralPlacesAndInPlace) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kComplexDouble}) {
    for (int64_t count : {0, 1, 5, 8, 15, 16, 17, 100}) {
      for (int n : {1, 2, 3, 4, 5, 64}) {
        std::vector<at::Tensor> inputs;
        std::vector<const char*> sources;
        at::Tensor sum = at::zeros({count}, dtype);
        for (int i = 0; i < n; ++i) {
          inputs.push_back(at::full({count + 1}, 1 + i % 3).to(dtype));
          sources.push_back(static_cast<const char*>(inputs.back().data_ptr()));
          sum += inputs.back().narrow(0, 0, count);
        }
        at::Tensor extra = at::full({count + 1}, 77).to(dtype);
        std::vector<char*> to = {const_cast<char*>(sources[0]), static_cast<char*>(extra.data_ptr())};
        Reduce(Op::SUM, dtype, sources.data(), n, to.data(), 2, count);
        EXPECT_TRUE(inputs[0].narrow(0, 0, count).equal(sum)) << dtype << " " << count << " " << n;
        EXPECT_TRUE(extra.narrow(0, 0, count).equal(sum)) << dtype << " " << count << " " << n;
        EXPECT_TRUE(extra[count].equal(at::full({}, 77).to(dtype))) << "nothing is written behind the end";
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::shm
