#include "lockstep/amp/grad_scaler.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <ATen/record_function.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <sstream>

#include "lockstep/amp/no_scaler.h"
#include "lockstep/amp/static_scaler.h"
#include "lockstep/optim/clip_gradients.h"

namespace lockstep {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct Fixture {
  at::Tensor p = at::ones({3}).requires_grad_();
  torch::optim::SGD optimizer{{p}, torch::optim::SGDOptions(1.)};
  void Backward(GradScaler& scaler, float gradient) {
    optimizer.zero_grad();
    scaler.Scale((p * gradient).sum()).backward();
  }
};

TEST(GradScaler, GivesPythonsScalesForManyOptions) {
  std::ifstream file("tests/amp/scales.txt");
  int rows = 0;
  for (std::string line; std::getline(file, line); ++rows) {
    std::istringstream in(line);
    GradScalerOptions options;
    std::string colon, steps;
    in >> options.init_scale >> options.growth_factor >> options.backoff_factor >> options.growth_interval >> colon >>
        steps >> colon;
    std::vector<double> scales(steps.size()), trackers(steps.size());
    for (double& scale : scales) in >> scale;
    in >> colon;
    for (double& tracker : trackers) in >> tracker;
    GradScaler scaler(options);
    Fixture f;
    for (size_t i = 0; i < steps.size(); ++i) {
      f.Backward(scaler, steps[i] == 'i' ? kInf : 1e-30f);
      scaler.Step(f.optimizer);
      scaler.Update();
      EXPECT_EQ(scaler.scale(), scales[i]) << "row " << rows << " step " << i;
      EXPECT_EQ(scaler.state().at("_growth_tracker"), trackers[i]) << "row " << rows << " step " << i;
    }
  }
  EXPECT_EQ(rows, 5);
}

TEST(GradScaler, StepsWithTheUnscaledGradientAndSkipsAnInfiniteOne) {
  GradScaler scaler;
  Fixture f;
  f.Backward(scaler, 0.5);
  EXPECT_EQ(f.p.grad()[0].item<float>(), 32768);
  EXPECT_TRUE(scaler.Step(f.optimizer));
  EXPECT_EQ(f.p[0].item<float>(), 0.5);
  scaler.Update();
  f.Backward(scaler, kInf);
  EXPECT_FALSE(scaler.Step(f.optimizer));
  EXPECT_EQ(f.p[0].item<float>(), 0.5);
  scaler.Update();
  EXPECT_EQ(scaler.scale(), 32768);
}

TEST(GradScaler, EachOptimizerHasItsStage) {
  GradScaler scaler;
  Fixture f;
  EXPECT_THROW(scaler.Update(), c10::Error);
  EXPECT_THROW(scaler.Step(f.optimizer), c10::Error) << "nothing was scaled";
  f.Backward(scaler, 1);
  scaler.Unscale(f.optimizer);
  EXPECT_EQ(f.p.grad()[0].item<float>(), 1);
  EXPECT_THROW(scaler.Unscale(f.optimizer), c10::Error);
  scaler.Step(f.optimizer);
  EXPECT_EQ(f.p[0].item<float>(), 0) << "not unscaled twice";
  EXPECT_THROW(scaler.Step(f.optimizer), c10::Error);
  EXPECT_THROW(scaler.Unscale(f.optimizer), c10::Error);
  scaler.Update();
  f.Backward(scaler, 1);
  EXPECT_NO_THROW(scaler.Step(f.optimizer));
}

TEST(GradScaler, RefusesHalfGradients) {
  GradScaler scaler;
  at::Tensor p = at::ones({2}, at::kHalf).requires_grad_();
  torch::optim::SGD optimizer({p}, torch::optim::SGDOptions(1.));
  scaler.Scale(at::ones({}));
  p.mutable_grad() = at::ones({2}, at::kHalf);
  EXPECT_THROW(scaler.Unscale(optimizer), c10::Error);
}

TEST(GradScaler, KeepsItsStateAlsoBeforeTheFirstUse) {
  GradScalerOptions options;
  options.growth_interval = 3;
  GradScaler a(options), b;
  Fixture f;
  for (int i = 0; i < 2; ++i) {
    f.Backward(a, 1);
    a.Step(f.optimizer);
    a.Update();
  }
  ASSERT_TRUE(b.set_state(a.state()).ok());
  EXPECT_EQ(b.state(), a.state());
  f.Backward(b, 1);
  b.Step(f.optimizer);
  b.Update();
  EXPECT_EQ(b.scale(), 131072) << "the third good step";
  EXPECT_FALSE(b.set_state({}).ok());
  auto later = a.state();
  later["hysteresis"] = 2;
  EXPECT_NE(b.set_state(later).message().find("unknown 'hysteresis'"), std::string::npos);
  EXPECT_FALSE(b.set_state({{"scale", 1}}).ok());
  auto broken = a.state();
  broken["growth_interval"] = 0;
  EXPECT_FALSE(b.set_state(broken).ok());
  broken["growth_interval"] = std::nan("");
  EXPECT_FALSE(b.set_state(broken).ok());
}

TEST(GradScaler, OffItDoesNothing) {
  GradScalerOptions options;
  options.enabled = false;
  GradScaler scaler(options);
  Fixture f;
  f.Backward(scaler, 1);
  EXPECT_EQ(f.p.grad()[0].item<float>(), 1);
  EXPECT_TRUE(scaler.Step(f.optimizer));
  EXPECT_NO_THROW(scaler.Update());
  EXPECT_EQ(scaler.scale(), 1);
}

TEST(GradScaler, RefusesOptionsOutOfRange) {
  const auto refuses = [](auto&& change) {
    GradScalerOptions options;
    change(options);
    EXPECT_THROW(GradScaler{options}, c10::Error);
    options.enabled = false;
    EXPECT_NO_THROW(GradScaler{options});
  };
  for (double scale : {0., -1., 1e300, 1e-60, std::nan(""), double{kInf}})
    refuses([&](auto& o) { o.init_scale = scale; });
  for (double factor : {1., 0.5, -2., std::nan(""), double{kInf}}) refuses([&](auto& o) { o.growth_factor = factor; });
  for (double factor : {1., 2., 0., -1., std::nan("")}) refuses([&](auto& o) { o.backoff_factor = factor; });
  for (int64_t interval : {0l, -5l, 1l << 40}) refuses([&](auto& o) { o.growth_interval = interval; });
  GradScaler scaler;
  EXPECT_THROW(scaler.set_growth_factor(1), c10::Error);
  EXPECT_THROW(scaler.set_backoff_factor(1), c10::Error);
  EXPECT_THROW(scaler.set_growth_interval(0), c10::Error);
  EXPECT_THROW(scaler.Update(0.), c10::Error);
  EXPECT_THROW(scaler.Update(1e300), c10::Error);
  auto state = scaler.state();
  state["scale"] = 1e300;
  EXPECT_FALSE(scaler.set_state(state).ok());
  EXPECT_THROW(scaler.Update(at::ones({2})), c10::Error);
  EXPECT_EQ(scaler.scale(), 65536);
}

/// A hexadecimal float, inf, nan, or nothing for a dash.
std::optional<double> Number(const std::string& text) {
  if (text == "-") return std::nullopt;
  return std::strtod(text.c_str(), nullptr);
}

std::vector<double> Values(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().to(at::kDouble).contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

// See make_golden.py.
TEST(GradScaler, IsInPythonsStateAfterEachOf200ScriptedSteps) {
  const auto make = [] {
    GradScalerOptions options;
    options.init_scale = 1024;
    options.growth_interval = 3;
    return std::make_unique<GradScaler>(options);
  };
  auto scaler = make();
  at::Tensor a = at::linspace(-1, 1, 4).requires_grad_(), without_gradient = at::ones({3}).requires_grad_();
  at::Tensor b = at::linspace(-2, 2, 10).view({5, 2}).detach().requires_grad_();
  torch::optim::SGD of_a({a, without_gradient}, torch::optim::SGDOptions(0.125).momentum(0.9));
  torch::optim::SGD of_b({b}, torch::optim::SGDOptions(0.0625));
  std::ifstream file("tests/amp/grad_scaler.txt");
  int steps = 0, skipped = 0;
  for (std::string line; std::getline(file, line); ++steps) {
    SCOPED_TRACE("step " + std::to_string(steps));
    std::istringstream in(line);
    std::string word_a, word_b, flags, word_scale, colon, number;
    in >> word_a >> word_b >> flags >> word_scale >> colon;
    const auto gradient_a = Number(word_a), gradient_b = Number(word_b), new_scale = Number(word_scale);
    const auto flag = [&](char c) { return flags.find(c) != std::string::npos; };
    of_a.zero_grad();
    of_b.zero_grad();
    std::vector<at::Tensor> losses = {(a * *gradient_a).sum(), (a * 0.5).square().sum()};
    if (gradient_b) {
      losses.push_back(at::embedding(b, at::tensor({1, 3, 1}), -1, false, /*sparse=*/true).sum() * *gradient_b);
    }
    for (const at::Tensor& loss : scaler->Scale(losses)) loss.backward();
    if (flag('u')) {
      scaler->Unscale(of_a);
      ClipGradientNorm(AllParameters(of_a), 1);
    }
    skipped += scaler->Step(of_a) ? 0 : 1;
    if (gradient_b) flag('v') ? scaler->Unscale(of_b) : static_cast<void>(scaler->Step(of_b));
    new_scale ? scaler->Update(*new_scale) : scaler->Update();
    in >> number;
    EXPECT_EQ(scaler->scale(), *Number(number));
    in >> number;
    EXPECT_EQ(scaler->state().at("_growth_tracker"), *Number(number));
    for (const at::Tensor& parameter : {a, b}) {
      in >> colon;
      for (double value : Values(parameter)) {
        in >> number;
        EXPECT_EQ(value, *Number(number));
      }
    }
    if (flag('s')) {
      const auto state = scaler->state();
      scaler = make();
      ASSERT_TRUE(scaler->set_state(state).ok());
    }
    ASSERT_TRUE(in) << line;
  }
  EXPECT_EQ(steps, 200);
  EXPECT_GT(skipped, 20);
}

TEST(GradScaler, ScalesNestedLists) {
  GradScaler scaler;
  const at::Tensor one = at::ones({});
  const auto nested = scaler.Scale(std::vector<std::vector<at::Tensor>>{{one, one * 2}, {}, {one * 3}});
  ASSERT_EQ(nested.size(), 3u);
  EXPECT_EQ(nested[0][1].item<double>(), 131072);
  EXPECT_TRUE(nested[1].empty());
  const auto [first, rest] = scaler.Scale(std::pair{one, std::tuple{one, std::vector<at::Tensor>{one}}});
  EXPECT_EQ(first.item<double>(), 65536);
  EXPECT_EQ(std::get<1>(rest)[0].item<double>(), 65536);
}

TEST(GradScaler, TakesASetScaleAlsoBeforeTheFirstUseAndFromATensor) {
  GradScaler scaler;
  scaler.Update(4.);
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_EQ(scaler.Scale(at::ones({})).item<double>(), 4);
  scaler.Update(at::full({1}, 8.));
  EXPECT_EQ(scaler.scale(), 8);
  Fixture f;
  f.Backward(scaler, kInf);
  scaler.Unscale(f.optimizer);
  scaler.Update(16.);
  f.Backward(scaler, 1);
  EXPECT_TRUE(scaler.Step(f.optimizer)) << "what was unscaled is forgotten";
}

TEST(GradScaler, TellsWhichStageIsWrongOfWhichOptimizer) {
  GradScaler scaler;
  Fixture f;
  const auto error = [](auto&& what) -> std::string {
    try {
      what();
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
    return "";
  };
  f.Backward(scaler, 1);
  scaler.Unscale(f.optimizer);
  EXPECT_EQ(error([&] { scaler.Unscale(f.optimizer); }),
            "GradScaler: Unscale was already called since the last Update on torch::optim::SGD of 1 parameters");
  scaler.Step(f.optimizer);
  EXPECT_NE(error([&] { scaler.Step(f.optimizer); }).find("Step was already called"), std::string::npos);
  EXPECT_NE(error([&] { scaler.Unscale(f.optimizer); }).find("Unscale is called after Step"), std::string::npos);
  EXPECT_NE(error([&] { scaler.AddFoundInf(f.optimizer, at::ones({})); }).find("between"), std::string::npos);
  scaler.Update();
  EXPECT_NE(error([&] { scaler.Update(); }).find("Update without an Unscale or Step"), std::string::npos);
}

TEST(GradScaler, RefusesClosuresWithAReason) {
  GradScaler dynamic;
  StaticScaler fixed(2);
  NoScaler none;
  Fixture f;
  f.Backward(dynamic, 1);
  const auto closure = [&] { return f.p.sum(); };
  torch::optim::LBFGS lbfgs({f.p});
  for (LossScaler* scaler : {static_cast<LossScaler*>(&dynamic), static_cast<LossScaler*>(&fixed)}) {
    for (const auto& step : {std::function<void()>([&] { scaler->Step(f.optimizer, closure); }),
                             std::function<void()>([&] { scaler->Step(lbfgs); })}) {
      try {
        step();
        ADD_FAILURE() << "no error";
      } catch (const c10::Error& e) {
        EXPECT_NE(std::string(e.what()).find("computes the loss and its gradients anew"), std::string::npos)
            << e.what();
      }
    }
  }
  EXPECT_TRUE(none.Step(f.optimizer, closure));
}

TEST(GradScaler, AParameterWithoutAGradientAndAnOptimizerWithoutAnyAreNoError) {
  GradScaler scaler;
  scaler.Scale(at::ones({}));
  Fixture f;
  EXPECT_TRUE(scaler.Step(f.optimizer));
  EXPECT_NO_THROW(scaler.Update());
  EXPECT_EQ(scaler.state().at("_growth_tracker"), 1);
}

TEST(GradScaler, LooksAtEveryKindOfGradient) {
  const auto steps = [](const at::Tensor& gradient, at::ScalarType dtype) {
    GradScaler scaler;
    scaler.Scale(at::ones({}));
    at::Tensor p = at::ones(gradient.sizes(), dtype).requires_grad_();
    torch::optim::SGD optimizer({p}, torch::optim::SGDOptions(1.));
    p.mutable_grad() = gradient * 65536;
    const bool stepped = scaler.Step(optimizer);
    EXPECT_EQ(at::real(p.detach()).flatten()[0].item<double>(), stepped ? 0 : 1) << gradient;
    return stepped;
  };
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kComplexFloat}) {
    EXPECT_TRUE(steps(at::ones({2, 2}, dtype), dtype)) << dtype;
    at::Tensor bad = at::ones({2, 2}, dtype);
    bad[1][1] = dtype == at::kComplexFloat ? c10::Scalar(c10::complex<double>(1, kInf)) : c10::Scalar(std::nan(""));
    EXPECT_FALSE(steps(bad, dtype)) << dtype;
  }
  EXPECT_TRUE(steps(at::ones({2, 2}).to_sparse(1), at::kFloat));
  EXPECT_FALSE(steps(at::full({2, 2}, kInf).to_sparse(1), at::kFloat));
  EXPECT_TRUE(steps(at::ones({2, 2}).t(), at::kFloat)) << "not contiguous";
}

/// Its step throws, once.
struct ThrowsOnce : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    TORCH_CHECK(std::exchange(threw, true), "once");
    return torch::optim::SGD::step(std::move(closure));
  }
  bool threw = false;
};

