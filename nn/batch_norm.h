#pragma once

#include <absl/status/statusor.h>
#include <torch/nn/modules/batchnorm.h>

#include <vector>

#include "lockstep/comm/collectives.h"
#include "lockstep/comm/join.h"

namespace lockstep::nn {

/// What every batch norm of ours offers besides torch's members: it can be bound to a group of ranks. In a Join, the
/// batch of a rank that has run out is in no statistics; running ones still follow the group's.
class SynchronizableBatchNorm : public Joinable {
 public:
  /// From now on, mean and variance of a batch in training are those over all ranks of `group`; null unbinds.
  virtual void BindGroup(ProcessGroupPtr group) = 0;
};

/// Batch norm over (N, C) or (N, C, L), (N, C, H, W), (N, C, D, H, W) for D = 1, 2, 3, with the options, parameter
/// names and buffers of `torch::nn::BatchNorm{1,2,3}d`, whose results it gives, on CPU and CUDA, until a group is
/// bound. Then each training forward and backward is collective. Ioffe and Szegedy, arXiv:1502.03167.
template <size_t D, typename Derived>
class BatchNormImpl : public torch::nn::NormImplBase<D, Derived, torch::nn::BatchNormOptions>,
                      public SynchronizableBatchNorm {
 public:
  using torch::nn::NormImplBase<D, Derived, torch::nn::BatchNormOptions>::NormImplBase;

  at::Tensor forward(const at::Tensor& input);
  void BindGroup(ProcessGroupPtr group) override { group_ = std::move(group); }
  void SetJoinState(const JoinState* state) override { counts_ = state == nullptr || state->has_batch; }
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  ProcessGroupPtr group_;
  bool counts_ = true;
};

class BatchNorm1dImpl : public BatchNormImpl<1, BatchNorm1dImpl> {
 public:
  using BatchNormImpl<1, BatchNorm1dImpl>::BatchNormImpl;
};
class BatchNorm2dImpl : public BatchNormImpl<2, BatchNorm2dImpl> {
 public:
  using BatchNormImpl<2, BatchNorm2dImpl>::BatchNormImpl;
};
class BatchNorm3dImpl : public BatchNormImpl<3, BatchNorm3dImpl> {
 public:
  using BatchNormImpl<3, BatchNorm3dImpl>::BatchNormImpl;
};
TORCH_MODULE(BatchNorm1d);
TORCH_MODULE(BatchNorm2d);
TORCH_MODULE(BatchNorm3d);

extern template class BatchNormImpl<1, BatchNorm1dImpl>;
extern template class BatchNormImpl<2, BatchNorm2dImpl>;
extern template class BatchNormImpl<3, BatchNorm3dImpl>;

/// Binds `group` to every batch norm of ours in the tree and returns how many there are. A `torch::nn::BatchNorm*` in
/// the tree is an InvalidArgument that names its path, before anything is bound: in C++ it can't be swapped for
/// another, since its parent's forward calls it by its own type.
absl::StatusOr<int> ConvertSyncBatchNorm(torch::nn::Module& module, const ProcessGroupPtr& group);

/// Every batch norm of ours in the tree, for a Join.
std::vector<Joinable*> BatchNormJoinables(torch::nn::Module& module);

}  // namespace lockstep::nn
