#pragma once

#include <c10/core/ScalarType.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <cstdint>

namespace lockstep::shm {

/// Element by element: the reduction of `num_sources` arrays of `count` elements, in their order, into each of
/// `num_destinations` arrays. A destination may be one of the sources, but may not overlap one otherwise. AVG divides
/// the sum by the number of sources. Half types are summed in float and rounded once; NaN wins in MIN and MAX.
/// The reduction must be defined (comm/definedness.h).
void Reduce(c10d::ReduceOp::RedOpType reduction, c10::ScalarType dtype, const char* const* sources, int num_sources,
            char* const* destinations, int num_destinations, int64_t count);

}  // namespace lockstep::shm