TEST(GradScaler, AStepThatThrewCanBeTriedAgainOrForgotten) {
  for (const bool again : {true, false}) {
    GradScaler scaler;
    at::Tensor p = at::ones({2}).requires_grad_();
    ThrowsOnce optimizer(std::vector<at::Tensor>{p}, torch::optim::SGDOptions(1.));
    scaler.Scale(p.sum()).backward();
    EXPECT_THROW(scaler.Step(optimizer), c10::Error);
    if (!again) {
      scaler.Update(scaler.scale());
      optimizer.zero_grad();
      scaler.Scale(p.sum()).backward();
    }
    EXPECT_TRUE(scaler.Step(optimizer));
    EXPECT_EQ(p[0].item<float>(), 0) << "unscaled once";
    scaler.Update();
    EXPECT_EQ(scaler.state().at("_growth_tracker"), 1);
  }
}

TEST(GradScaler, ANormThatIsNotFiniteSkipsTheStepThoughEachGradientIsFinite) {
  GradScaler scaler;
  scaler.Update(1.);
  Fixture f;
  f.Backward(scaler, 3e38f);
  scaler.Unscale(f.optimizer);
  const at::Tensor norm = ClipGradientNorm(AllParameters(f.optimizer), 1);
  EXPECT_TRUE(std::isinf(norm.item<double>()));
  scaler.AddFoundInf(f.optimizer, norm.isfinite().logical_not());
  EXPECT_FALSE(scaler.Step(f.optimizer));
  scaler.Update();
  EXPECT_EQ(scaler.scale(), 0.5);
}

