#include "lockstep/parallel/internal/piece_versions.h"

namespace lockstep::internal {

at::Tensor WithOwnVersion(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(/*version=*/0),
                                                                          /*allow_tensor_metadata_change=*/true));
}

at::Tensor PieceVersions::Separate(const at::Tensor& whole, const at::Tensor& piece) {
  at::Tensor own = WithOwnVersion(piece);
  if (!whole.is_inference()) {
    versions_.emplace_back(whole.unsafeGetTensorImpl()->version_counter(),
                           own.unsafeGetTensorImpl()->version_counter());
  }
  return own;
}

void PieceVersions::Settle() {
  for (auto& [whole, piece] : versions_) {
    if (piece.current_version() > 0) whole.bump();
  }
  versions_.clear();
}

}  // namespace lockstep::internal
