#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <set>
#include <string>
#include <vector>

namespace lockstep {

/// Keeps the last collectives of this rank, so that after a hang one can see where the ranks parted: what was called,
/// with which sizes, whether it began and ended, and when. `//comm:flight_report` merges the dumps of all ranks.
/// Thread-safe.
class FlightRecorder {
 public:
  /// A dump is the file `flight_rank_<rank>.json` in `folder`; empty: nothing is ever written, but Json() still works.
  FlightRecorder(int rank, int world_size, std::string folder, size_t capacity = 1024);
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  /// This rank belongs to a group, also when it never asks for anything there.
  void Joined(const std::string& group);
  /// A collective was asked for. `sequence` counts in its `group`; `peer` is that of a send or receive, else -1.
  /// Returns the entry's number.
  uint64_t Asked(const std::string& group, uint64_t sequence, c10d::OpType operation,
                 c10d::ReduceOp::RedOpType reduction, const at::Tensor& tensor, int peer = -1);
  /// It begins to run.
  void Begun(uint64_t entry);
  /// It is over; `error` is empty when it went well. On NCCL: its wait() has returned, and the device may not be done.
  void Ended(uint64_t entry, const std::string& error = "");

  /// All of it, oldest first.
  std::string Json() const;
  /// Writes the file, whole or not at all; false when it can't be written or there is no folder. Call it once at the
  /// start to find out.
  bool Dump() const;

 private:
  enum class State { kAsked, kBegun, kDone, kFailed };
  struct Entry {
    uint64_t number = 0;
    std::string group;
    uint64_t sequence = 0;
    c10d::OpType operation = c10d::OpType::UNKNOWN;
    c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::UNUSED;
    int dtype = -1;
    std::vector<int64_t> shape;
    int peer = -1;
    State state = State::kAsked;
    int64_t asked_us = 0, begun_us = 0, ended_us = 0;  ///< Since 1970; 0 for not yet.
    std::string error;
  };
  Entry* Find(uint64_t number);

  const int rank_, world_size_;
  const std::string folder_;
  mutable std::mutex mutex_;
  mutable std::mutex dump_mutex_;  // one at a time writes the file
  std::set<std::string> groups_;
  std::vector<Entry> entries_;  // entry n is at n mod the capacity
  uint64_t next_ = 0;
};

/// From now on, `signal` makes every recorder of this process write its file. The program goes on. A thread does it, so
/// that it also works while all others hang.
void DumpFlightRecordersOnSignal(int signal);

}  // namespace lockstep
