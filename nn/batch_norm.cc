#include "lockstep/nn/batch_norm.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "lockstep/nn/internal/sync_batch_norm.h"

namespace lockstep::nn {

template <size_t D, typename Derived>
at::Tensor BatchNormImpl<D, Derived>::forward(const at::Tensor& input) {
  _check_input_dim(input);
  double momentum = this->options.momentum().value_or(0.0);
  const bool batch_statistics = this->is_training() || !this->options.track_running_stats();
  const bool synchronized = this->is_training() && group_ && group_->getSize() > 1;
  const bool update = this->is_training() && this->num_batches_tracked.defined() && (counts_ || synchronized);
  if (update) {
    this->num_batches_tracked.add_(1);
    // No momentum: the plain average of all batches so far.
    if (!this->options.momentum()) momentum = 1.0 / this->num_batches_tracked.template item<double>();
  }
  if (synchronized) {
    return internal::SyncBatchNorm(input, counts_, this->weight, this->bias, update ? this->running_mean : at::Tensor(),
                                   update ? this->running_var : at::Tensor(), momentum, this->options.eps(), group_);
  }
  const bool frozen = this->is_training() && !update;
  return torch::nn::functional::detail::batch_norm(input, frozen ? at::Tensor() : this->running_mean,
                                                   frozen ? at::Tensor() : this->running_var, this->weight, this->bias,
                                                   batch_statistics, momentum, this->options.eps());
}

template <size_t D, typename Derived>
void BatchNormImpl<D, Derived>::_check_input_dim(const at::Tensor& input) {
  const auto dim = static_cast<size_t>(input.dim());
  TORCH_CHECK(dim == D + 2 || (D == 1 && dim == 2), "BatchNorm", D, "d: expected an input of ", D + 2,
              D == 1 ? " or 2" : "", " dimensions, got ", dim);
  TORCH_CHECK(input.size(1) == this->options.num_features(), "BatchNorm", D, "d: expected ",
              this->options.num_features(), " channels, got ", input.size(1));
}

template <size_t D, typename Derived>
void BatchNormImpl<D, Derived>::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "lockstep::nn::BatchNorm" << D << "d(" << this->options.num_features()
         << ", eps=" << this->options.eps() << ", momentum=";
  if (this->options.momentum()) {
    stream << *this->options.momentum();
  } else {
    stream << "none";
  }
  stream << ", affine=" << this->options.affine() << ", track_running_stats=" << this->options.track_running_stats()
         << ", synchronized=" << (group_ ? group_->getSize() : 1) << ")";
}

template class BatchNormImpl<1, BatchNorm1dImpl>;
template class BatchNormImpl<2, BatchNorm2dImpl>;
template class BatchNormImpl<3, BatchNorm3dImpl>;

absl::StatusOr<int> ConvertSyncBatchNorm(torch::nn::Module& module, const ProcessGroupPtr& group) {
  std::vector<std::pair<std::string, torch::nn::Module*>> all = {{"", &module}};
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    all.emplace_back(item.key(), item.value().get());
  }
  for (const auto& [path, child] : all) {
    if (dynamic_cast<torch::nn::BatchNorm1dImpl*>(child) != nullptr ||
        dynamic_cast<torch::nn::BatchNorm2dImpl*>(child) != nullptr ||
        dynamic_cast<torch::nn::BatchNorm3dImpl*>(child) != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("SyncBatchNorm: module '", path.empty() ? "(root)" : path, "' is a ", child->name(),
                       ", which can't be synchronised; build the model with lockstep::nn::BatchNorm*"));
    }
  }
  int bound = 0;
  for (const auto& [path, child] : all) {
    if (auto* norm = dynamic_cast<SynchronizableBatchNorm*>(child)) {
      norm->BindGroup(group);
      ++bound;
    }
  }
  return bound;
}

std::vector<Joinable*> BatchNormJoinables(torch::nn::Module& module) {
  std::vector<Joinable*> joinables;
  for (const auto& child : module.modules()) {
    if (auto* norm = dynamic_cast<SynchronizableBatchNorm*>(child.get())) joinables.push_back(norm);
  }
  return joinables;
}

}  // namespace lockstep::nn
