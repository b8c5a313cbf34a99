#pragma once

#include <limits>
#include <optional>
#include <string>

#include "lockstep/checkpoint/stop_criterion.h"

namespace lockstep {

struct EarlyStoppingOptions {
  enum class Mode { kMin, kMax };

  std::string monitor = "val_loss";  ///< The metric to watch.
  Mode mode = Mode::kMin;            ///< Whether less or more of it is better.
  int patience = 5;                  ///< Validations without improvement until it stops; at least 1.
  double min_delta = 0;              ///< Better means better by more than this; not negative.
  bool check_finite = true;          ///< A metric that is NaN or infinite is an error; else it is no improvement.
  std::optional<double> stopping_threshold;    ///< Stop once the metric is better than this: good enough.
  std::optional<double> divergence_threshold;  ///< Stop once the metric is worse than this: hopeless.
};

/// Stops when the watched metric has not improved for `patience` validations in a row. Strictly better by more than
/// min_delta resets the counter (Prechelt, "Early Stopping — But When?", 1998). It decides for this process alone;
/// where ranks may see different metrics, share the decision.
class EarlyStopping : public StopCriterion {
 public:
  explicit EarlyStopping(EarlyStoppingOptions options = {});

  /// InvalidArgument: bad options, a metric that isn't in `metrics` (the known ones are listed) or is not finite.
  absl::StatusOr<Verdict> Check(const std::map<std::string, double>& metrics) override;

  int counter() const override { return counter_; }
  /// The best value so far; the worst possible before the first.
  double best() const { return best_; }
  std::string reason() const override;

  /// Keys: counter, best, last (the last value checked), stopped (0, or why).
  std::map<std::string, double> state() const override;
  absl::Status set_state(const std::map<std::string, double>& state) override;

 private:
  /// Kept in saved states: don't renumber.
  enum class Cause { kNone = 0, kPatience = 1, kStoppingThreshold = 2, kDivergenceThreshold = 3 };

  bool Better(double a, double b) const { return options_.mode == EarlyStoppingOptions::Mode::kMin ? a < b : a > b; }

  const EarlyStoppingOptions options_;
  int counter_ = 0;
  double best_;
  double last_ = 0;
  Cause cause_ = Cause::kNone;
};

}  // namespace lockstep
