#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>

#include "lockstep/comm/collectives.h"

namespace lockstep {

/// Means over samples, of one pass over the data on all ranks: sums are kept on the device in double, without a look
/// from the host, and brought together once at the end. Ranks may have seen different numbers of samples, or none.
class MetricSums {
 public:
  /// Adds `sum`, the sum of a metric over some samples (a scalar tensor).
  void Add(const std::string& name, const at::Tensor& sum);
  /// Counts the samples that the sums were over.
  void AddSamples(int64_t count) { samples_ += count; }

  /// This rank's samples.
  int64_t samples() const { return samples_; }

  struct Result {
    std::map<std::string, double> means;  ///< Empty when there was no sample.
    int64_t samples = 0;                  ///< On all ranks.
  };
  /// The same result on every rank. Collective.
  Result Reduce(const ProcessGroupPtr& group) const;

 private:
  std::map<std::string, at::Tensor> sums_;
  int64_t samples_ = 0;
};

}  // namespace lockstep
