#include "lockstep/amp/autocast.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/amp/function_autocast.h"

namespace lockstep {
namespace {

at::ScalarType ProductType() { return at::rand({2, 2}).matmul(at::rand({2, 2})).scalar_type(); }

TEST(AutocastGuard, NestsAndIsRestored) {
  EXPECT_EQ(ProductType(), at::kFloat);
  {
    const AutocastGuard outer(at::kCPU, at::kBFloat16);
    EXPECT_EQ(ProductType(), at::kBFloat16);
    {
      const AutocastGuard off(at::kCPU, std::nullopt);
      EXPECT_EQ(ProductType(), at::kFloat);
      const AutocastGuard half(at::kCPU, at::kHalf);
      EXPECT_EQ(ProductType(), at::kHalf);
      const AutocastGuard other_device(at::kCUDA, at::kBFloat16);
      EXPECT_EQ(ProductType(), at::kHalf);
      EXPECT_TRUE(at::autocast::is_autocast_enabled(at::kCUDA));
    }
    EXPECT_EQ(ProductType(), at::kBFloat16);
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCUDA));
  }
  EXPECT_EQ(ProductType(), at::kFloat);
}

TEST(AutocastGuard, IsRestoredByAnExceptionAndRefusesOtherDtypesAndDevices) {
  try {
    const AutocastGuard guard(at::kCPU, at::kBFloat16);
    throw std::runtime_error("x");
  } catch (const std::runtime_error&) {
  }
  EXPECT_EQ(ProductType(), at::kFloat);
  EXPECT_THROW(AutocastGuard(at::kCPU, at::kDouble), c10::Error);
  EXPECT_THROW(AutocastGuard(at::kMeta, at::kHalf), c10::Error);
  EXPECT_EQ(ProductType(), at::kFloat);
  EXPECT_EQ(at::autocast::increment_nesting(), 1) << "nothing is left open";
  at::autocast::decrement_nesting();
}

/// What a weight is when it is used under autocast.
at::Tensor Cast(const at::Tensor& weight) {
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(at::kCPU), weight, at::kCPU);
}

TEST(AutocastGuard, KeepsCastWeightsUntilTheOutermostEnds) {
  const at::Tensor weight = at::rand({2, 2}).requires_grad_();
  const auto same = [&] { return Cast(weight).is_same(Cast(weight)); };
  {
    const AutocastGuard outer(at::kCPU, at::kBFloat16);
    const at::Tensor first = Cast(weight);
    {
      const AutocastGuard inner(at::kCPU, at::kBFloat16);
      EXPECT_TRUE(Cast(weight).is_same(first));
    }
    EXPECT_TRUE(Cast(weight).is_same(first));
    const AutocastGuard without(at::kCPU, at::kBFloat16, /*cache=*/false);
    EXPECT_FALSE(same());
    const AutocastGuard within(at::kCPU, at::kBFloat16);
    EXPECT_FALSE(same()) << "an inner guard doesn't turn it on again";
  }
  {
    const at::NoGradGuard no_grad;
    weight.fill_(5);
  }
  const AutocastGuard again(at::kCPU, at::kBFloat16);
  EXPECT_EQ(Cast(weight)[0][0].item<float>(), 5) << "the cache of the last region is gone";
}

TEST(AutocastGuard, AnInnerOneOfAnotherDtypeSeesNoCastsOfTheOuterOne) {
  const at::Tensor weight = at::rand({2, 2}).requires_grad_(), x = at::rand({2, 2});
  const AutocastGuard outer(at::kCPU, at::kBFloat16);
  EXPECT_EQ(x.matmul(weight).scalar_type(), at::kBFloat16);
  {
    const AutocastGuard inner(at::kCPU, at::kHalf);
    EXPECT_EQ(x.matmul(weight).scalar_type(), at::kHalf);
  }
  EXPECT_EQ(x.matmul(weight).scalar_type(), at::kBFloat16);
}

