#include "lockstep/optim/clip_gradients.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>

#include "lockstep/checkpoint/pth.h"

namespace lockstep {
namespace {

at::Tensor WithGradient(const at::Tensor& gradient) {
  at::Tensor parameter = at::zeros(gradient.sizes(), gradient.options().layout(at::kStrided)).requires_grad_();
  parameter.mutable_grad() = gradient;
  return parameter;
}

// See make_golden.py.
TEST(ClipGradientNorm, GivesPythonsBits) {
  const auto golden = LoadPth("tests/optim/clip.pth");
  ASSERT_TRUE(golden.ok()) << golden.status();
  int cases = 0;
  for (const Value& expected : *golden->items()) {
    std::vector<at::Tensor> parameters;
    for (const Value& gradient : *expected.find("gradients")->items()) {
      parameters.push_back(WithGradient(gradient.tensor()->clone()));
    }
    parameters.push_back(at::ones({2}).requires_grad_());  // without a gradient
    const double type = *expected.find("type")->number(), max_norm = *expected.find("max_norm")->number();
    EXPECT_TRUE(GradientNorm(parameters, {type, nullptr}).equal(*expected.find("norm")->tensor())) << type;
    EXPECT_TRUE(ClipGradientNorm(parameters, max_norm, {type, nullptr}).equal(*expected.find("norm")->tensor()));
    const auto& clipped = *expected.find("clipped")->items();
    for (size_t i = 0; i < clipped.size(); ++i) {
      EXPECT_TRUE(at::equal(parameters[i].grad(), *clipped[i].tensor()) ||
                  (parameters[i].grad().isnan().all().item<bool>() && clipped[i].tensor()->isnan().all().item<bool>()))
          << "type " << type << ", max_norm " << max_norm << ", gradient " << i;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 45);
}

TEST(ClipGradientNorm, MixedDtypesAndSparseGradients) {
  const at::Tensor indices = at::tensor({int64_t{1}, int64_t{1}}).view({1, 2});
  const at::Tensor table = WithGradient(at::sparse_coo_tensor(indices, at::full({2, 1}, 1.5), {4, 1}));  // 3 in row 1
  const at::Tensor low = WithGradient(at::full({1}, 4., at::kBFloat16));
  const at::Tensor wide = WithGradient(at::full({1}, 12., at::kDouble));
  const at::Tensor norm = ClipGradientNorm({table, low, wide}, 6.5);
  EXPECT_EQ(norm.scalar_type(), at::kDouble);
  EXPECT_EQ(norm.item<double>(), 13);
  EXPECT_NEAR(table.grad().to_dense()[1].item<double>(), 1.5, 1e-5);
  EXPECT_NEAR(low.grad().item<double>(), 2, 1e-2);
  EXPECT_NEAR(wide.grad().item<double>(), 6, 1e-5);
  const at::Tensor many = WithGradient(at::ones({4096}, at::kBFloat16));
  const at::Tensor as_many = WithGradient(at::ones({4096}, at::kBFloat16));
  EXPECT_EQ(GradientNorm({many, as_many}).item<double>(), static_cast<float>(std::sqrt(8192.))) << "summed in float";
  const at::Tensor complex = WithGradient(at::full({1}, c10::complex<double>(3, 4), at::kComplexFloat));
  EXPECT_EQ(ClipGradientNorm({complex}, 1).item<double>(), 5);
}

TEST(ClipGradientNorm, NothingToClipAndBadBounds) {
  EXPECT_EQ(ClipGradientNorm({}, 1).item<double>(), 0);
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(ClipGradientNorm({WithGradient(at::ones({0, 3}))}, 1, {inf, nullptr}).item<double>(), 0);
  EXPECT_EQ(ClipGradientNorm({at::ones({2}).requires_grad_()}, 1).item<double>(), 0);
  const at::Tensor p = WithGradient(at::ones({4}));
  EXPECT_THROW(ClipGradientNorm({p}, -1), c10::Error);
  EXPECT_THROW(ClipGradientNorm({p}, std::nan("")), c10::Error);
  EXPECT_THROW(ClipGradientNorm({p}, 1, {0, nullptr}), c10::Error);
  EXPECT_THROW(ClipGradientNorm({p}, 1, {-2, nullptr}), c10::Error);
  EXPECT_THROW(ClipGradientValue({p}, -1), c10::Error);
  EXPECT_EQ(p.grad().sum().item<double>(), 4) << "untouched";
  ClipGradientNorm({p}, 0);
  EXPECT_EQ(p.grad().sum().item<double>(), 0);
}

TEST(ClipGradientValue, ClampsAndKeepsNaN) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor p = WithGradient(at::tensor({-3.f, -0.5f, 0.5f, inf, std::nanf("")}));
  const at::Tensor low = WithGradient(at::full({2}, 9., at::kHalf));
  ClipGradientValue({p, low, at::ones({1}).requires_grad_()}, 1);
  EXPECT_TRUE(p.grad().narrow(0, 0, 4).equal(at::tensor({-1.f, -0.5f, 0.5f, 1.f})));
  EXPECT_TRUE(p.grad()[4].isnan().item<bool>());
  EXPECT_EQ(low.grad()[1].item<float>(), 1);
}

TEST(AllParameters, AreThoseOfAllGroups) {
  const at::Tensor a = at::ones({1}).requires_grad_(), b = at::ones({1}).requires_grad_();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{a});
  groups.emplace_back(std::vector<at::Tensor>{b});
  const torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(1.));
  const auto all = AllParameters(optimizer);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_TRUE(all[1].is_same(b));
}

}  // namespace
}  // namespace lockstep
