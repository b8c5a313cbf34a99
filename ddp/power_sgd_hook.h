#pragma once

#include <absl/status/status.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "lockstep/checkpoint/stateful.h"
#include "lockstep/checkpoint/value.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/reducer.h"

namespace lockstep {

struct PowerSgdOptions {
  int rank = 1;                          ///< Of the matrices that gradients are approximated with.
  int64_t start_step = 1000;             ///< Steps that are plainly all-reduced first.
  double min_compression_rate = 2;       ///< A tensor that isn't compressed by more is all-reduced as it is.
  bool error_feedback = true;            ///< What the approximation lost is added to the next gradient.
  bool warm_start = true;                ///< Each step begins with the last one's Q; otherwise with a random one.
  double orthogonalization_epsilon = 0;  ///< Added to norms; keeps columns of zeros from dividing by zero.
  uint64_t seed = 0;                     ///< Of the random matrices; the same on all ranks.
  /// Compresses a whole bucket as one square matrix instead of tensor by tensor: faster, less accurate.
  bool batched = false;
};

/// PowerSGD (Vogels et al., arXiv:1905.13727): averages gradients through matrices of low rank, with the results of
/// Python's powerSGD_hook and batched_powerSGD_hook but for the random numbers. Two all-reduces for each bucket, one
/// after the other, which the thread that runs backward waits for on the CPU.
///
/// What it remembers of each parameter is kept under the parameter's name, so that it outlives a change of the buckets
/// and can be saved.
class PowerSgdHook : public c10d::CommHookInterface, public Stateful {
 public:
  /// `parameters`: those of the reducer.
  PowerSgdHook(const std::vector<NamedParameter>& parameters, ProcessGroupPtr group, PowerSgdOptions options = {});

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override;

  /// {"step", "draws", "memory": {name: {"q", "errors": every rank's}}}. Collective.
  Value SaveState() override;
  /// With another number of ranks than the state's, what had been lost so far is forgotten.
  absl::Status LoadState(const Value& state) override;

  /// Elements that came in and that were sent, so far.
  int64_t elements_before() const { return elements_before_; }
  int64_t elements_after() const { return elements_after_; }

 private:
  /// Of a parameter, or of a bucket in the batched variant.
  struct Memory {
    at::Tensor error, q;  // flat; [columns, rank]
  };

  void Compress(c10d::GradBucket& bucket);
  void CompressBatched(c10d::GradBucket& bucket);
  static void Remember(Memory& memory, const at::Tensor& finite, const at::Tensor& error);
  at::Tensor FirstQ(Memory& memory, int64_t columns, int64_t rank, const at::TensorOptions& options);
  const std::string& NameOf(const at::Tensor& parameter) const;

  const ProcessGroupPtr group_;
  const PowerSgdOptions options_;
  std::unordered_map<c10::TensorImpl*, NamedParameter> names_;
  std::map<std::string, Memory> memory_;
  int64_t step_ = 0;
  int64_t draws_ = 0;  // random matrices so far
  int64_t elements_before_ = 0, elements_after_ = 0;
};

}  // namespace lockstep
