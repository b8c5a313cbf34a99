#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/collectives.h"
#include "lockstep/ddp/internal/reduce_at_end.h"
#include "lockstep/ddp/reducer.h"

namespace lockstep {

/// Reduces all gradients in one call for each dtype, once backward is over: no buckets, nothing overlaps, no memory is
/// held between steps. A parameter without a gradient counts as zero, and has the average afterwards. No sparse ones.
/// Parameters that are frozen or unfrozen later are not noticed.
class AfterBackwardReducer : public internal::ReduceAtEnd {
 public:
  /// As BucketedReducer's.
  AfterBackwardReducer(std::vector<NamedParameter> parameters, ProcessGroupPtr group)
      : ReduceAtEnd(std::move(parameters), std::move(group)) {}

 private:
  void Reduce(const std::string& problem) override;
};

}  // namespace lockstep
