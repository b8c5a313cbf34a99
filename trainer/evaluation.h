#pragma once

#include <absl/status/statusor.h>
#include <c10/core/DeviceType.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/amp/autocast.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/data/limited_source.h"
#include "lockstep/metrics/metric_sums.h"
#include "lockstep/trainer/count_output.h"
#include "lockstep/trainer/observer_list.h"
#include "lockstep/trainer/step.h"
#include "lockstep/trainer/strategy.h"

namespace lockstep {

/// Passes over data without gradients, with the module in evaluation mode. Nothing is owned but the step.
template <typename Batch>
class Evaluation {
 public:
  /// `autocast` nothing: as the caller has it.
  Evaluation(Strategy& strategy, EvalStep<Batch> step, const ObserverList& observers, c10::DeviceType device,
             std::optional<at::ScalarType> autocast)
      : strategy_(strategy), step_(std::move(step)), observers_(observers), device_(device), autocast_(autocast) {}

  /// From OnValidationStart, which ForEachBatch tells, to OnValidationEnd, which is told whatever happens between.
  class Scope {
   public:
    explicit Scope(const Evaluation& evaluation) : observers_(evaluation.observers_) {}
    ~Scope() {
      if (!ended_) observers_.TellInTrouble([](TrainObserver& o) { o.OnValidationEnd(); });
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    void End() {
      ended_ = true;
      observers_.Tell([](TrainObserver& o) { o.OnValidationEnd(); });
    }

   private:
    const ObserverList& observers_;
    bool ended_ = false;
  };

  /// Calls `use` with the first `limit` batches of this rank, 0: all. Within a Scope.
  template <typename F>
  void ForEachBatch(BatchSource<Batch>& source, size_t limit, const F& use) const {
    observers_.Tell([](TrainObserver& o) { o.OnValidationStart(); });
    strategy_.wrapper().eval();
    const c10::NoGradGuard no_grad;
    LimitedSource<Batch> limited(source, limit);
    limited.StartEpoch(0);
    while (auto batch = limited.Next()) {
      std::optional<AutocastGuard> autocast;
      if (autocast_) autocast.emplace(device_, autocast_);
      use(*batch);
    }
  }

  /// Means over all ranks' samples, each counted once, under `prefix`. Within a Scope. Collective.
  absl::StatusOr<std::map<std::string, double>> Means(BatchSource<Batch>& source, const std::string& prefix,
                                                      size_t limit) const {
    MetricSums sums;
    ForEachBatch(source, limit, [&](Batch& batch) { CountOutput(step_(batch), strategy_, sums); });
    return sums.FiniteMeans(prefix, strategy_.group());
  }

 private:
  Strategy& strategy_;
  const EvalStep<Batch> step_;
  const ObserverList& observers_;
  const c10::DeviceType device_;
  const std::optional<at::ScalarType> autocast_;
};

}  // namespace lockstep
