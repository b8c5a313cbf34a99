#include "lockstep/ddp/internal/buckets.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace lockstep::internal {

std::vector<std::vector<size_t>> AssignBuckets(const std::vector<at::Tensor>& parameters,
                                               const std::vector<size_t>& order, size_t first_cap_bytes,
                                               size_t cap_bytes) {
  // Looked up by what a parameter is, kept in the order of appearance, which is the same on all ranks; device numbers
  // may not be.
  struct Kind {
    at::ScalarType dtype;
    at::Device device;
    size_t cap, bytes = 0;
    std::vector<size_t> open{};
  };
  std::vector<Kind> kinds;
  std::vector<std::vector<size_t>> buckets;
  for (size_t i : order) {
    const at::Tensor& parameter = parameters[i];
    auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Kind& k) {
      return k.dtype == parameter.scalar_type() && k.device == parameter.device();
    });
    if (kind == kinds.end()) {
      kinds.push_back({parameter.scalar_type(), parameter.device(), first_cap_bytes});
      kind = kinds.end() - 1;
    }
    kind->open.push_back(i);
    kind->bytes += parameter.nbytes();
    if (kind->bytes < kind->cap) continue;
    buckets.push_back(std::move(kind->open));
    *kind = {kind->dtype, kind->device, cap_bytes};
  }
  for (auto& kind : kinds) {
    if (!kind.open.empty()) buckets.push_back(std::move(kind.open));
  }
  return buckets;
}

at::Tensor NewFlat(int64_t elements, at::TensorOptions options, const ProcessGroupPtr& group) {
  options = options.requires_grad(false).memory_format(std::nullopt);
  const auto backend = group->getBackend(options.device().type());
  const auto index = options.device().has_index() ? options.device().index() : c10::DeviceIndex(0);
  if (!backend->supportsTensorAlloc(index)) return at::zeros({elements}, options);
  return backend->allocateTensor(elements, options).zero_();
}

at::Tensor Alias(const at::Tensor& flat, int64_t offset, const at::Tensor& like) {
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> strides = like.is_non_overlapping_and_dense()
                                           ? like.strides().vec()
                                           : at::empty_like(like, at::MemoryFormat::Contiguous).strides().vec();
  return at::empty({0}, flat.options()).set_(flat.storage(), flat.storage_offset() + offset, like.sizes(), strides);
}

at::Tensor AsReal(const at::Tensor& tensor) { return tensor.is_complex() ? at::view_as_real(tensor) : tensor; }

}  // namespace lockstep::internal
