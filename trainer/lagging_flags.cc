#include "lockstep/trainer/lagging_flags.h"

#include <ATen/Functions.h>

#include <utility>

namespace lockstep {

LaggingFlags::LaggingFlags(ProcessGroupPtr group) : group_(std::move(group)) {}

LaggingFlags::Flags LaggingFlags::Exchange(const Flags& mine) {
  const Flags before = Finish();
  flags_ = at::empty({3}, at::kInt);
  flags_.data_ptr<int>()[0] = mine.stop;
  flags_.data_ptr<int>()[1] = mine.save;
  flags_.data_ptr<int>()[2] = mine.end;
  if (group_) work_ = AllReduceAsync(flags_, group_, c10d::ReduceOp::MAX);
  return before;
}

LaggingFlags::Flags LaggingFlags::Finish() {
  Flags result;
  if (!flags_.defined()) return result;
  if (work_) std::exchange(work_, nullptr)->wait();
  result.stop = flags_.data_ptr<int>()[0] != 0;
  result.save = flags_.data_ptr<int>()[1] != 0;
  result.end = flags_.data_ptr<int>()[2] != 0;
  flags_.reset();
  return result;
}

}  // namespace lockstep
