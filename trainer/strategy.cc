#include "lockstep/trainer/strategy.h"

#include <absl/strings/str_cat.h>

#include <string>

#include "lockstep/base/logging.h"

namespace lockstep {

void LogBatch(const Strategy& strategy, int64_t samples) {
  const DataShare share = strategy.share();
  if (!strategy.counts() || share.index != 0) return;
  const std::string each = strategy.devices() > 1 ? absl::StrCat(", cut for ", strategy.devices(), " devices") : "";
  LOG(INFO) << "strategy " << strategy.name() << ": a step takes " << samples << " samples of a rank" << each << ", "
            << samples * strategy.shares_of_a_step() << " together";
}

}  // namespace lockstep
