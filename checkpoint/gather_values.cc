#include "lockstep/checkpoint/gather_values.h"

#include <absl/status/status.h>

#include <string>
#include <utility>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/packed_value.h"
#include "lockstep/comm/agree.h"
#include "lockstep/comm/texts.h"

namespace lockstep {

absl::StatusOr<std::vector<Value>> GatherValues(const Value& mine, const ProcessGroupPtr& group) {
  const auto packed = internal::PackValue(mine);
  LOCKSTEP_RETURN_IF_ERROR(AgreeOnStatus(packed.status(), group));
  std::vector<Value> values;
  for (std::string& text : GatherString(*packed, group)) {
    LOCKSTEP_ASSIGN_OR_RETURN(Value value, internal::UnpackValue(text));
    values.push_back(std::move(value));
    std::string().swap(text);  // no longer twice in memory
  }
  return values;
}

}  // namespace lockstep
