#include "lockstep/amp/grad_scaler.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>

#include "lockstep/amp/internal/unscale.h"
#include "lockstep/amp/master_weights.h"

#include "lockstep/base/logging.h"

namespace lockstep {
namespace {

bool IsGrowthFactor(double factor) { return std::isfinite(factor) && factor > 1; }
bool IsBackoffFactor(double factor) { return factor > 0 && factor < 1; }
bool IsCount(double count) { return count <= std::numeric_limits<int32_t>::max() && count == std::floor(count); }
bool IsGrowthInterval(double interval) { return interval >= 1 && IsCount(interval); }

at::Device AnyDevice(const torch::optim::Optimizer& optimizer) {
  for (const auto& group : optimizer.param_groups()) {
    if (!group.params().empty()) return group.params().front().device();
  }
  return at::kCPU;
}

}  // namespace

GradScaler::GradScaler(GradScalerOptions options) : options_(std::move(options)), init_scale_(options_.init_scale) {
  if (!options_.enabled) return;
  TORCH_CHECK(internal::IsScale(init_scale_), "GradScaler: init_scale must be over 0 and finite, is ", init_scale_);
  set_growth_factor(options_.growth_factor);
  set_backoff_factor(options_.backoff_factor);
  set_growth_interval(options_.growth_interval);
}

void GradScaler::set_growth_factor(double factor) {
  TORCH_CHECK(IsGrowthFactor(factor), "GradScaler: growth_factor must be over 1, is ", factor);
  options_.growth_factor = factor;
}

void GradScaler::set_backoff_factor(double factor) {
  TORCH_CHECK(IsBackoffFactor(factor), "GradScaler: backoff_factor must be between 0 and 1, is ", factor);
  options_.backoff_factor = factor;
}

void GradScaler::set_growth_interval(int64_t interval) {
  TORCH_CHECK(IsGrowthInterval(static_cast<double>(interval)), "GradScaler: growth_interval must be at least 1, is ",
              interval);
  options_.growth_interval = interval;
}

void GradScaler::Initialize(const at::Device& device) {
  if (scale_.defined()) return;
  scale_ = at::full({}, init_scale_, at::TensorOptions(device).dtype(at::kFloat));
  growth_tracker_ = at::full({}, init_growth_tracker_, at::TensorOptions(device).dtype(at::kInt));
}

at::Tensor GradScaler::ScaleLoss(const at::Tensor& loss) {
  if (!options_.enabled) return loss;
  Initialize(loss.device());
  return loss * scale_.to(loss.device());
}

GradScaler::PerOptimizer& GradScaler::UnscaleOnce(torch::optim::Optimizer& optimizer) {
  auto& mine = optimizers_[&optimizer];
  if (mine.stage == internal::Stage::kUnscaled) return mine;
  TORCH_CHECK(scale_.defined() || options_.group,
              "GradScaler: nothing was scaled yet; call Scale(loss).backward() first");
  if (!scale_.defined()) Initialize(AnyDevice(optimizer));
  const at::NoGradGuard no_grad;
  // The reciprocal in double, as in Python: 1 / scale in float may be subnormal.
  const at::Tensor inv_scale = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  at::Tensor found_inf = at::zeros({}, scale_.options());
  for (auto& gradients : internal::GradientsByKind(optimizer, "GradScaler")) {
    const auto device = gradients.front().device();
    if (device == scale_.device()) {
      at::_amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale);
      continue;
    }
    at::Tensor found = at::zeros({}, found_inf.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, inv_scale.to(device));
    found_inf += found.to(scale_.device());
  }
  mine.found_inf = found_inf;
  mine.stage = internal::Stage::kUnscaled;
  return mine;
}

void GradScaler::Unscale(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    if (auto* master = MasterWeights::Of(optimizer)) master->TakeGradients();
    return;
  }
  internal::CheckMayUnscale(optimizers_[&optimizer].stage, optimizer, "GradScaler");
  UnscaleOnce(optimizer);
}

void GradScaler::AddFoundInf(torch::optim::Optimizer& optimizer, const at::Tensor& found_inf) {
  if (!options_.enabled) return;
  auto& mine = optimizers_[&optimizer];
  TORCH_CHECK(mine.stage == internal::Stage::kUnscaled,
              "GradScaler: AddFoundInf belongs between Unscale and Step, for ", internal::Describe(optimizer));
  TORCH_CHECK(found_inf.numel() == 1, "GradScaler: AddFoundInf takes one number, not ", found_inf.numel());
  mine.found_inf = mine.found_inf + found_inf.detach().to(mine.found_inf.options()).squeeze();
}

bool GradScaler::Step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure) {
  if (!options_.enabled) {
    optimizer.step(std::move(closure));
    return true;
  }
  internal::RefuseClosure(optimizer, static_cast<bool>(closure), "GradScaler");
  internal::CheckMayStep(optimizers_[&optimizer].stage, optimizer, "GradScaler");
  auto& mine = UnscaleOnce(optimizer);
  if (!mine.agreed) AllReduce(mine.found_inf, options_.group, c10d::ReduceOp::MAX);
  mine.agreed = true;
  const bool finite = mine.found_inf.item<float>() == 0;
  if (finite) {
    optimizer.step();
  } else if (auto* master = MasterWeights::Of(optimizer)) {
    master->ClearGradients();  // used up, as by a step
  }
  mine.stage = internal::Stage::kStepped;  // not if the step throws: it may be tried again
  skipped_ = skipped_ || !finite;
  return finite;
}

