#include "lockstep/parallel/parameter_server_staleness.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <numeric>

namespace lockstep {

void ParameterServerStaleness::Add(int64_t staleness, int64_t lead) {
  if (staleness >= static_cast<int64_t>(histogram_.size())) histogram_.resize(staleness + 1);
  ++histogram_[staleness];
  max_lead_ = std::max(max_lead_, lead);
}

int64_t ParameterServerStaleness::gradients() const {
  return std::accumulate(histogram_.begin(), histogram_.end(), int64_t{0});
}

double ParameterServerStaleness::mean() const {
  double sum = 0;
  for (size_t i = 0; i < histogram_.size(); ++i) sum += static_cast<double>(i) * static_cast<double>(histogram_[i]);
  return sum / static_cast<double>(std::max<int64_t>(gradients(), 1));
}

int64_t ParameterServerStaleness::max() const {
  return std::max<int64_t>(static_cast<int64_t>(histogram_.size()) - 1, 0);
}

std::string ParameterServerStaleness::ToString() const {
  return absl::StrFormat("%d gradients, staleness mean %.2f, max %d, lead max %d", gradients(), mean(), max(),
                         max_lead_);
}

}  // namespace lockstep
