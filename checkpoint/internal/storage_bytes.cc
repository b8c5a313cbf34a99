#include "lockstep/checkpoint/internal/storage_bytes.h"

#include <ATen/Functions.h>

#include <utility>

namespace lockstep::internal {

at::Tensor StorageBytes(char* data, int64_t size, std::shared_ptr<void> owner, at::Device device) {
  at::Tensor bytes = at::from_blob(
      data, {size}, [owner = std::move(owner)](void*) {}, at::kByte);
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) bytes = bytes.clone();
  return bytes.to(device);
}

}  // namespace lockstep::internal
