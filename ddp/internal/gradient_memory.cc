#include "lockstep/ddp/internal/gradient_memory.h"

#include <c10/core/CPUAllocator.h>
#include <torch/csrc/autograd/graph_task.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

namespace lockstep::internal {

struct GradientMemory::State {
  struct Place {
    void* data = nullptr;  // null: never lent
    size_t bytes = 0;
    bool wanted = false;
    c10::Storage storage;                         // that the memory is of
    std::shared_ptr<std::atomic<bool>> occupied;  // shared with the tensor there
  };
  std::mutex mutex;
  std::vector<Place> places;
  std::unordered_map<size_t, std::vector<size_t>> by_bytes;

  c10::DataPtr Lend(size_t bytes);
};

namespace {

/// What is lent, by its address, since an allocator's deleter gets no more than that.
class Loans {
 public:
  static Loans& All() {
    static auto* const loans = new Loans;  // outlives every tensor
    return *loans;
  }
  void Begin(void* data, c10::Storage storage, std::shared_ptr<std::atomic<bool>> occupied) {
    std::lock_guard<std::mutex> lock(mutex_);
    loans_[data] = {std::move(storage), std::move(occupied)};
  }
  /// Whether `data` was lent.
  bool End(void* data) {
    std::pair<c10::Storage, std::shared_ptr<std::atomic<bool>>> loan;  // let go of without the lock
    {
      std::lock_guard<std::mutex> lock(mutex_);
      const auto found = loans_.find(data);
      if (found == loans_.end()) return false;
      loan = std::move(found->second);
      loans_.erase(found);
    }
    loan.second->store(false, std::memory_order_release);
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, std::pair<c10::Storage, std::shared_ptr<std::atomic<bool>>>> loans_;
};

c10::DeleterFnPtr base_deleter = nullptr;

void Delete(void* data) {
  if (!Loans::All().End(data)) base_deleter(data);
}

}  // namespace

c10::DataPtr GradientMemory::State::Lend(size_t bytes) {
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = by_bytes.find(bytes);
  if (found == by_bytes.end()) return {};
  for (size_t index : found->second) {
    Place& place = places[index];
    if (!place.wanted || place.occupied->exchange(true, std::memory_order_acq_rel)) continue;
    Loans::All().Begin(place.data, place.storage, place.occupied);
    return {place.data, place.data, &Delete, c10::Device(c10::kCPU)};
  }
  return {};
}

namespace {

template <typename State>
std::shared_ptr<State>& OpenOnThisThread() {
  thread_local std::shared_ptr<State> state;
  return state;
}

/// The allocator that was there before, but for what an open GradientMemory lends.
template <typename State>
class LendingAllocator : public c10::Allocator {
 public:
  explicit LendingAllocator(c10::Allocator* base) : base_(base) { base_deleter = base->raw_deleter(); }
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes >= GradientMemory::kLeastBytes && base_deleter != nullptr) {
      State* const state = OpenOnThisThread<State>().get();
      // A backward that threw, or gave no gradients, has left it open.
      if (state != nullptr && torch::autograd::get_current_graph_task_id() >= 0) {
        if (c10::DataPtr lent = state->Lend(bytes)) return lent;
      }
    }
    return base_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return base_deleter == nullptr ? nullptr : &Delete; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  c10::Allocator* const base_;
};

}  // namespace

GradientMemory::GradientMemory() : state_(std::make_shared<State>()) {
  // Once, and for the rest of the process: memory that it gave may outlive every reducer.
  static const bool installed = [] {
    c10::SetCPUAllocator(new LendingAllocator<State>(c10::GetCPUAllocator()), /*priority=*/1);
    return true;
  }();
  (void)installed;
}

GradientMemory::~GradientMemory() {
  Clear();  // also where another thread has it open
  Close();
}

void GradientMemory::SetPlace(size_t index, const at::Tensor& alias) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  if (index >= state_->places.size()) state_->places.resize(index + 1);
  State::Place& place = state_->places[index];
  place = {};
  place.occupied = std::make_shared<std::atomic<bool>>(false);
  if (!alias.is_cpu() || alias.nbytes() < kLeastBytes) return;
  if (reinterpret_cast<uintptr_t>(alias.data_ptr()) % kAlignment != 0) return;
  place.data = alias.data_ptr();
  place.bytes = alias.nbytes();
  place.storage = alias.storage();
  auto& same_size = state_->by_bytes[place.bytes];
  for (size_t known : same_size) {
    if (known == index) return;
  }
  same_size.push_back(index);
}

void GradientMemory::Clear() {
  std::lock_guard<std::mutex> lock(state_->mutex);
  state_->places.clear();
  state_->by_bytes.clear();
}

void GradientMemory::Want(size_t index, bool wanted) {
  std::lock_guard<std::mutex> lock(state_->mutex);
  State::Place& place = state_->places[index];
  place.wanted = wanted && place.data != nullptr;
}

bool GradientMemory::IsOccupied(size_t index) const {
  std::lock_guard<std::mutex> lock(state_->mutex);
  return state_->places[index].occupied->load(std::memory_order_acquire);
}

void GradientMemory::Open() { OpenOnThisThread<State>() = state_; }

void GradientMemory::Close() {
  if (OpenOnThisThread<State>() == state_) OpenOnThisThread<State>().reset();
}

}  // namespace lockstep::internal
