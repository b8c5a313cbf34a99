#include "lockstep/ddp/parameter_sync.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <sstream>

#include "lockstep/comm/texts.h"

namespace lockstep {

void CheckParametersAgree(const std::vector<NamedParameter>& parameters, const ProcessGroupPtr& group) {
  if (!group) return;
  std::ostringstream mine;
  for (const auto& [name, parameter] : parameters) {
    mine << name << " " << c10::toString(parameter.scalar_type()) << parameter.sizes() << " strides "
         << parameter.strides() << (parameter.requires_grad() ? "" : " frozen") << "\n";
  }
  const std::vector<std::string> all = AllGatherString(mine.str(), group);
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    std::istringstream first(all[0]), other(all[rank]);
    std::string a, b;
    do {
      if (!std::getline(first, a)) a = "nothing more";
      if (!std::getline(other, b)) b = "nothing more";
    } while (a == b);
    TORCH_CHECK(false, "DistributedDataParallel: the model differs between ranks: rank 0 has ", a, ", rank ", rank,
                " has ", b);
  }
}

void BroadcastTensors(const std::vector<at::Tensor>& tensors, const ProcessGroupPtr& group, int root) {
  if (!group) return;
  const at::NoGradGuard no_grad;
  // In chunks of neighbours of one kind, in the order of the list, which is the same on all ranks.
  constexpr size_t kChunkBytes = 250 << 20;
  std::vector<std::vector<at::Tensor>> chunks;
  size_t bytes = 0;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    auto chunk = std::find_if(chunks.begin(), chunks.end(), [&](const std::vector<at::Tensor>& c) {
      return c.front().scalar_type() == tensor.scalar_type() && c.front().device() == tensor.device();
    });
    if (chunk == chunks.end() || bytes > kChunkBytes) {
      chunks.insert(chunks.begin(), {tensor});  // found first from now on
      bytes = tensor.nbytes();
    } else {
      chunk->push_back(tensor);
      bytes += tensor.nbytes();
    }
  }
  for (auto& members : chunks) {
    std::vector<at::Tensor> flat;
    for (const auto& tensor : members) flat.push_back(tensor.detach().reshape({-1}));
    at::Tensor all = at::cat(flat);
    Broadcast(all, group, root);
    if (GetRank(group) == root) continue;
    int64_t offset = 0;
    for (auto& tensor : members) {
      tensor.detach().copy_(all.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  }
}

}  // namespace lockstep
