#include "lockstep/trainer/log_failure.h"

#include <stdexcept>
#include <string>

#include "lockstep/base/logging.h"

namespace lockstep {

void ThrowOrWarn(const absl::Status& written, bool failure_is_error) {
  if (written.ok()) return;
  if (failure_is_error) throw std::runtime_error(std::string(written.message()));
  LOG(WARNING) << std::string(written.message());
}

}  // namespace lockstep
