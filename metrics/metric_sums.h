#pragma once

#include <absl/status/statusor.h>
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
  /// Adds all sums and samples of `other`.
  void Add(const MetricSums& other);
  /// Counts the samples that the sums were over.
  void AddSamples(int64_t count) { samples_ += count; }

  /// This rank's samples.
  int64_t samples() const { return samples_; }
  /// This rank's sums, brought to the host.
  std::map<std::string, double> sums() const;

  struct Result {
    std::map<std::string, double> means;  ///< Empty when there was no sample.
    int64_t samples = 0;                  ///< On all ranks.
  };
  /// The same result on every rank. Collective.
  Result Reduce(const ProcessGroupPtr& group) const;

  /// Reduce's means under `prefix`, and `<prefix>samples`. An error, on every rank, when one is not a finite number, or
  /// when there was no sample and that may not be. Collective.
  absl::StatusOr<std::map<std::string, double>> FiniteMeans(const std::string& prefix, const ProcessGroupPtr& group,
                                                            bool may_be_empty = false) const;

 private:
  std::map<std::string, at::Tensor> sums_;
  int64_t samples_ = 0;
};

}  // namespace lockstep
