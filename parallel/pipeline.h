#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/distributed_data_parallel_base.h"
#include "lockstep/parallel/internal/piece_versions.h"

namespace lockstep {

enum class PipelineSchedule {
  /// All forwards, then all backwards: activations of every micro-batch are kept (Huang et al., arXiv:1811.06965).
  kGPipe,
  /// Each stage begins backwards as soon as it can: the stage with k others behind it keeps activations of k + 1
  /// micro-batches at most, in the same time (Narayanan et al., arXiv:1806.03377, with a flush at the end of each
  /// step).
  kOneForwardOneBackward,
};

struct PipelineOptions {
  PipelineSchedule schedule = PipelineSchedule::kOneForwardOneBackward;
  /// Parts that a batch is cut into, as `torch.chunk` does; fewer for few samples. The first stage's number counts.
  int64_t micro_batches = 4;
  /// On the last stage: one number, from an output and the targets of the same samples.
  std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)> loss;
  /// The loss is a mean over samples, so that a micro-batch counts by its share of them; false: a sum.
  bool loss_is_mean = true;
  at::Device device = at::kCPU;  ///< Of this stage.
  /// Backend and timeout of the group that gradients go through on CUDA.
  ProcessGroupOptions gradient_group{};
  /// The stage is this module: its gradients are averaged over its group once a step, with the last micro-batch.
  DistributedDataParallelBase* ddp = nullptr;
};

/// A model whose stages are on different ranks, each a function or module with one tensor in and one out. Batches go
/// through in micro-batches, so that stages work at the same time. Gradients are those of the whole model on the whole
/// batch, in each stage's parameters, where an optimizer of each rank finds them; batch norm sees micro-batches,
/// though.
///
/// Shapes and dtypes travel with each tensor and may change. Strides do not: what arrives is contiguous. Every rank of
/// the group calls the same functions; rank r is stage r. A null group: one stage. Errors are LibTorch's exceptions; a
/// rank that fails must end, as under RankMain, for the others to get theirs. On CUDA gradients go through a group of
/// their own, since NCCL keeps messages between two ranks in one order.
class Pipeline {
 public:
  using Stage = std::function<at::Tensor(const at::Tensor&)>;

  /// The stage is a function, as one that calls a module. Collective.
  Pipeline(Stage stage, ProcessGroupPtr group, PipelineOptions options);
  /// It is a module with a forward from a tensor to a tensor; DistributedDataParallel needs no option for itself.
  template <typename M>
  Pipeline(std::shared_ptr<M> module, ProcessGroupPtr group, PipelineOptions options)
      : Pipeline(Stage([module](const at::Tensor& x) { return module->forward(x); }), std::move(group),
                 ForModule(*module, std::move(options))) {}
  /// The same for a module holder (`TORCH_MODULE`).
  template <typename M>
  Pipeline(const torch::nn::ModuleHolder<M>& holder, ProcessGroupPtr group, PipelineOptions options)
      : Pipeline(holder.ptr(), std::move(group), std::move(options)) {}

  /// Forward and backward of a batch; gradients are added to what is there. Returns the loss of the batch, a double on
  /// the CPU, on all ranks. `inputs` is looked at on the first stage, `targets` on the last, samples first. Under
  /// NoGradGuard the loss only. Collective.
  at::Tensor Step(const at::Tensor& inputs, const at::Tensor& targets);

  /// The outputs of all samples without gradients: on the last stage, elsewhere undefined; `everywhere`: on all ranks.
  /// Modules' modes are the caller's affair. Collective.
  at::Tensor Evaluate(const at::Tensor& inputs, bool everywhere = false);

  bool is_first() const { return stage_index_ == 0; }
  bool is_last() const { return stage_index_ == num_stages_ - 1; }
  /// The most micro-batches whose activations were kept at once in the last step.
  int64_t peak_micro_batches() const { return peak_micro_batches_; }

 private:
  enum class Kind : int64_t { kStep = 1, kEvaluate = 2 };
  /// Comes before each activation.
  struct Header {
    Kind kind;
    int64_t micro_batches, samples;  // of the batch
    bool needs_gradient = false;
    at::ScalarType dtype = at::kFloat;
    std::vector<int64_t> sizes{};
  };
  /// A batch on its way through this stage.
  struct Pass {
    Header header;                     // the last that came, or what the next one begins with
    std::vector<at::Tensor> pieces{};  // on the first stage, like what follows
    internal::PieceVersions versions{};
    int64_t received = 0;
  };
  struct MicroBatch {
    at::Tensor input, output;      // output: the weighted loss on the last stage
    std::vector<WorkPtr> sends{};  // of the output
  };

  template <typename M>
  static PipelineOptions ForModule(M& module, PipelineOptions options) {
    if constexpr (std::is_base_of_v<DistributedDataParallelBase, M>) options.ddp = &module;
    return options;
  }

  Pass Begin(Kind kind, const at::Tensor& inputs) const;
  at::Tensor NextInput(Pass& pass) const;
  at::Tensor CallStage(const at::Tensor& input) const;
  MicroBatch Forward(Pass& pass, const std::vector<at::Tensor>& targets, at::Tensor& loss);
  void Backward(MicroBatch batch);
  std::vector<WorkPtr> SendOutput(const at::Tensor& output, Header header) const;
  Header ReceiveHeader(Kind kind) const;

  Stage stage_;
  const ProcessGroupPtr group_;
  const PipelineOptions options_;
  const int stage_index_, num_stages_;
  ProcessGroupPtr gradient_group_;
  WorkPtr gradient_send_;  // the last one
  int64_t peak_micro_batches_ = 0;
};

}  // namespace lockstep