TEST(GradScaler, ATiedParameterThatIsListedTwiceIsUnscaledOnce) {
  GradScaler dynamic;
  StaticScaler fixed(1024);
  for (LossScaler* scaler : {static_cast<LossScaler*>(&dynamic), static_cast<LossScaler*>(&fixed)}) {
    at::Tensor p = at::ones({2}).requires_grad_();
    torch::optim::SGD optimizer({p, p}, torch::optim::SGDOptions(0.));
    scaler->Scale(p.sum()).backward();
    scaler->Unscale(optimizer);
    EXPECT_EQ(p.grad()[0].item<float>(), 1);
    EXPECT_NEAR(ClipGradientNorm(AllParameters(optimizer), 1).item<double>(), std::sqrt(2.), 1e-6);
    EXPECT_NEAR(p.grad()[0].item<float>(), std::sqrt(0.5), 1e-5);
    scaler->Step(optimizer);
  }
}

/// How often a number was brought from a device to the host.
std::atomic<int> waits{0};

TEST(GradScaler, WaitsForTheDeviceOnceAStep) {
  at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& f) {
                               if (std::string(f.name()) == "aten::_local_scalar_dense") ++waits;
                               return std::unique_ptr<at::ObserverContext>();
                             }).scopes({at::RecordScope::FUNCTION}));
  GradScaler scaler;
  Fixture f;
  const auto waited = [&](float gradient, bool clip) {
    f.Backward(scaler, gradient);
    waits = 0;
    if (clip) {
      scaler.Unscale(f.optimizer);
      scaler.AddFoundInf(f.optimizer, ClipGradientNorm(AllParameters(f.optimizer), 1).isfinite().logical_not());
    }
    scaler.Step(f.optimizer);
    scaler.Update();
    return waits.load();
  };
  EXPECT_EQ(waited(1, false), 1);
  EXPECT_EQ(waited(1, true), 1);
  // After a skipped step the scale is looked at, for the warning.
  EXPECT_EQ(waited(kInf, false), 2);
  at::clearThreadLocalCallbacks();
}