TEST(AutocastGuard, AnInnerForwardWithoutGradientsTakesNoneFromTheOuterOne) {
  const at::Tensor weight = at::rand({2, 2}).requires_grad_(), x = at::rand({2, 2});
  const AutocastGuard outer(at::kCPU, at::kBFloat16);
  {
    const at::NoGradGuard no_grad;
    const AutocastGuard inner(at::kCPU, at::kBFloat16);
    x.matmul(weight);
  }
  x.matmul(weight).sum().backward();
  EXPECT_TRUE(weight.grad().defined());
}

TEST(AutocastGuard, IsForItsOwnThread) {
  const at::Tensor weight = at::rand({2, 2}).requires_grad_(), x = at::rand({2, 2});
  const AutocastGuard guard(at::kCPU, at::kBFloat16);
  x.matmul(weight);
  std::thread([&] {
    EXPECT_EQ(ProductType(), at::kFloat);
    {
      // Others' casts are not seen, in another dtype or without gradients, and none are left.
      const AutocastGuard other(at::kCPU, at::kHalf);
      EXPECT_EQ(x.matmul(weight).scalar_type(), at::kHalf);
      const at::NoGradGuard no_grad;
      const AutocastGuard evaluation(at::kCPU, at::kBFloat16);
      EXPECT_EQ(x.matmul(weight).scalar_type(), at::kBFloat16);
    }
    EXPECT_EQ(ProductType(), at::kFloat);
  }).join();
  const at::Tensor product = x.matmul(weight);
  EXPECT_EQ(product.scalar_type(), at::kBFloat16);
  product.sum().backward();
  EXPECT_TRUE(weight.grad().defined());
}

