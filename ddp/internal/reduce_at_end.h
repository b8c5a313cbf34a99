#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/internal/backward_watch.h"
#include "lockstep/ddp/reducer.h"

namespace lockstep::internal {

/// What reducers have in common that communicate when backward is over: when to call Reduce.
class ReduceAtEnd : public Reducer, private BackwardWatch::Client {
 public:
  void PrepareForBackward(const std::vector<at::Tensor>& outputs) override;
  void PrepareForAccumulation(const std::vector<at::Tensor>& outputs) override;
  void SetWeight(std::optional<double> weight) override;
  void Abandon(const std::string& why) override;

 protected:
  /// Keeps those of `parameters` that need a gradient; sparse ones are refused.
  ReduceAtEnd(std::vector<NamedParameter> parameters, ProcessGroupPtr group);

  /// `problem`: why this rank gives up, or nothing. Collective.
  virtual void Reduce(const std::string& problem) = 0;

  /// Throws on all ranks, naming the first that has a problem, if any has one. Collective.
  void ThrowProblems(const std::string& problem) const;

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  const ProcessGroupPtr& group() const { return group_; }
  double weight() const { return weight_.value_or(1.0 / GetWorldSize(group_)); }

 private:
  void OnGradient(size_t, const at::Tensor&) override {}
  void OnBackwardEnd() override { Reduce(""); }
  void EndUnfinished();

  const std::vector<NamedParameter> parameters_;
  const ProcessGroupPtr group_;
  std::optional<double> weight_;
  BackwardWatch watch_;  // last: it may call us until it is gone
};

}  // namespace lockstep::internal
