#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "lockstep/parallel/internal/piece_versions.h"
#include "lockstep/parallel/internal/tensors_of.h"

namespace lockstep::internal {

/// By device, and for each as many as there are tensors: pieces of each tensor along `dim`, as at::chunk cuts them, so
/// that there may be fewer than devices. Undefined tensors and those without dimensions go to each. Throws when tensors
/// have different sizes along `dim`. Pieces that need no gradient may be changed in place.
std::vector<std::vector<at::Tensor>> ScatterTensors(const std::vector<at::Tensor>& tensors,
                                                    const std::vector<at::Device>& devices, int64_t dim,
                                                    PieceVersions& versions);

/// The inverse: `pieces` has a list for each replica; tensors without dimensions become a vector.
std::vector<at::Tensor> GatherTensors(const std::vector<std::vector<at::Tensor>>& pieces, at::Device device,
                                      int64_t dim);

/// The arguments of each replica; what is no tensor goes to each.
template <typename... Args>
std::vector<std::tuple<Args...>> ScatterArguments(std::tuple<Args...> arguments, const std::vector<at::Device>& devices,
                                                  int64_t dim, PieceVersions& versions) {
  const std::vector<at::Tensor> tensors = TensorsOf(arguments);
  if (sizeof...(Args) == 0) return {std::move(arguments)};  // one replica is enough, as in Python
  const auto pieces = ScatterTensors(tensors, devices, dim, versions);
  std::vector<std::tuple<Args...>> each(pieces.size(), arguments);
  for (size_t i = 0; i < pieces.size(); ++i) ReplaceTensors(each[i], pieces[i]);
  return each;
}

/// One result of those of the replicas; what is no tensor is the first one's.
template <typename Result>
Result GatherResults(std::vector<std::optional<Result>>& each, at::Device device, int64_t dim) {
  std::vector<std::vector<at::Tensor>> pieces;
  std::string opaque;
  for (const auto& result : each) pieces.push_back(TensorsOf(*result, &opaque));
  TORCH_CHECK(opaque.empty(), "DataParallel: forward returns a ", opaque,
              ", in which the tensors can't be found; write an overload VisitTensors(const ", opaque,
              "&, const lockstep::TensorVisitor&) in its namespace (see lockstep/ddp/tensor_visitor.h)");
  const std::vector<at::Tensor> whole = GatherTensors(pieces, device, dim);
  Result result = *std::move(each[0]);
  ReplaceTensors(result, whole);
  return result;
}

}  // namespace lockstep::internal
