#include "lockstep/comm/agree.h"

#include <absl/strings/cord.h>
#include <absl/strings/str_cat.h>

#include "lockstep/comm/texts.h"

namespace lockstep {
namespace {

constexpr char kAgreed[] = "lockstep/agreed";

}  // namespace

absl::Status AgreeOnStatus(const absl::Status& mine, const ProcessGroupPtr& group) {
  if (!group) return mine;
  if (!AnyRank(!mine.ok(), group)) return absl::OkStatus();
  // Code and message, since a rank without an error has neither.
  const auto all = AllGatherString(
      mine.ok() ? "" : absl::StrCat(static_cast<int>(mine.code()), " ", std::string(mine.message())), group);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    bool same = true;
    for (const auto& other : all) same = same && other == all[rank];
    const auto space = all[rank].find(' ');
    const auto code = static_cast<absl::StatusCode>(std::stoi(all[rank].substr(0, space)));
    absl::Status status(code, absl::StrCat(same ? "" : absl::StrCat("rank ", rank, ": "), all[rank].substr(space + 1)));
    status.SetPayload(kAgreed, absl::Cord("yes"));
    return status;
  }
  return absl::OkStatus();
}

bool IsAgreed(const absl::Status& status) { return status.GetPayload(kAgreed).has_value(); }

}  // namespace lockstep
