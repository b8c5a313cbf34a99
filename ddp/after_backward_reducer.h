#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/internal/backward_watch.h"
#include "lockstep/ddp/reducer.h"

namespace lockstep {

/// Reduces all gradients in one call for each dtype, once backward is over: no buckets, nothing overlaps, no memory is
/// held between steps. A parameter without a gradient counts as zero, and has the average afterwards. No sparse ones.
/// Parameters that are frozen or unfrozen later are not noticed.
class AfterBackwardReducer : public Reducer, private internal::BackwardWatch::Client {
 public:
  /// As BucketedReducer's.
  AfterBackwardReducer(std::vector<NamedParameter> parameters, ProcessGroupPtr group);

  void PrepareForBackward(const std::vector<at::Tensor>& outputs) override;
  void PrepareForAccumulation(const std::vector<at::Tensor>& outputs) override;
  void SetWeight(std::optional<double> weight) override;
  void Abandon(const std::string& why) override;

 private:
  void OnGradient(size_t index) override {}
  void OnBackwardEnd() override { Reduce(""); }
  void Reduce(const std::string& problem);

  std::vector<NamedParameter> parameters_;
  const ProcessGroupPtr group_;
  std::optional<double> weight_;
  internal::BackwardWatch watch_;  // last: it may call us until it is gone
};

}  // namespace lockstep
