#include "lockstep/comm/shm/internal/reduce_loops.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Half.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <utility>

#include "lockstep/comm/shm/internal/layout.h"

namespace lockstep::shm {
namespace {

using Reduction = c10d::ReduceOp::RedOpType;
constexpr size_t kPrefetchBytes = 1024;
using LoopFunction = void(const char* const*, int, char* const*, int, int64_t, bool);

namespace baseline {
#include "reduce_loops.inc"
}  // namespace baseline

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,f16c")
namespace avx2 {
#include "reduce_loops.inc"
}  // namespace avx2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,prefer-vector-width=512")
namespace avx512 {
#include "reduce_loops.inc"
}  // namespace avx512
#pragma GCC pop_options
#endif

LoopFunction* BestLoop(Reduction reduction, c10::ScalarType dtype) {
#if defined(__x86_64__)
  static const bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                 __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (has_avx512) return avx512::FindLoop(reduction, dtype);
  if (has_avx2) return avx2::FindLoop(reduction, dtype);
#endif
  return baseline::FindLoop(reduction, dtype);
}

/// Any dtype, with LibTorch's operations.
void ReduceWithAten(Reduction reduction, c10::ScalarType dtype, const char* const* sources, int num_sources,
                    char* const* destinations, int num_destinations, int64_t count) {
  const at::NoGradGuard no_grad;
  const auto wrap = [&](const char* data) {
    return at::from_blob(const_cast<char*>(data), {count}, at::TensorOptions().dtype(dtype));
  };
  at::Tensor result = wrap(sources[0]).clone();
  for (int s = 1; s < num_sources; ++s) {
    const at::Tensor source = wrap(sources[s]);
    switch (reduction) {
      case Reduction::SUM:
      case Reduction::AVG: result.add_(source); break;
      case Reduction::PRODUCT: result.mul_(source); break;
      case Reduction::MIN: at::minimum_out(result, result, source); break;
      case Reduction::MAX: at::maximum_out(result, result, source); break;
      case Reduction::BAND: result.bitwise_and_(source); break;
      case Reduction::BOR: result.bitwise_or_(source); break;
      case Reduction::BXOR: result.bitwise_xor_(source); break;
      default: TORCH_INTERNAL_ASSERT(false, "an undefined reduction");
    }
  }
  if (reduction == Reduction::AVG) result.div_(num_sources);
  for (int d = 0; d < num_destinations; ++d) wrap(destinations[d]).copy_(result);
}

}  // namespace

void Reduce(Reduction reduction, c10::ScalarType dtype, const char* const* sources, int num_sources,
            char* const* destinations, int num_destinations, int64_t count) {
  if (count == 0 || num_destinations == 0) return;
  if (c10::isComplexType(dtype) && (reduction == Reduction::SUM || reduction == Reduction::AVG)) {
    dtype = c10::toRealValueType(dtype);
    count *= 2;
  }
  const bool looped = reduction == Reduction::SUM || reduction == Reduction::AVG || reduction == Reduction::MIN ||
                      reduction == Reduction::MAX;
  const bool vectors = dtype == c10::kFloat || dtype == c10::kDouble || dtype == c10::kHalf || dtype == c10::kBFloat16;
  if (looped && vectors) {
    BestLoop(reduction, dtype)(sources, num_sources, destinations, num_destinations, count,
                               reduction == Reduction::AVG);
  } else {
    ReduceWithAten(reduction, dtype, sources, num_sources, destinations, num_destinations, count);
  }
}

}  // namespace lockstep::shm
