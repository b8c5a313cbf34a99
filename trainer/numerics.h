#pragma once

#include <absl/status/status.h>

#include <string>

namespace lockstep {

// How LibTorch computes, for the whole process. Set before the first CUDA operation.

/// On: operations that give different bits from run to run are replaced by slower ones that don't, or throw where there
/// is no other; cuDNN doesn't choose its algorithms by timing, and cuBLAS gets a workspace that makes it reproducible
/// (CUBLAS_WORKSPACE_CONFIG, unless set). Memory that is not initialised is filled with NaN. As
/// `torch.use_deterministic_algorithms` in Python.
/// `warn_only`: a warning instead of throwing.
void SetDeterministic(bool on, bool warn_only = false);

/// How float32 matrix products are computed: "highest" (float32), "high" (TensorFloat-32 or three
/// bfloat16 products) or "medium" (bfloat16), where the device can. As `torch.set_float32_matmul_precision` in Python.
/// InvalidArgument for another word.
absl::Status SetMatmulPrecision(const std::string& precision);

}  // namespace lockstep
