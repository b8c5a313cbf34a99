#pragma once

#include <cstddef>

namespace lockstep {

/// How far a training goes, and when it validates. 0: no such limit.
struct RunLimits {
  size_t min_epochs = 0;  ///< The stop criterion isn't heard before.
  /// Steps of the optimizer, counted over a run and its resumed parts. A run that ends inside an epoch is saved there,
  /// and goes on from there with a higher limit. With joinables the epoch goes on to its end once a rank is out of
  /// batches.
  size_t max_steps = 0;
  double max_minutes = 0;  ///< Of Fit, by rank 0's clock; heard a batch later.

  size_t train_batches = 0, validation_batches = 0, test_batches = 0;  ///< Of each pass, on each rank.
  /// Trains on the first batches of epoch 0, in each epoch the same, and validates on as many: a model that can't learn
  /// these by heart has a bug. Goes before train_batches and validation_batches.
  size_t overfit_batches = 0;
  /// Tries everything once on so many batches of each kind: one epoch; nothing is saved.
  size_t fast_dev_run = 0;

  size_t validate_every_steps = 0;   ///< Also inside an epoch.
  size_t validate_every_epochs = 1;  ///< 0: only at the end of the training, as then always.
  size_t sanity_batches = 0;         ///< Validated before a new run trains, so that a bug there is found early.

  /// What follows from overfit_batches and fast_dev_run.
  RunLimits Effective() const {
    RunLimits limits = *this;
    if (overfit_batches > 0) limits.train_batches = limits.validation_batches = overfit_batches;
    if (fast_dev_run > 0) {
      limits = {};
      limits.fast_dev_run = limits.train_batches = limits.validation_batches = limits.test_batches = fast_dev_run;
    }
    return limits;
  }
};

}  // namespace lockstep
