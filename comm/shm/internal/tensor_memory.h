#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/shm/internal/layout.h"
#include "lockstep/comm/shm/internal/peers.h"
#include "lockstep/comm/shm/internal/segment.h"

namespace lockstep::shm {

/// The tensors in shared memory that a group's ranks have allocated, and where the other ranks' are mapped here.
///
/// A tensor's memory goes back to the system with the tensor, which may outlive the group. A segment is passed to the
/// other ranks when a collective first uses it.
class TensorMemory {
 public:
  explicit TensorMemory(Peers& peers);
  ~TensorMemory();

  /// Any thread. Throws c10::DistBackendError when there is not enough memory.
  at::Tensor Allocate(int64_t elements, const at::TensorOptions& options);

  // The rest: the thread that runs collectives.

  /// Says in `descriptor` where `data` is, and passes what the others don't know yet; false when it is not in memory of
  /// this group. Part of every collective.
  bool Publish(const void* data, Descriptor& descriptor);
  /// Takes what `peer` had passed when it published `descriptor`. Part of every collective.
  void Hear(int peer, const Descriptor& descriptor);
  /// Where the memory that `peer` named is here.
  char* Find(int peer, const Descriptor& descriptor);

 private:
  struct Owned;
  struct Mapped;

  void Tell(const Peers::Message& message, int fd);

  Peers& peers_;
  const std::shared_ptr<Owned> owned_;
  std::vector<Mapped> mapped_;
  uint64_t sent_ = 0;
};

}  // namespace lockstep::shm
