#pragma once

#include <absl/status/status.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// Numbers of steps, kept where they are, on their devices, and looked at many together, so that no step waits.
class StepNumbers {
 public:
  /// Steps and epochs count from 1. `name` outlives this: what the number is, for the error. An undefined tensor stands
  /// for no number.
  void Add(size_t epoch, size_t step, const char* name, const at::Tensor& number);

  /// Of what was added since the last time: OK, or on every rank the error of the first step, and of the lowest rank in
  /// it, with a number that is not finite. Every rank has added as many, in the same order. Collective.
  absl::Status Check(const ProcessGroupPtr& group);

 private:
  struct Number {
    size_t epoch, step;
    const char* name;
    at::Tensor value;
  };
  std::vector<Number> numbers_;
};

struct FiniteCheckOptions {
  size_t every = 50;              ///< Steps after which all ranks look at their losses; 0: only where Check is called.
  size_t max_skipped_steps = 20;  ///< So many in a row that the scaler skips are an error; 0: any number may be.
};

/// Finds losses and norms that are not finite: of steps that were taken each is an error, of skipped ones a long row.
/// Every rank calls the same, and its calls may be collective.
class FiniteCheck {
 public:
  FiniteCheck(FiniteCheckOptions options, ProcessGroupPtr group) : options_(options), group_(std::move(group)) {}

  /// After a step. `loss` is undefined on a rank that had no batch, `norm` on all ranks where gradients are not
  /// clipped.
  absl::Status AddStep(bool stepped, size_t epoch, size_t step, const at::Tensor& loss, const at::Tensor& norm);
  /// The row of skipped steps, as numbers of a state.
  std::map<std::string, double> state() const;
  void set_state(const std::map<std::string, double>& state);
  /// Of the steps since the last look.
  absl::Status Check() { return taken_.Check(group_); }

 private:
  const FiniteCheckOptions options_;
  const ProcessGroupPtr group_;
  StepNumbers taken_, skipped_;
  size_t in_a_row_ = 0;                        // skipped
  size_t streak_epoch_ = 0, streak_step_ = 0;  // where that row began
};

}  // namespace lockstep
