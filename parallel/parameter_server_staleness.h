#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

/// How old the parameters were that gradients were made from. Of each gradient: its staleness, the number of steps that
/// the server took between giving the worker the parameters and taking its gradient; always 0 in synchronous mode. And
/// its lead, how many steps the worker was ahead of the slowest that still worked when it was let go on.
class ParameterServerStaleness {
 public:
  void Add(int64_t staleness, int64_t lead);

  int64_t gradients() const;
  double mean() const;  ///< Of the staleness; 0 without gradients.
  int64_t max() const;
  int64_t max_lead() const { return max_lead_; }
  /// How many gradients had staleness 0, 1, 2, … max().
  const std::vector<int64_t>& histogram() const { return histogram_; }
  /// "120 gradients, staleness mean 1.25, max 4, lead max 3".
  std::string ToString() const;

 private:
  std::vector<int64_t> histogram_;
  int64_t max_lead_ = 0;
};

}  // namespace lockstep
