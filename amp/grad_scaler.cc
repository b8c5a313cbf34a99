#include "lockstep/amp/grad_scaler.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

namespace lockstep {

GradScaler::GradScaler(GradScalerOptions options) : options_(std::move(options)), init_scale_(options_.init_scale) {
  if (!options_.enabled) return;
  TORCH_CHECK(options_.growth_factor > 1, "GradScaler: growth_factor must be over 1, is ", options_.growth_factor);
  TORCH_CHECK(options_.backoff_factor > 0 && options_.backoff_factor < 1,
              "GradScaler: backoff_factor must be between 0 and 1, is ", options_.backoff_factor);
  TORCH_CHECK(options_.growth_interval >= 1, "GradScaler: growth_interval must be at least 1, is ",
              options_.growth_interval);
}

void GradScaler::Initialize(const at::Device& device) {
  if (scale_.defined()) return;
  scale_ = at::full({}, init_scale_, at::TensorOptions(device).dtype(at::kFloat));
  growth_tracker_ = at::full({}, init_growth_tracker_, at::TensorOptions(device).dtype(at::kInt));
}

at::Tensor GradScaler::Scale(const at::Tensor& loss) {
  if (!options_.enabled) return loss;
  Initialize(loss.device());
  return loss * scale_.to(loss.device(), /*non_blocking=*/true);
}

GradScaler::PerOptimizer& GradScaler::UnscaleOnce(torch::optim::Optimizer& optimizer) {
  auto& mine = optimizers_[&optimizer];
  if (mine.stage == Stage::kUnscaled) return mine;
  TORCH_CHECK(scale_.defined(), "GradScaler: nothing was scaled yet; call Scale(loss).backward() first");
  const at::NoGradGuard no_grad;
  // The reciprocal in double, as in Python: 1 / scale in float may be subnormal.
  const at::Tensor inv_scale = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> by_kind;
  for (auto& group : optimizer.param_groups()) {
    for (auto& parameter : group.params()) {
      at::Tensor grad = parameter.grad();
      if (!grad.defined()) continue;
      TORCH_CHECK(grad.scalar_type() != at::kHalf,
                  "GradScaler: a gradient is in float16; keep parameters in float32 and use autocast");
      if (grad.is_sparse()) grad = grad._values();
      by_kind[{grad.device().str(), grad.scalar_type()}].push_back(grad);
    }
  }
  mine.found_inf = at::zeros({1}, scale_.options());
  for (auto& [kind, grads] : by_kind) {
    const auto device = grads.front().device();
    at::Tensor found = at::zeros({1}, scale_.options().device(device));
    at::_amp_foreach_non_finite_check_and_unscale_(grads, found, inv_scale.to(device));
    mine.found_inf += found.to(scale_.device());
  }
  AllReduce(mine.found_inf, options_.group, c10d::ReduceOp::MAX);
  mine.stage = Stage::kUnscaled;
  return mine;
}

void GradScaler::Unscale(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) return;
  const Stage stage = optimizers_[&optimizer].stage;
  TORCH_CHECK(stage != Stage::kUnscaled,
              "GradScaler: Unscale was already called on this optimizer since the last Update");
  TORCH_CHECK(stage != Stage::kStepped, "GradScaler: Unscale is called after Step");
  UnscaleOnce(optimizer);
}

bool GradScaler::Step(torch::optim::Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  TORCH_CHECK(optimizers_[&optimizer].stage != Stage::kStepped,
              "GradScaler: Step was already called on this optimizer since the last Update");
  auto& mine = UnscaleOnce(optimizer);
  mine.stage = Stage::kStepped;
  const bool finite = mine.found_inf.item<float>() == 0;
  if (finite) optimizer.step();
  return finite;
}

void GradScaler::Update() {
  if (!options_.enabled) return;
  at::Tensor found_inf;
  for (auto& [optimizer, mine] : optimizers_) {
    if (mine.stage == Stage::kReady) continue;
    found_inf = found_inf.defined() ? found_inf + mine.found_inf : mine.found_inf;
  }
  TORCH_CHECK(found_inf.defined(), "GradScaler: Update without an Unscale or Step since the last one");
  const at::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
  optimizers_.clear();
}

void GradScaler::Update(double new_scale) {
  if (!options_.enabled) return;
  init_scale_ = new_scale;
  if (scale_.defined()) scale_.fill_(new_scale);
  optimizers_.clear();
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
  // The least and the most that each may be.
  const std::map<std::string, std::pair<double, double>> ranges = {{"scale", {0, 3.4e38}},
                                                                   {"growth_factor", {1, 1e9}},
                                                                   {"backoff_factor", {0, 1}},
                                                                   {"growth_interval", {1, 2147483647}},
                                                                   {"_growth_tracker", {0, 2147483647}}};
  for (const auto& [key, range] : ranges) {
    const auto found = state.find(key);
    if (found == state.end()) return absl::InvalidArgumentError("GradScaler: the state has no '" + key + "'");
    if (!(found->second >= range.first && found->second <= range.second)) {
      return absl::InvalidArgumentError("GradScaler: '" + key + "' of the state is out of range");
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
