#pragma once

#include <cstdio>
#include <string>
#include <utility>

#include "lockstep/comm/collectives.h"
#include "lockstep/trainer/observer.h"

namespace lockstep {

/// Tells a person how training goes: on a terminal a bar with images/s of all ranks and the time left, and one row per
/// epoch; elsewhere the rows alone. Only rank 0 prints.
class ProgressPrinter : public TrainObserver {
 public:
  /// `out` is not owned.
  ProgressPrinter(int rank, int world_size, std::FILE* out = stdout);

  void OnFitStart() override;
  void OnStepEnd(StepInfo& info) override;
  void OnEpochEnd(const EpochInfo& info) override;
  void OnStopped(const std::string& reason) override;
  void OnException(const std::string& what) override;

 private:
  void ClearBar();

  const bool active_;
  const int world_size_;
  std::FILE* const out_;
  const bool terminal_;
  double last_drawn_ = 0;
  bool bar_ = false;
};

/// One line every N steps: epoch, step, and loss and metrics as means over all ranks, by rank 0; and one at each
/// epoch's end with all metrics of training and validation. On every rank: the means are collective.
class MeanPrinter : public TrainObserver {
 public:
  MeanPrinter(ProcessGroupPtr group, size_t every, std::FILE* out = stdout)
      : group_(std::move(group)), every_(every), out_(out) {}

  void OnStepEnd(StepInfo& info) override;
  void OnEpochEnd(const EpochInfo& info) override;
  void OnStopped(const std::string& reason) override;

 private:
  void Print(const std::string& line);

  const ProcessGroupPtr group_;
  const size_t every_;
  std::FILE* const out_;
};

/// One line every N steps from every rank (epoch, step, loss, rank), and one at each epoch's end (epoch, the stop
/// criterion's counter, accuracy).
class LinePrinter : public TrainObserver {
 public:
  LinePrinter(int rank, size_t every, std::FILE* out = stdout) : rank_(rank), every_(every), out_(out) {}

  void OnStepEnd(StepInfo& info) override;
  void OnEpochEnd(const EpochInfo& info) override;
  void OnStopped(const std::string& reason) override;

 private:
  const int rank_;
  const size_t every_;
  std::FILE* const out_;
};

}  // namespace lockstep
