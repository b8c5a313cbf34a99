#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/ddp/distributed_data_parallel_base.h"
#include "lockstep/trainer/observer.h"
#include "lockstep/trainer/step_range.h"

namespace lockstep {

/// Writes a Chrome trace (chrome://tracing, Perfetto) of some steps of this rank: LibTorch's operators as its profiler
/// records them, and the communication of each bucket of the reducer. The file is `<folder>/trace_rank<rank>.json`;
/// throws when it can't be written.
class TraceWriter : public TrainObserver {
 public:
  /// `ddp` may be null: then there are no buckets in it.
  TraceWriter(StepRange range, std::string folder, int rank, DistributedDataParallelBase* ddp);
  ~TraceWriter() override;

  void OnStepStart() override;
  void OnStepEnd(StepInfo& info) override;
  void OnFitEnd() override;
  void OnException(const std::string& what) override;

  const std::string& path() const { return path_; }

 private:
  struct Recording;
  void Write();

  const StepRange range_;
  const int rank_;
  const std::string path_;
  DistributedDataParallelBase* const ddp_;
  size_t step_ = 0;
  std::unique_ptr<Recording> recording_;
};

}  // namespace lockstep