TEST(GradScaler, WarnsOnceOfAScaleThatHasBecomeVerySmall) {
  GradScalerOptions options;
  options.init_scale = 0.001;
  GradScaler scaler(options);
  Fixture f;
  testing::internal::CaptureStderr();
  for (int i = 0; i < 10; ++i) {
    f.Backward(scaler, kInf);
    scaler.Step(f.optimizer);
    scaler.Update();
  }
  const std::string text = testing::internal::GetCapturedStderr();
  const size_t first = text.find("Usual causes");
  EXPECT_NE(first, std::string::npos) << text;
  EXPECT_EQ(text.find("Usual causes", first + 1), std::string::npos) << text;
}

TEST(StaticScaler, ScalesByOneNumber) {
  StaticScaler scaler(1024);
  Fixture f;
  f.optimizer.zero_grad();
  scaler.Scale((f.p * 0.5).sum()).backward();
  EXPECT_EQ(f.p.grad()[0].item<float>(), 512);
  scaler.Unscale(f.optimizer);
  EXPECT_EQ(f.p.grad()[0].item<float>(), 0.5);
  EXPECT_THROW(scaler.Unscale(f.optimizer), c10::Error);
  EXPECT_TRUE(scaler.Step(f.optimizer));
  EXPECT_EQ(f.p[0].item<float>(), 0.5);
  EXPECT_THROW(scaler.Step(f.optimizer), c10::Error);
  EXPECT_THROW(scaler.Unscale(f.optimizer), c10::Error);
  scaler.Update();
  f.optimizer.zero_grad();
  scaler.Scale((f.p * kInf).sum()).backward();
  EXPECT_TRUE(scaler.Step(f.optimizer)) << "it skips nothing";
  EXPECT_FALSE(scaler.dynamic());
  EXPECT_TRUE(scaler.set_state(GradScaler().state()).ok());
  EXPECT_EQ(scaler.scale(), 1024) << "it is an option, no state";
  EXPECT_TRUE(scaler.state().empty());
  EXPECT_EQ(StaticScaler(65536).Scale(at::full({}, 3, at::kHalf)).item<double>(), 3 * 65536)
      << "no half-precision overflow";
  for (double scale : {0., -1., 1e300, 1e-60, double{kInf}, std::nan("")}) {
    EXPECT_THROW(StaticScaler{scale}, c10::Error);
  }
}

}  // namespace
}  // namespace lockstep
