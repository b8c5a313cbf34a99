#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <utility>
#include <vector>

namespace lockstep::internal {

/// `tensor` without its graph and with a version of its own, in the same memory: what is done to it in place no other
/// tensor knows of.
at::Tensor WithOwnVersion(const at::Tensor& tensor);

/// What gets a piece of a tensor may change it in place, without regard to those that have the other pieces, which
/// autograd takes for one tensor's views.
class PieceVersions {
 public:
  /// `piece`, which needs no gradient, with a version of its own.
  at::Tensor Separate(const at::Tensor& whole, const at::Tensor& piece);
  /// A whole of which a piece has been changed counts as changed, once.
  void Settle();

 private:
  std::vector<std::pair<c10::VariableVersion, c10::VariableVersion>> versions_;  // a whole's, and a piece's
};

}  // namespace lockstep::internal
