#include "lockstep/data/collate.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

using Samples = std::vector<torch::data::Example<>>;

std::vector<at::Tensor> Parts(const Samples& samples, at::Tensor torch::data::Example<>::*part) {
  std::vector<at::Tensor> parts;
  for (const auto& sample : samples) parts.push_back(sample.*part);
  return parts;
}

at::Tensor Stack(const std::vector<at::Tensor>& parts, const char* what) {
  TORCH_CHECK(!parts.empty(), "collate: no samples");
  for (const auto& part : parts) {
    TORCH_CHECK(part.sizes() == parts[0].sizes(), "collate: ", what, "s of shapes ", parts[0].sizes(), " and ",
                part.sizes(), " in one batch; bring them to one shape, or pad them (PadSamples)");
  }
  return at::stack(parts);
}

at::Tensor Pad(const std::vector<at::Tensor>& parts, const char* what, double padding) {
  const bool vary =
      std::any_of(parts.begin(), parts.end(), [&](const at::Tensor& part) { return part.sizes() != parts[0].sizes(); });
  if (!vary) return Stack(parts, what);
  int64_t longest = 0;
  for (const auto& part : parts) {
    TORCH_CHECK(part.scalar_type() == parts[0].scalar_type(), "collate: ", what, "s of types ", parts[0].scalar_type(),
                " and ", part.scalar_type(), " in one batch");
    TORCH_CHECK(part.dim() > 0 && part.dim() == parts[0].dim() && part.sizes().slice(1) == parts[0].sizes().slice(1),
                "collate: ", what, "s of shapes ", parts[0].sizes(), " and ", part.sizes(),
                " differ in more than their first dimension");
    longest = std::max(longest, part.size(0));
  }
  auto shape = parts[0].sizes().vec();
  shape[0] = longest;
  shape.insert(shape.begin(), static_cast<int64_t>(parts.size()));
  at::Tensor padded = at::full(shape, padding, parts[0].options());
  for (size_t i = 0; i < parts.size(); ++i) {
    padded.select(0, static_cast<int64_t>(i)).narrow(0, 0, parts[i].size(0)).copy_(parts[i]);
  }
  return padded;
}

}  // namespace

TensorBatch StackSamples(Samples samples) {
  return {Stack(Parts(samples, &torch::data::Example<>::data), "sample"),
          Stack(Parts(samples, &torch::data::Example<>::target), "target")};
}

TensorBatch PadSamples(Samples samples, double padding, double target_padding) {
  return {Pad(Parts(samples, &torch::data::Example<>::data), "sample", padding),
          Pad(Parts(samples, &torch::data::Example<>::target), "target", target_padding)};
}

}  // namespace lockstep
