#include "lockstep/trainer/lagging_flags.h"

#include <ATen/Functions.h>

#include <utility>

namespace lockstep {

LaggingFlags::LaggingFlags(ProcessGroupPtr group) : group_(std::move(group)) {}

LaggingFlags::Flags LaggingFlags::Exchange(const Flags& mine) {
  const Flags before = Finish();
  flags_ = at::empty({static_cast<int64_t>(mine.size())}, at::kInt);
  for (size_t i = 0; i < mine.size(); ++i) flags_.data_ptr<int>()[i] = mine[i];
  if (group_) work_ = AllReduceAsync(flags_, group_, c10d::ReduceOp::MAX);
  return before;
}

LaggingFlags::Flags LaggingFlags::Finish() {
  Flags result{};
  if (!flags_.defined()) return result;
  if (work_) std::exchange(work_, nullptr)->wait();
  for (size_t i = 0; i < result.size(); ++i) result[i] = flags_.data_ptr<int>()[i] != 0;
  flags_.reset();
  return result;
}

}  // namespace lockstep
