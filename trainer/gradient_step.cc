#include "lockstep/trainer/gradient_step.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <algorithm>
#include <unordered_set>
#include <utility>

#include "lockstep/amp/master_weights.h"
#include "lockstep/amp/scaler_sync.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/optim/clip_gradients.h"
#include "lockstep/trainer/gradient_window.h"

namespace lockstep {

GradientStep::GradientStep(torch::optim::Optimizer* optimizer, LossScaler* scaler, DistributedDataParallelBase* ddp,
                           GradientStepOptions options, ProcessGroupPtr shard_group)
    : optimizer_(optimizer), scaler_(scaler), ddp_(ddp), options_(options), shard_group_(std::move(shard_group)) {
  TORCH_CHECK(options_.accumulate >= 1, "accumulate: a step takes at least one batch");
  TORCH_CHECK(options_.max_grad_norm >= 0, "max_grad_norm: must be at least 0, not ", options_.max_grad_norm);
  TORCH_CHECK(options_.max_grad_value >= 0, "max_grad_value: must be at least 0, not ", options_.max_grad_value);
  TORCH_CHECK(options_.grad_norm_type > 0, "grad_norm_type: must be over 0, not ", options_.grad_norm_type);
  if (options_.detect_anomaly) {
    anomalies_ = std::make_unique<AnomalyDetector>(*optimizer, /*infinite_is_anomaly=*/!scaler->dynamic(), ddp);
  }
}

void GradientStep::Begin() {
  optimizer_->zero_grad();
  if (auto* master = MasterWeights::Of(*optimizer_)) master->ClearGradients();
  batches_ = counted_ = 0;
  samples_ = 0;
  went_backward_ = false;
  loss_.reset();
}

std::unique_ptr<DistributedDataParallelBase::NoSync> GradientStep::ForwardGuard(bool last_of_window) {
  if (last_of_window || ddp_ == nullptr) return nullptr;
  return std::make_unique<DistributedDataParallelBase::NoSync>(*ddp_);
}

void GradientStep::Backward(const StepOutput& output, bool last_of_window, bool counts) {
  ++batches_;
  if (counts) {
    ++counted_;
    samples_ += output.samples;
    const at::Tensor loss = output.loss.detach();
    // Half-precision losses are summed in float.
    loss_ = !loss_.defined() ? loss : (loss.itemsize() < 4 ? loss_.to(at::kFloat) : loss_) + loss;
  }
  if (output.went_backward) {
    TORCH_CHECK(!options_.weight_by_samples && !anomalies_ && scaler_->scale() == 1,
                "a step that goes backward itself can't be scaled, weighed by samples, or watched for anomalies");
    went_backward_ = true;
    return;
  }
  double factor = counts ? 1 : 0;
  if (options_.weight_by_samples) {
    // A sum over samples; the sum of all ranks' is divided by their number.
    factor *= static_cast<double>(output.samples);
    if (last_of_window && ddp_ != nullptr && ddp_->group()) {
      at::Tensor total = at::scalar_tensor(samples_, at::kLong);
      AllReduce(total, ddp_->group());
      ddp_->SetWeight(samples_ == 0 ? 0 : 1.0 / static_cast<double>(total.item<int64_t>()));
    }
  } else {
    factor /= static_cast<double>(options_.accumulate);
  }
  const at::Tensor loss = scaler_->Scale(factor == 1 ? output.loss : output.loss * factor);
  anomalies_ ? anomalies_->Backward(loss) : loss.backward();
}

bool GradientStep::Step() {
  if (auto* master = MasterWeights::Of(*optimizer_)) master->TakeGradients();
  if (options_.weight_by_samples) {
    if (ddp_ == nullptr || !ddp_->group()) {
      ScaleGradients(1.0 / static_cast<double>(std::max<int64_t>(samples_, 1)));
    } else {
      ddp_->SetWeight(std::nullopt);
    }
  } else if (went_backward_) {
    if (batches_ > 1) ScaleGradients(1.0 / static_cast<double>(batches_));
  } else if (batches_ != options_.accumulate) {  // cut short, or begun by a run that took more
    ScaleGradients(static_cast<double>(options_.accumulate) / static_cast<double>(batches_));
  }
  ClipGradients();
  const bool stepped = scaler_->Step(*optimizer_);
  scaler_->Update();
  ++steps_;
  batches_ = 0;
  if (ddp_ != nullptr && options_.check_parameters_every > 0 && steps_ % options_.check_parameters_every == 0) {
    CheckScalersEqual(*scaler_, ddp_->group());  // first: parameters differ because of it
    ddp_->CheckParametersEqual();
  }
  return stepped;
}

Value GradientStep::SaveState(const torch::nn::Module& module) const {
  GradientWindow window;
  window.steps = steps_;
  window.batches = batches_;
  if (batches_ == 0) return window.ToValue();
  window.counted = counted_;
  window.samples = samples_;
  window.accumulate = options_.accumulate;
  window.scale = scaler_->scale();
  window.weight_by_samples = options_.weight_by_samples;
  window.went_backward = went_backward_;
  window.loss = loss_;
  for (const auto& parameter : module.named_parameters()) {
    if (parameter.value().grad().defined()) window.gradients[parameter.key()] = parameter.value().grad();
  }
  return window.ToValue();
}

absl::Status GradientStep::LoadState(const Value& state, torch::nn::Module& module) {
  LOCKSTEP_ASSIGN_OR_RETURN(const GradientWindow window, GradientWindow::FromValue(state));
  if (window.batches > 0 && window.weight_by_samples != options_.weight_by_samples) {
    return absl::InvalidArgumentError("it has an unfinished step, in which weight_by_samples must stay as it was");
  }
  const auto parameters = module.named_parameters();
  for (const auto& [name, gradient] : window.gradients) {
    const at::Tensor* const parameter = parameters.find(name);
    if (parameter == nullptr || parameter->sizes() != gradient.sizes()) {
      return absl::InvalidArgumentError(absl::StrCat("the gradient of ", name, " fits no parameter"));
    }
  }
  steps_ = window.steps;
  if (window.batches == 0) return absl::OkStatus();
  Begin();
  batches_ = window.batches;
  counted_ = window.counted;
  samples_ = window.samples;
  went_backward_ = window.went_backward;
  const at::Device device = parameters.is_empty() ? at::Device(at::kCPU) : parameters.begin()->value().device();
  loss_ = window.loss.defined() ? window.loss.to(device) : window.loss;
  // Each batch's loss was divided by that run's number of batches and multiplied by its scale.
  const double factor = scaler_->scale() / window.scale *
                        (options_.weight_by_samples || went_backward_
                             ? 1
                             : static_cast<double>(window.accumulate) / static_cast<double>(options_.accumulate));
  const at::NoGradGuard no_grad;
  for (const auto& [name, gradient] : window.gradients) {
    at::Tensor parameter = *parameters.find(name);
    parameter.mutable_grad() =
        gradient.is_sparse() ? gradient.to(parameter.options()) : at::empty_like(parameter).copy_(gradient);
    if (factor != 1) parameter.mutable_grad().mul_(factor);
  }
  return absl::OkStatus();
}

absl::StatusOr<Value> GradientStep::ForOtherWorld(const ValueList& ranks, const ProcessGroupPtr& group) const {
  const bool first = GetRank(group) == 0;
  GradientWindow sum;
  for (const Value& rank : ranks) {
    LOCKSTEP_ASSIGN_OR_RETURN(const GradientWindow window, GradientWindow::FromValue(rank));
    sum.steps = window.steps;
    sum.batches = window.batches;
    sum.accumulate = window.accumulate;
    sum.scale = window.scale;
    sum.weight_by_samples = window.weight_by_samples;
    if (!first) continue;
    sum.counted += window.counted;
    sum.samples += window.samples;
    if (window.loss.defined()) sum.loss = sum.loss.defined() ? sum.loss + window.loss : window.loss;
    for (const auto& [name, gradient] : window.gradients) {
      auto [found, is_new] = sum.gradients.emplace(name, gradient);
      if (!is_new) found->second = found->second + gradient;
    }
  }
  // Their mean over ranks is taken later; with weight_by_samples their sum is divided by the samples of all.
  const double factor = static_cast<double>(GetWorldSize(group)) / static_cast<double>(ranks.size());
  for (auto& [name, gradient] : sum.gradients) {
    if (!sum.weight_by_samples) gradient = gradient * factor;
  }
  return sum.ToValue();
}

void GradientStep::ClipGradients() {
  grad_norm_.reset();
  if (options_.max_grad_norm == 0 && options_.max_grad_value == 0) return;
  scaler_->Unscale(*optimizer_);
  if (options_.max_grad_value > 0) ClipGradientValue(AllParameters(*optimizer_), options_.max_grad_value);
  if (options_.max_grad_norm == 0) return;
  grad_norm_ = ClipNorm();
  scaler_->AddFoundInf(*optimizer_, grad_norm_.isfinite().logical_not());
}

at::Tensor GradientStep::ClipNorm() {
  GradientNormOptions options;
  options.norm_type = options_.grad_norm_type;
  options.shard_group = shard_group_;
  if (shard_group_ && ddp_ != nullptr) options.device = ddp_->parameters().front().device();  // a shard may be empty
  if (!options_.clip_each_group) return ClipGradientNorm(AllParameters(*optimizer_), options_.max_grad_norm, options);
  at::Tensor largest;
  for (const auto& group : optimizer_->param_groups()) {
    const at::Tensor norm = ClipGradientNorm(group.params(), options_.max_grad_norm, options);
    largest = largest.defined() ? at::maximum(largest, norm.to(largest.options())) : norm;  // a NaN stays
  }
  return largest;
}

void GradientStep::ScaleGradients(double factor) {
  const at::NoGradGuard no_grad;
  std::unordered_set<const c10::TensorImpl*> seen;  // a tied parameter may be listed more than once
  for (auto& group : optimizer_->param_groups()) {
    for (auto& parameter : group.params()) {
      if (parameter.grad().defined() && seen.insert(parameter.unsafeGetTensorImpl()).second) {
        parameter.mutable_grad().mul_(factor);
      }
    }
  }
}

}  // namespace lockstep