void GradScaler::Update() {
  if (!options_.enabled) return;
  at::Tensor found_inf;
  bool agreed = true;
  for (auto& [optimizer, mine] : optimizers_) {
    if (mine.stage == internal::Stage::kReady) continue;
    found_inf = found_inf.defined() ? found_inf + mine.found_inf : mine.found_inf;
    agreed = agreed && mine.agreed;
  }
  TORCH_CHECK(found_inf.defined(), "GradScaler: Update without an Unscale or Step since the last one");
  const at::NoGradGuard no_grad;
  if (!agreed) AllReduce(found_inf, options_.group, c10d::ReduceOp::MAX);
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  optimizers_.clear();
  if (skipped_ && !warned_) WarnOfSmallScale();
  skipped_ = false;
}

void GradScaler::WarnOfSmallScale() {
  constexpr double kSmall = 1e-4;
  const double now = scale();
  if (now >= kSmall) return;
  warned_ = true;
  if (GetRank(options_.group) != 0) return;  // all have the same
  LOG(WARNING)
      << "rank " << GetRank(options_.group) << ": GradScaler: after many skipped steps the loss scale is " << now
      << ". That is no overflow any more: gradients are infinite or not a number at any scale. Usual causes: "
         "such a number in the data or the loss (a logarithm or division of zero), a learning rate that is too "
         "high, or weights that were trained in bfloat16 and don't fit into float16";
}

void GradScaler::Update(double new_scale) {
  if (!options_.enabled) return;
  TORCH_CHECK(internal::IsScale(new_scale), "GradScaler: the scale must be over 0 and finite, is ", new_scale);
  init_scale_ = new_scale;
  if (scale_.defined()) scale_.fill_(new_scale);
  optimizers_.clear();
  skipped_ = false;
}

void GradScaler::Update(const at::Tensor& new_scale) {
  if (!options_.enabled) return;
  TORCH_CHECK(new_scale.numel() == 1 && new_scale.is_floating_point() && !new_scale.requires_grad(),
              "GradScaler: a new scale is one floating-point number that needs no gradient");
  const at::NoGradGuard no_grad;
  Initialize(new_scale.device());
  scale_.copy_(new_scale.squeeze(), /*non_blocking=*/true);
  optimizers_.clear();
  skipped_ = false;
}

double GradScaler::scale() const {
  if (!options_.enabled) return 1;
  return scale_.defined() ? scale_.item<float>() : init_scale_;
}

std::map<std::string, double> GradScaler::state() const {
  if (!options_.enabled) return {};
  return {{"scale", scale()},
          {"growth_factor", options_.growth_factor},
          {"backoff_factor", options_.backoff_factor},
          {"growth_interval", static_cast<double>(options_.growth_interval)},
          {"_growth_tracker", growth_tracker_.defined() ? growth_tracker_.item<int32_t>() : init_growth_tracker_}};
}

absl::Status GradScaler::set_state(const std::map<std::string, double>& state) {
  if (!options_.enabled) return absl::OkStatus();
  if (state.empty()) {
    return absl::InvalidArgumentError("GradScaler: the state is empty; it was saved by a scaler that was not enabled");
  }
  const std::map<std::string, bool (*)(double)> valid = {
      {"scale", internal::IsScale},
      {"growth_factor", IsGrowthFactor},
      {"backoff_factor", IsBackoffFactor},
      {"growth_interval", IsGrowthInterval},
      {"_growth_tracker", [](double steps) { return steps >= 0 && IsCount(steps); }}};
  for (const auto& [key, is_valid] : valid) {
    const auto found = state.find(key);
    if (found == state.end()) {
      return absl::InvalidArgumentError("GradScaler: the state has no '" + key + "'; it is of another kind or version");
    }
    if (!is_valid(found->second)) {
      return absl::InvalidArgumentError("GradScaler: '" + key +
                                        "' of the state is out of range: " + std::to_string(found->second));
    }
  }
  for (const auto& [key, value] : state) {
    if (valid.count(key) == 0) {
      return absl::InvalidArgumentError("GradScaler: the state has an unknown '" + key +
                                        "'; it is of another kind or version");
    }
  }
  init_scale_ = state.at("scale");
  options_.growth_factor = state.at("growth_factor");
  options_.backoff_factor = state.at("backoff_factor");
  options_.growth_interval = static_cast<int64_t>(state.at("growth_interval"));
  init_growth_tracker_ = static_cast<int32_t>(state.at("_growth_tracker"));
  if (scale_.defined()) {
    scale_.fill_(init_scale_);
    growth_tracker_.fill_(init_growth_tracker_);
  }
  return absl::OkStatus();
}

}  // namespace lockstep
