#pragma once

#include "lockstep/ddp/distributed_data_parallel_base.h"
#include "lockstep/trainer/observer.h"

namespace lockstep {

/// Running statistics of batch norm that is not synchronised differ between ranks, and are read in validation only:
/// rank 0's go to all before each, so that `broadcast_buffers`, before each forward, may be off.
class BufferSync : public TrainObserver {
 public:
  /// `ddp` is not owned.
  explicit BufferSync(DistributedDataParallelBase& ddp) : ddp_(ddp) {}
  void OnValidationStart() override { ddp_.SyncBuffers(); }

 private:
  DistributedDataParallelBase& ddp_;
};

}  // namespace lockstep
