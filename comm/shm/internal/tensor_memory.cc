#include "lockstep/comm/shm/internal/tensor_memory.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace lockstep::shm {

constexpr int kFreedAtOnce = 32;

/// By address. Tensors may be freed in any thread, and after the group.
struct TensorMemory::Owned {
  struct Entry {
    Segment segment;
    uint64_t number = 0;
    bool passed = false;
  };
  std::atomic<bool> used{false};  ///< Something has been allocated once.
  std::mutex mutex;
  std::map<const char*, Entry> entries;
  uint64_t last_number = 0;
  std::vector<uint64_t> freed;  ///< Numbers of segments that were passed; the others don't know yet.
};

/// Another rank's segments, by number.
struct TensorMemory::Mapped {
  std::map<uint64_t, Segment> segments;
  uint64_t received = 0;
};

TensorMemory::TensorMemory(Peers& peers) : peers_(peers), owned_(std::make_shared<Owned>()), mapped_(peers.size()) {}
TensorMemory::~TensorMemory() = default;

at::Tensor TensorMemory::Allocate(int64_t elements, const at::TensorOptions& options) {
  TORCH_CHECK(options.device().is_cpu(), "backend shm: allocateTensor: memory of device ", options.device(),
              " can't be shared, only that of the CPU");
  TORCH_CHECK(elements >= 0, "backend shm: allocateTensor: ", elements, " elements");
  if (elements == 0) return at::empty({0}, options);
  const auto element = static_cast<int64_t>(options.dtype().itemsize());
  TORCH_CHECK(elements <= INT64_MAX / element, "backend shm: allocateTensor: ", elements, " elements are too many");
  Segment segment = Segment::Create(static_cast<size_t>(elements * element));
  char* data = segment.data();
  {
    const std::lock_guard<std::mutex> lock(owned_->mutex);
    owned_->used = true;
    owned_->entries[data] = {std::move(segment), ++owned_->last_number, false};
  }
  return at::from_blob(
      data, {elements},
      [owned = owned_](void* address) {
        const std::lock_guard<std::mutex> lock(owned->mutex);
        const auto entry = owned->entries.find(static_cast<const char*>(address));
        entry->second.segment.Discard();
        if (entry->second.passed) owned->freed.push_back(entry->second.number);
        owned->entries.erase(entry);
      },
      options);
}

bool TensorMemory::Publish(const void* data, Descriptor& descriptor) {
  if (!owned_->used) return false;
  const std::lock_guard<std::mutex> lock(owned_->mutex);
  const bool found = [&] {
    auto entry = owned_->entries.upper_bound(static_cast<const char*>(data));
    if (entry == owned_->entries.begin()) return false;
    --entry;
    Owned::Entry& owned = entry->second;
    const size_t offset = static_cast<const char*>(data) - entry->first;
    if (offset >= owned.segment.bytes()) return false;
    if (!owned.passed) Tell({owned.number, owned.segment.bytes()}, owned.segment.fd());
    owned.passed = true;
    descriptor.segment = owned.number;
    descriptor.offset = offset;
    return true;
  }();
  // A socket holds some hundred messages, and the others read them in each collective.
  for (int i = 0; i < kFreedAtOnce && !owned_->freed.empty(); ++i) {
    Tell({owned_->freed.back(), 0}, -1);
    owned_->freed.pop_back();
  }
  descriptor.messages = sent_;
  return found;
}

void TensorMemory::Tell(const Peers::Message& message, int fd) {
  for (int r = 0; r < peers_.size(); ++r) {
    if (r == peers_.rank() || peers_.Send(r, message, fd)) continue;
    const int error = errno;
    // A dead rank the collective itself finds out. One that lives would wait for this message for ever.
    TORCH_CHECK_WITH(DistBackendError, peers_.WhyGone(r).has_value(), "shm: a segment could not be passed to rank ",
                     peers_.name(r), ": ", std::strerror(error));
  }
  ++sent_;
}

void TensorMemory::Hear(int peer, const Descriptor& descriptor) {
  Mapped& mapped = mapped_[peer];
  for (; mapped.received < descriptor.messages; ++mapped.received) {
    int fd = -1;
    const Peers::Message message = peers_.Receive(peer, &fd);
    if (message.bytes == 0) {
      mapped.segments.erase(message.segment);
    } else {
      TORCH_CHECK_WITH(DistBackendError, fd >= 0, "shm: the descriptor of a tensor of rank ", peers_.name(peer),
                       " did not arrive; is the limit of open files (ulimit -n) reached?");
      mapped.segments[message.segment] = Segment::Map(fd, message.bytes);
    }
  }
}

char* TensorMemory::Find(int peer, const Descriptor& descriptor) {
  if (peer == peers_.rank()) {
    const std::lock_guard<std::mutex> lock(owned_->mutex);
    for (auto& [data, entry] : owned_->entries) {
      if (entry.number == descriptor.segment) return entry.segment.data() + descriptor.offset;
    }
  }
  const auto found = mapped_[peer].segments.find(descriptor.segment);
  TORCH_CHECK_WITH(DistBackendError, found != mapped_[peer].segments.end(), "shm: rank ", peers_.name(peer),
                   " uses memory that it never passed");
  return found->second.data() + descriptor.offset;
}

}  // namespace lockstep::shm
