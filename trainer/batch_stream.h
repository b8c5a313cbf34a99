#pragma once

#include <absl/status/status.h>
#include <c10/util/Exception.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/agree.h"
#include "lockstep/comm/join.h"
#include "lockstep/data/batch_source.h"

namespace lockstep {

/// One pass over a source that knows which batch is the last, and, with joinables, goes on until every rank has come to
/// its end (see Join).
template <typename Batch>
class BatchStream {
 public:
  BatchStream(BatchSource<Batch>& source, const std::vector<Joinable*>& joinables, const ProcessGroupPtr& group,
              JoinOptions options)
      : source_(source), group_(group), next_(source.Next()) {
    if (!joinables.empty()) join_.emplace(joinables, group, options);
  }

  /// Null at the end. With joinables collective.
  Batch* Next() {
    const bool has_batch = next_.has_value();
    if (!has_batch && !join_) return nullptr;
    std::optional<Batch> batch = std::exchange(next_, std::nullopt);
    if (has_batch) next_ = source_.Next();
    counts_ = has_batch;
    if (join_) {
      const Join::Step step = join_->Next(has_batch, next_.has_value());
      if (step == Join::Step::kEnd) return nullptr;
      if (first_) {
        const absl::Status status =
            AgreeOnStatus(has_batch ? absl::OkStatus()
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

 private:
  BatchSource<Batch>& source_;
  const ProcessGroupPtr group_;
  std::optional<Join> join_;
  std::optional<Batch> current_, next_;
  bool counts_ = true, first_ = true;
};

}  // namespace lockstep
