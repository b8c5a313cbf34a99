#include "lockstep/metrics/metric_sums.h"

#include <ATen/Functions.h>

#include <set>
#include <sstream>
#include <vector>

#include "lockstep/comm/texts.h"

namespace lockstep {

void MetricSums::Add(const std::string& name, const at::Tensor& sum) {
  const at::Tensor value = sum.detach().to(at::kDouble);
  auto [found, is_new] = sums_.emplace(name, value);
  if (!is_new) found->second = found->second + value;
}

MetricSums::Result MetricSums::Reduce(const ProcessGroupPtr& group) const {
  // A rank that saw no sample knows no names: the union of all ranks' names is the order of the sums.
  std::string mine;
  for (const auto& [name, sum] : sums_) mine += name + "\n";
  std::set<std::string> names;
  for (const auto& list : AllGatherString(mine, group)) {
    std::istringstream lines(list);
    for (std::string name; std::getline(lines, name);) names.insert(name);
  }
  std::vector<double> values = {static_cast<double>(samples_)};
  for (const auto& name : names) {
    const auto found = sums_.find(name);
    values.push_back(found == sums_.end() ? 0. : found->second.item<double>());
  }
  at::Tensor all = at::tensor(values, at::kDouble);
  AllReduce(all, group);
  const double* const sums = all.const_data_ptr<double>();
  Result result;
  result.samples = static_cast<int64_t>(sums[0]);
  size_t i = 1;
  for (const auto& name : names) {
    if (result.samples > 0) result.means[name] = sums[i] / sums[0];
    ++i;
  }
  return result;
}

}  // namespace lockstep