TEST(AutocastGuard, ManyThreadsWithOneModel) {
  const at::Tensor weight = at::rand({8, 8}).requires_grad_();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const at::ScalarType dtype = t % 2 == 0 ? at::kBFloat16 : at::kHalf;
      const c10::AutoGradMode gradients(t < 2);
      for (int i = 0; i < 200; ++i) {
        const AutocastGuard guard(at::kCPU, dtype);
        const at::Tensor product = at::ones({8, 8}).matmul(weight);
        if (product.scalar_type() != dtype || product.requires_grad() != (t < 2)) ++wrong;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Operations as in make_golden.py, under the same names.
const std::map<std::string, std::function<at::Tensor()>>& Operations() {
  static const at::Tensor x = at::rand({4, 4}) + 0.5, v = at::rand({4}) + 0.5, batch = at::rand({2, 4, 4}) + 0.5,
                          image = at::rand({1, 4, 8, 8}), video = at::rand({1, 4, 4, 4, 4}),
                          index = at::tensor({int64_t{0}, int64_t{1}, int64_t{2}, int64_t{3}});
  static const auto low = [](const at::Tensor& t) { return t.to(at::autocast::get_autocast_dtype(at::kCPU)); };
  static const std::map<std::string, std::function<at::Tensor()>> operations = {
      {"mm", [] { return at::mm(x, x); }},
      {"matmul", [] { return at::matmul(x, v); }},
      {"bmm", [] { return at::bmm(batch, batch); }},
      {"addmm", [] { return at::addmm(x, x, x); }},
      {"addbmm", [] { return at::addbmm(x, batch, batch); }},
      {"baddbmm", [] { return at::baddbmm(batch, batch, batch); }},
      {"linear", [] { return at::linear(x, x, v); }},
      {"mv", [] { return at::mv(x, v); }},
      {"dot", [] { return at::dot(v, v); }},
      {"einsum",
       [] {
         return at::einsum("ij,jk->ik", {x, x});
       }},
      {"conv1d",
       [] {
         return at::conv1d(batch, at::ones({2, 4, 3}));
       }},
      {"conv2d",
       [] {
         return at::conv2d(image, at::ones({2, 4, 3, 3}));
       }},
      {"conv3d",
       [] {
         return at::conv3d(video, at::ones({2, 4, 3, 3, 3}));
       }},
      {"conv_transpose2d",
       [] {
         return at::conv_transpose2d(image, at::ones({4, 2, 3, 3}));
       }},
      {"prelu", [] { return at::prelu(x, v); }},
      {"attention", [] { return at::scaled_dot_product_attention(batch, batch, batch); }},
      {"mm_double", [] { return at::mm(x.to(at::kDouble), x.to(at::kDouble)); }},
      {"mm_low", [] { return at::mm(low(x), low(x)); }},
      {"mm_mixed", [] { return at::mm(low(x), x); }},
      {"add", [] { return x + x; }},
      {"add_mixed", [] { return x + low(x); }},
      {"mul_low", [] { return low(x) * low(x); }},
      {"relu_low", [] { return at::relu(low(x)); }},
      {"gelu_low", [] { return at::gelu(low(x)); }},
      {"sigmoid_low", [] { return at::sigmoid(low(x)); }},
      {"exp_low", [] { return at::exp(low(x)); }},
      {"log_low", [] { return at::log(low(x)); }},
      {"pow_low", [] { return at::pow(low(x), 2); }},
      {"sum_low", [] { return at::sum(low(x)); }},
      {"mean_low", [] { return at::mean(low(x)); }},
      {"prod_low", [] { return at::prod(low(x)); }},
      {"cumsum_low", [] { return at::cumsum(low(x), 0); }},
      {"softmax_low", [] { return at::softmax(low(x), 1); }},
      {"log_softmax_low", [] { return at::log_softmax(low(x), 1); }},
      {"layer_norm_low", [] { return at::layer_norm(low(x), {4}); }},
      {"group_norm_low", [] { return at::group_norm(low(image), 2); }},
      {"batch_norm_low",
       [] { return at::batch_norm(low(image), {}, {}, at::zeros({4}), at::ones({4}), true, 0.1, 1e-5, true); }},
      {"max_pool2d_low", [] { return at::max_pool2d(low(image), 2); }},
      {"avg_pool2d_low", [] { return at::avg_pool2d(low(image), 2); }},
      {"avg_pool3d_low", [] { return at::avg_pool3d(low(video), 2); }},
      {"adaptive_avg_pool2d_low",
       [] {
         return at::adaptive_avg_pool2d(low(image), {1, 1});
       }},
      {"mse_loss_low", [] { return at::mse_loss(low(x), low(x)); }},
      {"l1_loss_low", [] { return at::l1_loss(low(x), low(x)); }},
      {"smooth_l1_loss_low", [] { return at::smooth_l1_loss(low(x), low(x)); }},
      {"huber_loss_low", [] { return at::huber_loss(low(x), low(x)); }},
      {"cross_entropy_low", [] { return at::cross_entropy_loss(low(x), index); }},
      {"nll_loss_low", [] { return at::nll_loss(low(x), index); }},
      {"kl_div_low", [] { return at::kl_div(low(x), low(x), at::Reduction::Sum); }},
      {"bce_with_logits_low", [] { return at::binary_cross_entropy_with_logits(low(x), low(x)); }},
      {"cdist_low", [] { return at::cdist(low(x), low(x)); }},
      {"cat_mixed",
       [] {
         return at::cat({low(x), x});
       }},
      {"stack_mixed",
       [] {
         return at::stack({low(x), x});
       }},
      {"index_low", [] { return low(x).index({index}); }},
      {"embedding", [] { return at::embedding(x, index); }},
      {"argmax_low", [] { return at::argmax(low(x)); }},
  };
  return operations;
}

std::string PythonsName(at::ScalarType dtype) {
  const std::map<at::ScalarType, std::string> names = {{at::kBFloat16, "bfloat16"},
                                                       {at::kHalf, "float16"},
                                                       {at::kFloat, "float32"},
                                                       {at::kDouble, "float64"},
                                                       {at::kLong, "int64"}};
  return names.at(dtype);
}

TEST(AutocastGuard, GivesPythonsDtypes) {
  std::ifstream file("tests/amp/autocast_dtypes.txt");
  size_t rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    std::istringstream in(line);
    std::string name, bfloat16, half;
    in >> name >> bfloat16 >> half;
    const auto operation = Operations().find(name);
    ASSERT_NE(operation, Operations().end()) << name;
    for (const auto& [dtype, expected] : {std::pair{at::kBFloat16, bfloat16}, {at::kHalf, half}}) {
      const AutocastGuard guard(at::kCPU, dtype);
      EXPECT_EQ(PythonsName(operation->second().scalar_type()), expected) << name;
    }
  }
  EXPECT_EQ(rows, Operations().size());
  EXPECT_GE(rows, 40u);
}

/// Multiplies matrices, and notes the dtypes that it sees.
struct Product : torch::autograd::Function<Product> {
  static inline at::ScalarType forward_type, backward_type;
  static inline std::optional<at::ScalarType> cast_to;
  static inline bool saves = true;

  static at::Tensor forward(torch::autograd::AutogradContext* ctx, at::Tensor a, at::Tensor b) {
    std::optional<AutocastForward> autocast;
    if (saves) cast_to ? autocast.emplace(ctx, at::kCPU, *cast_to, a, b) : autocast.emplace(ctx, at::kCPU);
    ctx->save_for_backward({a, b});
    const at::Tensor product = a.matmul(b);
    forward_type = product.scalar_type();
    return product;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list gradients) {
    const AutocastBackward autocast(ctx);
    const auto saved = ctx->get_saved_variables();
    backward_type = ProductType();
    return {gradients[0].to(saved[1].scalar_type()).matmul(saved[1].t()),
            saved[0].t().matmul(gradients[0].to(saved[0].scalar_type()))};
  }
};

TEST(FunctionAutocast, BackwardRunsAsForwardDid) {
  const at::Tensor a = at::rand({3, 3}).requires_grad_(), b = at::rand({3, 3}).requires_grad_();
  const auto run = [&](std::optional<at::ScalarType> under) {
    a.mutable_grad().reset();
    at::Tensor product;
    {
      const AutocastGuard guard(at::kCPU, under);
      product = Product::apply(a, b);
    }
    product.sum().backward();
    EXPECT_EQ(ProductType(), at::kFloat) << "restored";
    EXPECT_EQ(a.grad().scalar_type(), at::kFloat);
  };
  Product::cast_to = std::nullopt;
  run(at::kBFloat16);
  EXPECT_EQ(Product::forward_type, at::kBFloat16);
  EXPECT_EQ(Product::backward_type, at::kBFloat16);
  run(std::nullopt);
  EXPECT_EQ(Product::forward_type, at::kFloat);
  EXPECT_EQ(Product::backward_type, at::kFloat);
  Product::cast_to = at::kFloat;
  run(at::kHalf);
  EXPECT_EQ(Product::forward_type, at::kFloat) << "inputs are cast and autocast is off";
  EXPECT_EQ(Product::backward_type, at::kFloat);
}

TEST(FunctionAutocast, CastsInputsOnlyUnderAutocastAndOnlyFloatingOnes) {
  Product::cast_to = at::kFloat;
  const at::Tensor low = at::rand({2, 2}, at::kBFloat16).requires_grad_(), wide = at::rand({2, 2}, at::kDouble);
  {
    const AutocastGuard guard(at::kCPU, at::kBFloat16);
    at::Tensor product = Product::apply(low, low);
    EXPECT_EQ(product.scalar_type(), at::kFloat);
    product.sum().backward();
    EXPECT_EQ(low.grad().scalar_type(), at::kBFloat16);
    EXPECT_EQ(Product::apply(wide, wide).scalar_type(), at::kDouble);
    EXPECT_EQ(Product::apply(at::ones({2, 2}, at::kLong), at::ones({2, 2}, at::kLong)).scalar_type(), at::kLong);
  }
  EXPECT_EQ(Product::apply(low, low).scalar_type(), at::kBFloat16);
  Product::saves = false;
  at::Tensor product = Product::apply(low, low);
  Product::saves = true;
  EXPECT_THROW(product.sum().backward(), c10::Error);
}

}  // namespace
}  // namespace lockstep
