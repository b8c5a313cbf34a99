#pragma once

#include <absl/status/status.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/checkpoint/value.h"
#include "lockstep/comm/agree.h"
#include "lockstep/comm/join.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/trainer/generators.h"

namespace lockstep {

/// One pass over a source that knows which batch is the last, and, with joinables, goes on until every rank has come to
/// its end (see Join).
template <typename Batch>
class BatchStream {
 public:
  /// The source's pass has begun. Nothing is taken of it yet.
  BatchStream(BatchSource<Batch>& source, const std::vector<Joinable*>& joinables, const ProcessGroupPtr& group,
              JoinOptions options)
      : source_(source), group_(group) {
    if (!joinables.empty()) join_.emplace(joinables, group, options);
  }

  /// First of all, for a run that goes on: leaves out batches that it has had. False when there are not so many.
  bool Skip(size_t batches) {
    if (!join_ || batches == 0) return source_.Skip(batches);
    if (!source_.Skip(batches - 1)) return false;
    current_ = source_.Next();  // a rank that is out of batches goes on with its last one
    return current_.has_value();
  }

  /// Fetches the batch after the current one, which Next does too. With `device` the random generators' states before
  /// it are kept.
  void Fetch(std::optional<c10::DeviceType> device) {
    if (fetched_) return;
    fetched_ = true;
    if (device) before_next_ = GeneratorsState(*device);
    next_ = source_.Next();
  }

  /// Null at the end. With joinables collective.
  Batch* Next(std::optional<c10::DeviceType> device = std::nullopt) {
    Fetch(device);
    const bool has_batch = next_.has_value();
    if (!has_batch && !join_) return nullptr;
    std::optional<Batch> batch = std::exchange(next_, std::nullopt);
    if (has_batch) {
      fetched_ = false;
      Fetch(device);
    }
    counts_ = has_batch;
    if (join_) {
      const Join::Step step = join_->Next(has_batch, next_.has_value());
      if (step == Join::Step::kEnd) return nullptr;
      if (first_) {
        const absl::Status status = AgreeOnStatus(
            has_batch || current_ ? absl::OkStatus()
                                  : absl::InvalidArgumentError("join: this rank has no batch at all, and so none to "
                                                               "keep the others company with"),
            group_);
        TORCH_CHECK(status.ok(), std::string(status.message()));
        first_ = false;
      }
    }
    if (has_batch) current_ = std::move(batch);  // else the last one again
    return &*current_;
  }

  /// Of the batch that Next gave: whether none comes after it, on any rank.
  bool is_last() const { return join_ ? join_->is_last() : !next_.has_value(); }
  /// Whether it is one of this rank's, and not there for the other ranks' sake.
  bool counts() const { return counts_; }
  /// Whether every rank's batch is one of its own.
  bool all_count() const { return !join_ || join_->all_have_batches(); }
  /// The generators' states before the batch after it was fetched, where they were to be kept.
  const Value& generators_before_next() const { return before_next_; }

 private:
  BatchSource<Batch>& source_;
  const ProcessGroupPtr group_;
  std::optional<Join> join_;
  std::optional<Batch> current_, next_;
  Value before_next_;
  bool fetched_ = false, counts_ = true, first_ = true;
};

}  // namespace lockstep
