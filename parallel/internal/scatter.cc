#include "lockstep/parallel/internal/scatter.h"

#include <ATen/Functions.h>
#include <c10/core/WrapDimMinimal.h>
#include <c10/util/Exception.h>

namespace lockstep::internal {
namespace {

bool IsCut(const at::Tensor& tensor) { return tensor.defined() && tensor.dim() > 0; }

at::Tensor OnDevice(const at::Tensor& tensor, at::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  return tensor.to(tensor.options().device(device).requires_grad(false));
}

}  // namespace

std::vector<std::vector<at::Tensor>> ScatterTensors(const std::vector<at::Tensor>& tensors,
                                                    const std::vector<at::Device>& devices, int64_t dim,
                                                    PieceVersions& versions) {
  std::vector<std::vector<at::Tensor>> cut;  // by tensor
  std::optional<int64_t> size;
  size_t replicas = devices.size();
  for (const auto& tensor : tensors) {
    cut.emplace_back();
    if (!IsCut(tensor) || devices.size() == 1) continue;
    const int64_t own = tensor.size(dim);
    TORCH_CHECK(size.value_or(own) == own, "DataParallel: the tensors given to forward have ", *size, " and ", own,
                " samples along dimension ", dim, "; cut them to the same number");
    size = own;
    cut.back() = tensor.chunk(static_cast<int64_t>(devices.size()), dim);
    for (auto& piece : cut.back()) {
      if (!piece.requires_grad()) piece = versions.Separate(tensor, piece);
    }
    replicas = cut.back().size();
  }
  std::vector<std::vector<at::Tensor>> pieces(replicas);
  for (size_t i = 0; i < replicas; ++i) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      pieces[i].push_back(OnDevice(cut[t].empty() ? tensors[t] : cut[t][i], devices[i]));
    }
  }
  return pieces;
}

std::vector<at::Tensor> GatherTensors(const std::vector<std::vector<at::Tensor>>& pieces, at::Device device,
                                      int64_t dim) {
  for (size_t i = 1; i < pieces.size(); ++i) {
    TORCH_CHECK(pieces[i].size() == pieces[0].size(), "DataParallel: replica 0 returned ", pieces[0].size(),
                " tensors and replica ", i, " ", pieces[i].size(), ", so that they can't be put together");
  }
  std::vector<at::Tensor> whole;
  for (size_t t = 0; t < pieces[0].size(); ++t) {
    std::vector<at::Tensor> parts;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const at::Tensor& part = pieces[i][t];
      TORCH_CHECK(part.defined() == pieces[0][t].defined(), "DataParallel: output ", t, " is defined in ",
                  part.defined() ? "replica " + std::to_string(i) + " and not in replica 0"
                                 : "replica 0 and not in replica " + std::to_string(i));
      if (!part.defined()) continue;
      const at::Tensor here = OnDevice(part, device);
      parts.push_back(here.dim() == 0 ? here.unsqueeze(0) : here);
    }
    if (parts.empty()) {
      whole.emplace_back();
    } else {
      whole.push_back(at::cat(parts, pieces[0][t].dim() == 0 ? 0 : dim));
    }
  }
  return whole;
}

}  // namespace lockstep::internal
