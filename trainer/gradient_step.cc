#include "lockstep/trainer/gradient_step.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <torch/nn/utils/clip_grad.h>

#include "lockstep/trainer/anomaly.h"

namespace lockstep {

GradientStep::GradientStep(torch::optim::Optimizer* optimizer, LossScaler* scaler, DistributedDataParallelBase* ddp,
                           GradientStepOptions options)
    : optimizer_(optimizer), scaler_(scaler), ddp_(ddp), options_(options) {
  TORCH_CHECK(options_.accumulate >= 1, "accumulate: a step takes at least one batch");
  TORCH_CHECK(options_.max_grad_norm >= 0, "max_grad_norm: must be at least 0, not ", options_.max_grad_norm);
}

void GradientStep::Begin() {
  optimizer_->zero_grad(/*set_to_none=*/false);
  batches_ = 0;
  samples_ = 0;
  loss_.reset();
}

std::unique_ptr<DistributedDataParallelBase::NoSync> GradientStep::Forward(bool last_of_window) {
  if (last_of_window || ddp_ == nullptr) return nullptr;
  return std::make_unique<DistributedDataParallelBase::NoSync>(*ddp_);
}

void GradientStep::Backward(const StepOutput& output, bool last_of_window, bool counts) {
  ++batches_;
  if (counts) samples_ += output.samples;
  loss_ = loss_.defined() ? loss_ + output.loss.detach() : output.loss.detach();
  at::Tensor loss = output.loss;
  if (options_.weight_by_samples) {
    // A sum over samples; the sum of all ranks' is divided by their number.
    loss = loss * static_cast<double>(output.samples);
    if (last_of_window && ddp_ != nullptr && ddp_->group()) {
      at::Tensor total = at::scalar_tensor(samples_, at::kLong);
      AllReduce(total, ddp_->group());
      ddp_->SetWeight(1.0 / static_cast<double>(std::max<int64_t>(total.item<int64_t>(), 1)));
    }
  } else if (options_.accumulate > 1) {
    loss = loss / static_cast<double>(options_.accumulate);
  }
  loss = scaler_->Scale(loss);
  if (options_.detect_anomaly) {
    BackwardWithAnomalyDetection(loss, *optimizer_, /*infinite_is_anomaly=*/!scaler_->dynamic(), ddp_);
  } else {
    loss.backward();
  }
}

bool GradientStep::Step() {
  if (options_.weight_by_samples) {
    if (ddp_ == nullptr || !ddp_->group()) ScaleGradients(1.0 / static_cast<double>(std::max<int64_t>(samples_, 1)));
  } else if (batches_ < options_.accumulate) {  // cut short
    ScaleGradients(static_cast<double>(options_.accumulate) / static_cast<double>(batches_));
  }
  if (options_.max_grad_norm > 0) {
    scaler_->Unscale(*optimizer_);
    std::vector<at::Tensor> parameters;
    for (const auto& group : optimizer_->param_groups()) {
      parameters.insert(parameters.end(), group.params().begin(), group.params().end());
    }
    torch::nn::utils::clip_grad_norm_(parameters, options_.max_grad_norm);
  }
  const bool stepped = scaler_->Step(*optimizer_);
  scaler_->Update();
  ++steps_;
  if (ddp_ != nullptr && options_.check_parameters_every > 0 && steps_ % options_.check_parameters_every == 0) {
    ddp_->CheckParametersEqual();
  }
  return stepped;
}

void GradientStep::ScaleGradients(double factor) {
  const at::NoGradGuard no_grad;
  for (auto& group : optimizer_->param_groups()) {
    for (auto& parameter : group.params()) {
      if (parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
    }
  }
}

}  // namespace lockstep
