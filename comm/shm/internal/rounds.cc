#include "lockstep/comm/shm/internal/rounds.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <algorithm>

#include "lockstep/comm/definedness.h"

namespace lockstep::shm {

Slot& Rounds::Begin(const Call& call) {
  call_ = &call;
  deadline_.reset();
  Slot& slot = Next();
  slot.descriptor = call.what;
  return slot;
}

void Rounds::PublishAndWait() {
  peers_.mine().round.Set(round_);
  const Waiter waiter(call_->may_spin && peers_.fit_cores());
  for (int r = 0; r < peers_.size(); ++r) {
    if (r != peers_.rank()) waiter.Wait(peers_.memory(r).round, round_, [this] { Check(); });
  }
}

void Rounds::PublishAndCompare() {
  PublishAndWait();
  for (int r = 0; r < peers_.size(); ++r) {
    // It had come, and gave up before this rank did: then this rank must not go on as if all were well.
    if (peers_.memory(r).state.load(std::memory_order_acquire) != RankState::kFailed) continue;
    TORCH_CHECK_WITH(DistBackendError, false, "shm: ", Name(call_->what), ": ", peers_.WhyGone(r).value_or(""));
  }
  const Descriptor& mine = Of(peers_.rank()).descriptor;
  for (int r = 0; r < peers_.size(); ++r) {
    const Descriptor& theirs = Of(r).descriptor;
    const bool alike = theirs.sequence == mine.sequence && theirs.operation == mine.operation &&
                       theirs.reduction == mine.reduction && theirs.dtype == mine.dtype && theirs.root == mine.root &&
                       theirs.elements == mine.elements &&
                       (!check_shapes_ || (theirs.dims == mine.dims && theirs.shape == mine.shape));
    TORCH_CHECK_WITH(DistBackendError, alike, "shm: the ranks don't call the same: rank ", peers_.name(peers_.rank()),
                     " calls ", Name(mine), ", rank ", peers_.name(r), " calls ", Name(theirs));
  }
}

void Rounds::Check() {
  const auto now = std::chrono::steady_clock::now();
  if (!deadline_) deadline_ = now + call_->timeout;
  std::string missing, gone, gave_up;
  for (int r = 0; r < peers_.size(); ++r) {
    // Whether it is gone must be known before whether it has come: it may do the one after the other.
    const auto why = r == peers_.rank() ? std::nullopt : peers_.WhyGone(r);
    if (r == peers_.rank() || peers_.memory(r).round.Reached(round_)) continue;
    absl::StrAppend(&missing, missing.empty() ? "" : ", ", peers_.name(r));
    if (!why) continue;
    std::string& reasons = peers_.memory(r).state.load() == RankState::kFailed ? gave_up : gone;
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", *why);
  }
  const auto fail = [&](const std::string& what) {
    TORCH_CHECK_WITH(DistBackendError, false, "shm: ", Name(call_->what), what);
  };
  if (aborted_.load()) fail(" was aborted");
  if (!gone.empty()) fail(": " + gone);
  if (!gave_up.empty()) fail(": " + gave_up);
  if (!missing.empty() && now >= *deadline_) {
    fail(absl::StrCat(" timed out after ", call_->timeout.count(), " ms: these ranks did not come: ", missing));
  }
}

void Rounds::Abort(const std::string& reason) {
  aborted_ = true;
  peers_.Fail(reason);
  for (int r = 0; r < peers_.size(); ++r) peers_.memory(r).round.WakeAll();
}

std::string Rounds::Name(const Descriptor& d) {
  std::string name = absl::StrCat(c10d::opTypeToString(static_cast<c10d::OpType>(d.operation)), " #", d.sequence);
  if (d.dtype < 0) return name;
  absl::StrAppend(&name, " (");
  if (d.reduction != c10d::ReduceOp::UNUSED) {
    absl::StrAppend(&name, ReductionName(static_cast<c10d::ReduceOp::RedOpType>(d.reduction)), " of ");
  }
  if (d.elements == 0 && d.dims == 0)
    return absl::StrCat(name, c10::toString(static_cast<c10::ScalarType>(d.dtype)), ")");
  const auto told = std::min<uint64_t>(d.dims, Descriptor::kMaxDims);
  absl::StrAppend(&name, c10::toString(static_cast<c10::ScalarType>(d.dtype)), " [",
                  absl::StrJoin(d.shape.begin(), d.shape.begin() + told, ", "), told < d.dims ? ", …" : "", "]");
  if (d.root >= 0) absl::StrAppend(&name, ", root ", d.root);
  return absl::StrCat(name, ")");
}

}  // namespace lockstep::shm
