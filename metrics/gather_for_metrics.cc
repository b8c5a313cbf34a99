#include "lockstep/metrics/gather_for_metrics.h"

#include <ATen/Functions.h>
#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/agree.h"
#include "lockstep/comm/texts.h"

namespace lockstep {
namespace {

bool IsEmpty(const at::Tensor& outputs) { return !outputs.defined() || (outputs.dim() > 0 && outputs.size(0) == 0); }

absl::Status Check(const at::Tensor& outputs, const at::Tensor& indices) {
  const int64_t count = indices.defined() ? indices.numel() : 0;
  if (indices.defined() && (indices.dim() != 1 || indices.scalar_type() != at::kLong)) {
    return absl::InvalidArgumentError("GatherForMetrics: indices must be an int64 tensor of one dimension");
  }
  if (outputs.defined() && (outputs.dim() == 0 || outputs.layout() != at::kStrided)) {
    return absl::InvalidArgumentError(
        "GatherForMetrics: outputs must be a dense tensor with the samples in its first dimension");
  }
  if (const int64_t rows = IsEmpty(outputs) ? 0 : outputs.size(0); rows != count) {
    return absl::InvalidArgumentError(
        absl::StrCat("GatherForMetrics: there are outputs of ", rows, " samples, but ", count, " indices"));
  }
  if (count > 0 && indices.min().item<int64_t>() < 0) {
    return absl::InvalidArgumentError("GatherForMetrics: an index is negative");
  }
  return absl::OkStatus();
}

void ThrowUnlessOk(const absl::Status& status) { TORCH_CHECK(status.ok(), std::string(status.message())); }

/// What a rank tells the others: its samples, and what their outputs are.
struct Share {
  std::vector<int64_t> indices;
  std::vector<int64_t> row;  // dtype, then shape
};

std::string ToText(const at::Tensor& outputs, const at::Tensor& indices) {
  std::vector<int64_t> numbers = {indices.defined() ? indices.numel() : 0};
  if (numbers[0] > 0) {
    const at::Tensor here = indices.to(at::kCPU).contiguous();
    const auto* const values = here.const_data_ptr<int64_t>();
    numbers.insert(numbers.end(), values, values + here.numel());
    numbers.push_back(static_cast<int64_t>(outputs.scalar_type()));
    numbers.insert(numbers.end(), outputs.sizes().begin() + 1, outputs.sizes().end());
  }
  return std::string(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(int64_t));
}

Share FromText(const std::string& text) {
  std::vector<int64_t> numbers(text.size() / sizeof(int64_t));
  std::memcpy(numbers.data(), text.data(), numbers.size() * sizeof(int64_t));
  const auto row = numbers.begin() + 1 + numbers.at(0);
  return {{numbers.begin() + 1, row}, {row, numbers.end()}};
}

std::string Describe(const Share& share) {
  return absl::StrCat(c10::toString(static_cast<at::ScalarType>(share.row[0])), " rows of shape ",
                      c10::str(at::IntArrayRef(share.row).slice(1)));
}

}  // namespace

GatheredOutputs GatherForMetrics(const at::Tensor& outputs, const at::Tensor& indices, const ProcessGroupPtr& group) {
  ThrowUnlessOk(AgreeOnStatus(Check(outputs, indices), group));
  std::vector<Share> shares;
  for (const std::string& text : AllGatherString(ToText(outputs, indices), group)) shares.push_back(FromText(text));

  const auto by_size = [](const Share& a, const Share& b) { return a.indices.size() < b.indices.size(); };
  const Share& largest = *std::max_element(shares.begin(), shares.end(), by_size);
  const at::Device device = outputs.defined() ? outputs.device() : at::Device(at::kCPU);
  if (largest.indices.empty()) {
    return {at::empty({0}, at::kLong), outputs.defined() ? outputs.detach() : at::empty({0})};
  }
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    TORCH_CHECK(shares[rank].indices.empty() || shares[rank].row == largest.row, "GatherForMetrics: rank ", rank,
                " has ", Describe(shares[rank]), ", another one ", Describe(largest));
  }

  std::vector<int64_t> shape = largest.row;
  const auto dtype = static_cast<at::ScalarType>(shape[0]);
  shape[0] = static_cast<int64_t>(largest.indices.size());
  at::Tensor padded = at::zeros(shape, at::TensorOptions().dtype(dtype).device(device));
  if (!IsEmpty(outputs)) padded.narrow(0, 0, outputs.size(0)).copy_(outputs.detach());
  std::vector<at::Tensor> gathered = AllGather(padded, group);

  // For each sample its first row in what was gathered.
  std::vector<std::pair<int64_t, int64_t>> rows;
  for (size_t rank = 0; rank < shares.size(); ++rank) {
    for (size_t i = 0; i < shares[rank].indices.size(); ++i) {
      rows.emplace_back(shares[rank].indices[i], static_cast<int64_t>(rank) * shape[0] + static_cast<int64_t>(i));
    }
  }
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first == b.first; }),
             rows.end());
  std::vector<int64_t> samples, places;
  for (const auto& [sample, place] : rows) {
    samples.push_back(sample);
    places.push_back(place);
  }
  return {at::tensor(samples, at::kLong), at::cat(gathered).index_select(0, at::tensor(places, at::kLong).to(device))};
}

}  // namespace lockstep
