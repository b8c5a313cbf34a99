#include "lockstep/trainer/gradient_step.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <algorithm>
#include <map>
#include <string>
#include <type_traits>
#include <unordered_set>

#include "lockstep/amp/master_weights.h"
#include "lockstep/amp/scaler_sync.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/optim/clip_gradients.h"

namespace lockstep {

namespace {

/// What SaveState says, read.
struct Window {
  size_t steps = 0, batches = 0, counted = 0, accumulate = 1;
  double scale = 1;
  int64_t samples = 0;
  at::Tensor loss;
  std::map<std::string, at::Tensor> gradients;
};

/// A gradient as a value: sparse ones, which files of Python's have no safe form for, as {"indices", "values",
/// "sizes"}.
Value State(const at::Tensor& gradient) {
  if (!gradient.is_sparse()) return gradient;
  const at::Tensor sum = gradient.coalesce();
  ValueList sizes;
  for (const int64_t size : sum.sizes()) sizes.emplace_back(size);
  Value state((ValueDict()));
  state.set("indices", sum.indices());
  state.set("values", sum.values());
  state.set("sizes", std::move(sizes));
  return state;
}

/// And back; undefined for what is none.
at::Tensor Gradient(const Value& state) {
  if (state.tensor() != nullptr) return *state.tensor();
  const Value *const indices = state.find("indices"), *const values = state.find("values"),
                     *const list = state.find("sizes");
  if (indices == nullptr || indices->tensor() == nullptr || values == nullptr || values->tensor() == nullptr ||
      list == nullptr || list->items() == nullptr) {
    return {};
  }
  std::vector<int64_t> sizes;
  for (const Value& size : *list->items()) sizes.push_back(size.count().value_or(0));
  try {
    return at::sparse_coo_tensor(*indices->tensor(), *values->tensor(), sizes);
  } catch (const c10::Error&) {
    return {};
  }
}

absl::Status Read(const Value& state, bool weight_by_samples, Window& window) {
  const auto count = [&](const char* key, auto& number) {
    const Value* const entry = state.find(key);
    const auto value = entry == nullptr ? absl::InvalidArgumentError("missing") : entry->count();
    if (!value.ok()) return absl::InvalidArgumentError(absl::StrCat("'", key, "' is no count"));
    number = static_cast<std::decay_t<decltype(number)>>(*value);
    return absl::OkStatus();
  };
  LOCKSTEP_RETURN_IF_ERROR(count("steps", window.steps));
  const Value* const gradients = state.find("gradients");
  if (gradients == nullptr) return absl::OkStatus();
  LOCKSTEP_RETURN_IF_ERROR(count("batches", window.batches));
  LOCKSTEP_RETURN_IF_ERROR(count("counted", window.counted));
  LOCKSTEP_RETURN_IF_ERROR(count("accumulate", window.accumulate));
  const Value *const scale = state.find("scale"), *const by_samples = state.find("weight_by_samples");
  const auto scale_number = scale == nullptr ? absl::InvalidArgumentError("missing") : scale->number();
  if (!scale_number.ok() || !(*scale_number > 0)) return absl::InvalidArgumentError("'scale' is no scale");
  window.scale = *scale_number;
  if (by_samples == nullptr || !by_samples->number().ok() || (*by_samples->number() != 0) != weight_by_samples) {
    return absl::InvalidArgumentError("it has an unfinished step, in which weight_by_samples must stay as it was");
  }
  LOCKSTEP_RETURN_IF_ERROR(count("samples", window.samples));
  if (const Value* const loss = state.find("loss"); loss != nullptr && loss->tensor() != nullptr) {
    if (loss->tensor()->numel() != 1) return absl::InvalidArgumentError("'loss' is not one number");
    window.loss = loss->tensor()->reshape({});
  }
  if (gradients->dict() == nullptr) return absl::InvalidArgumentError("'gradients' is no dict");
  for (const auto& [name, gradient] : gradients->dict()->items) {
    const at::Tensor tensor = Gradient(gradient);
    if (name.string() == nullptr || !tensor.defined()) {
      return absl::InvalidArgumentError("'gradients' has an entry that is no name and gradient");
    }
    window.gradients[*name.string()] = tensor;
  }
  return absl::OkStatus();
}

}  // namespace

GradientStep::GradientStep(torch::optim::Optimizer* optimizer, LossScaler* scaler, DistributedDataParallelBase* ddp,
                           GradientStepOptions options)
    : optimizer_(optimizer), scaler_(scaler), ddp_(ddp), options_(options) {
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
  Value state((ValueDict()));
  state.set("steps", static_cast<int64_t>(steps_));
  if (batches_ == 0) return state;
  state.set("batches", static_cast<int64_t>(batches_));
  state.set("counted", static_cast<int64_t>(counted_));
  state.set("samples", samples_);
  state.set("accumulate", static_cast<int64_t>(options_.accumulate));
  state.set("scale", scaler_->scale());
  state.set("weight_by_samples", options_.weight_by_samples);
  state.set("loss", loss_.defined() ? Value(loss_) : Value());
  Value gradients((ValueDict()));
  for (const auto& parameter : module.named_parameters()) {
    if (parameter.value().grad().defined()) gradients.set(parameter.key(), State(parameter.value().grad()));
  }
  state.set("gradients", std::move(gradients));
  return state;
}

absl::Status GradientStep::LoadState(const Value& state, torch::nn::Module& module) {
  Window window;
  LOCKSTEP_RETURN_IF_ERROR(Read(state, options_.weight_by_samples, window));
  steps_ = window.steps;
  batches_ = window.batches;
  if (batches_ == 0) return absl::OkStatus();
  const auto parameters = module.named_parameters();
  for (const auto& [name, gradient] : window.gradients) {
    const at::Tensor* const parameter = parameters.find(name);
    if (parameter == nullptr || parameter->sizes() != gradient.sizes()) {
      return absl::InvalidArgumentError(absl::StrCat("the gradient of ", name, " fits no parameter"));
    }
  }
  Begin();
  batches_ = window.batches;
  counted_ = window.counted;
  samples_ = window.samples;
  const at::Device device = parameters.is_empty() ? at::Device(at::kCPU) : parameters.begin()->value().device();
  loss_ = window.loss.defined() ? window.loss.to(device) : window.loss;
  // Each batch's loss was divided by that run's number of batches and multiplied by its scale.
  const double factor =
      scaler_->scale() / window.scale *
      (options_.weight_by_samples ? 1
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
  Window sum;
  for (const Value& rank : ranks) {
    Window window;
    LOCKSTEP_RETURN_IF_ERROR(Read(rank, options_.weight_by_samples, window));
    sum.steps = window.steps;
    sum.batches = window.batches;
    sum.accumulate = window.accumulate;
    sum.scale = window.scale;
    sum.counted += window.counted;
    sum.samples += window.samples;
    if (window.loss.defined()) sum.loss = sum.loss.defined() ? sum.loss + window.loss : window.loss;
    for (const auto& [name, gradient] : window.gradients) {
      auto [found, is_new] = sum.gradients.emplace(name, gradient);
      if (!is_new) found->second = found->second + gradient;
    }
  }
  Value state((ValueDict()));
  state.set("steps", static_cast<int64_t>(sum.steps));
  if (sum.batches == 0) return state;
  const bool first = GetRank(group) == 0;
  state.set("batches", static_cast<int64_t>(sum.batches));
  state.set("counted", static_cast<int64_t>(first ? sum.counted : 0));
  state.set("samples", first ? sum.samples : 0);
  state.set("accumulate", static_cast<int64_t>(sum.accumulate));
  state.set("scale", sum.scale);
  state.set("weight_by_samples", options_.weight_by_samples);
  state.set("loss", first && sum.loss.defined() ? Value(sum.loss) : Value());
  // Their mean over ranks is taken later; with weight_by_samples their sum is divided by the samples of all.
  const double factor =
      options_.weight_by_samples ? 1 : static_cast<double>(GetWorldSize(group)) / static_cast<double>(ranks.size());
  Value gradients((ValueDict()));
  if (first) {
    for (const auto& [name, gradient] : sum.gradients) gradients.set(name, State(gradient * factor));
  }
  state.set("gradients", std::move(gradients));
  return state;
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
  if (ddp_ != nullptr && ddp_->reducer().shard_group()) {
    options.shard_group = ddp_->reducer().shard_group();
    options.device = ddp_->parameters().front().device();  // a rank's shard may be empty
  }
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
