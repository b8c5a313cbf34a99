#include "lockstep/metrics/metric_sums.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>

#include <cmath>
#include <set>
#include <sstream>
#include <vector>

#include "lockstep/comm/agree.h"
#include "lockstep/comm/texts.h"

namespace lockstep {

void MetricSums::Add(const std::string& name, const at::Tensor& sum) {
  const at::Tensor value = sum.detach().to(at::kDouble);
  auto [found, is_new] = sums_.emplace(name, value);
  if (!is_new) found->second = found->second + value;
}

void MetricSums::Add(const MetricSums& other) {
  for (const auto& [name, sum] : other.sums_) Add(name, sum);
  samples_ += other.samples_;
}

std::map<std::string, double> MetricSums::sums() const {
  std::map<std::string, double> numbers;
  for (const auto& [name, sum] : sums_) numbers[name] = sum.item<double>();
  return numbers;
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

absl::StatusOr<std::map<std::string, double>> MetricSums::FiniteMeans(const std::string& prefix,
                                                                      const ProcessGroupPtr& group,
                                                                      bool may_be_empty) const {
  const Result result = Reduce(group);
  // The same on all ranks, so that an error is too.
  if (result.samples == 0 && !may_be_empty) {
    return AgreeOnStatus(absl::InternalError(absl::StrCat(prefix, "metrics: there was no sample")), group);
  }
  std::map<std::string, double> means = {{prefix + "samples", static_cast<double>(result.samples)}};
  for (const auto& [name, mean] : result.means) {
    if (!std::isfinite(mean)) {
      return AgreeOnStatus(
          absl::InternalError(absl::StrCat("metric ", prefix, name, " is ", mean, ", not a finite number")), group);
    }
    means[prefix + name] = mean;
  }
  return means;
}

}  // namespace lockstep
