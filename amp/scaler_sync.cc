#include "lockstep/amp/scaler_sync.h"

#include <c10/util/Exception.h>

#include <sstream>
#include <vector>

#include "lockstep/comm/texts.h"

namespace lockstep {

void CheckScalersEqual(const LossScaler& scaler, const ProcessGroupPtr& group) {
  if (!group) return;
  std::ostringstream mine;
  mine.precision(9);  // as the floats that scales are in use
  for (const auto& [key, value] : scaler.state()) mine << key << " " << static_cast<float>(value) << "\n";
  const std::vector<std::string> all = AllGatherString(mine.str(), group);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::istringstream first(all[0]), other(all[rank]);
    std::string a = "nothing", b = "nothing";
    do {
      if (!std::getline(first, a)) a = "nothing";
      if (!std::getline(other, b)) b = "nothing";
    } while (a == b);
    TORCH_CHECK(false, "the ranks' loss scalers are no longer equal: rank 0 has ", a, ", rank ", rank, " has ", b,
                "; give each the group of all ranks (GradScalerOptions::group)");
  }
}

}  // namespace lockstep
