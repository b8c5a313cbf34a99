#include "lockstep/trainer/checkpoint_pace.h"

#include <utility>

namespace lockstep {

CheckpointPace::CheckpointPace(CheckpointIntervals intervals, const StopSignals* signals, bool hears_wishes,
                               ProcessGroupPtr group)
    : intervals_(intervals), signals_(signals), hears_wishes_(hears_wishes), group_(std::move(group)), flags_(group_) {}

LaggingFlags::Flags CheckpointPace::Mine(bool wish) const {
  const std::chrono::duration<double> since = std::chrono::steady_clock::now() - saved_;
  return {signals_ != nullptr && signals_->received() != 0,
          intervals_.minutes > 0 && GetRank(group_) == 0 && since.count() >= intervals_.minutes * 60, wish};
}

CheckpointPace::Due CheckpointPace::AfterBatch(bool ends_step, size_t steps, bool wish) {
  Due due;
  if (talks()) {
    const LaggingFlags::Flags before = flags_.Exchange(Mine(wish));
    due.stop = before.stop;
    end_due_ |= before.end;
    minutes_due_ |= before.save && !std::exchange(just_saved_, false);
  }
  due.end = ends_step && end_due_;
  due.save = ends_step && (minutes_due_ || (intervals_.steps > 0 && steps % intervals_.steps == 0));
  return due;
}

CheckpointPace::Due CheckpointPace::AfterEpoch(size_t epoch) {
  Due due;
  if (talks()) {
    const auto before = flags_.Exchange(Mine(false)), now = flags_.Finish();
    due.stop = before.stop || now.stop;
    minutes_due_ |= (before.save && !std::exchange(just_saved_, false)) || now.save;
  }
  due.save = minutes_due_ || (intervals_.epochs > 0 && epoch % intervals_.epochs == 0);
  return due;
}

void CheckpointPace::Saved() {
  saved_ = std::chrono::steady_clock::now();
  minutes_due_ = false;
  just_saved_ = true;
}

}  // namespace lockstep
