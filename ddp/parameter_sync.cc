#include "lockstep/ddp/parameter_sync.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include <map>
#include <sstream>

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
  std::map<std::pair<at::ScalarType, std::string>, std::vector<at::Tensor>> alike;
  for (const auto& tensor : tensors) {
    if (tensor.defined() && tensor.numel() > 0) alike[{tensor.scalar_type(), tensor.device().str()}].push_back(tensor);
  }
  for (auto& [key, members] : alike) {
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
