#include "lockstep/trainer/numerics.h"

#include <absl/strings/str_cat.h>
#include <ATen/Context.h>

#include <cstdlib>

namespace lockstep {

void SetDeterministic(bool on, bool warn_only) {
  if (on) setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::Context& context = at::globalContext();
  context.setDeterministicAlgorithms(on, warn_only);
  context.setDeterministicCuDNN(on);
  context.setDeterministicMkldnn(on);
  if (on) context.setBenchmarkCuDNN(false);
}

absl::Status SetMatmulPrecision(const std::string& precision) {
  if (precision != "highest" && precision != "high" && precision != "medium") {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown precision '", precision, "'; known: highest, high, medium"));
  }
  at::globalContext().setFloat32MatmulPrecision(precision);
  return absl::OkStatus();
}

}  // namespace lockstep
