#include "lockstep/comm/sparse.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>

namespace lockstep {

at::Tensor SparseAllReduce(const at::Tensor& tensor, const ProcessGroupPtr& group) {
  TORCH_CHECK(tensor.layout() == at::kSparse, "SparseAllReduce: expected a sparse COO tensor, got ", tensor.layout());
  const at::NoGradGuard no_grad;
  const at::Tensor mine = tensor.detach().coalesce();
  if (!group) return mine;
  at::Tensor indices = mine.indices(), values = mine.values();
  std::vector<int64_t> entries;
  int64_t most = 0, dimensions = indices.size(0);
  for (const auto& layout : AllGather(at::tensor({indices.size(1), indices.size(0)}, at::kLong), group)) {
    entries.push_back(layout[0].item<int64_t>());
    most = std::max(most, entries.back());
    if (entries.back() > 0) dimensions = layout[1].item<int64_t>();
  }
  if (most == 0) return mine;
  if (indices.size(1) == 0) {  // an empty tensor is laid out like the others'
    indices = at::zeros({dimensions, 0}, indices.options());
    std::vector<int64_t> shape(tensor.sizes().begin() + dimensions, tensor.sizes().end());
    shape.insert(shape.begin(), 0);
    values = at::zeros(shape, values.options());
  }
  const int64_t own = indices.size(1);
  at::Tensor padded_indices = at::zeros({indices.size(0), most}, indices.options());
  padded_indices.narrow(1, 0, own).copy_(indices);
  std::vector<int64_t> shape = values.sizes().vec();
  shape[0] = most;
  at::Tensor padded_values = at::zeros(shape, values.options());
  padded_values.narrow(0, 0, own).copy_(values);
  std::vector<at::Tensor> all_indices = AllGather(padded_indices, group), all_values = AllGather(padded_values, group);
  for (size_t rank = 0; rank < entries.size(); ++rank) {
    all_indices[rank] = all_indices[rank].narrow(1, 0, entries[rank]);
    all_values[rank] = all_values[rank].narrow(0, 0, entries[rank]);
  }
  return at::sparse_coo_tensor(at::cat(all_indices, 1), at::cat(all_values, 0), tensor.sizes()).coalesce();
}

}  // namespace lockstep
