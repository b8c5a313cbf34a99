#pragma once

#include <c10/util/Exception.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/data/batch_keys.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/samplers/epoch_part.h"
#include "lockstep/samplers/epoch_sampler.h"

namespace lockstep {

struct LoaderOptions {
  size_t batch_size = 1;
  /// Leave out a last batch that is shorter.
  bool drop_last = false;
  /// Batches made ahead by each worker; 0: made when they are asked for, in the caller's thread.
  size_t prefetch = 2;
  /// Samples in a pass, for num_batches(); 0: what the sampler says, if it does.
  size_t samples = 0;
  /// Threads that make batches; 0: the caller's. The order of the batches is the same for any number.
  size_t num_workers = 1;
  /// For BatchKeys, of transforms that draw random numbers; the same on all ranks.
  uint64_t seed = 0;
};

/// Batches of the samples that a sampler names, made ahead by worker threads. The order is the sampler's, whatever the
/// number of workers and how long each batch takes. An exception in the making of a batch is thrown by Next() where
/// that batch would have come, and ends the pass. For one thread at a time.
template <typename Batch>
class BatchLoader : public BatchSource<Batch> {
 public:
  /// Makes the batch of some samples; called by several workers at once.
  using Make = std::function<Batch(const BatchKeys&)>;

  BatchLoader(EpochSampler sampler, const LoaderOptions& options, Make make)
      : sampler_(std::move(sampler)), options_(options), make_(std::move(make)) {
    TORCH_CHECK(options_.batch_size > 0, "loader: batch_size must be at least 1");
  }
  ~BatchLoader() override { Stop(); }

  void StartEpoch(size_t epoch) override {
    Stop();
    sampler_.StartEpoch(epoch);
    rest_.reset();
    Start(epoch);
  }

  bool StartRest(size_t epoch, const std::vector<EpochPart>& done) override {
    Stop();
    if (!sampler_.StartRest(epoch, done)) return false;
    rest_ = sampler_.size().value_or(0);
    Start(epoch);
    return true;
  }

  std::optional<Batch> Next() override {
    TORCH_CHECK(started_, "loader: Next before the first StartEpoch");
    if (ahead() == 0) {
      try {
        auto keys = NextKeys();
        if (!keys) return std::nullopt;
        return make_(*keys);
      } catch (...) {
        ended_ = true;
        throw;
      }
    }
    while (workers_.size() < options_.num_workers) workers_.emplace_back([this] { Work(); });
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return slots_.empty() ? ended_ : slots_.front().done; });
    if (slots_.empty()) return std::nullopt;
    Slot slot = std::move(slots_.front());
    slots_.pop_front();
    if (slot.error) ended_ = true;
    lock.unlock();
    changed_.notify_all();
    if (slot.error) {
      Stop();
      slots_.clear();
      std::rethrow_exception(slot.error);
    }
    return std::move(slot.batch);
  }

  size_t num_batches() const override {
    if (sampler_.decides_batches()) return 0;
    const size_t samples = rest_ ? *rest_ : options_.samples > 0 ? options_.samples : sampler_.size().value_or(0);
    return samples / options_.batch_size + (options_.drop_last || samples % options_.batch_size == 0 ? 0 : 1);
  }

  bool Skip(size_t batches) override {
    if (!workers_.empty()) return BatchSource<Batch>::Skip(batches);
    while (batches > 0 && NextKeys()) --batches;
    return batches == 0;
  }

  std::optional<size_t> SamplesIn(size_t batches) const override {
    if (sampler_.decides_batches()) return std::nullopt;
    return batches > SIZE_MAX / options_.batch_size ? SIZE_MAX : batches * options_.batch_size;
  }

 private:
  /// A batch that is being made, or waits to be taken; slots are in the batches' order.
  struct Slot {
    std::optional<Batch> batch;
    std::exception_ptr error;
    bool done = false;
  };

  size_t ahead() const { return options_.num_workers * options_.prefetch; }

  void Start(size_t epoch) {
    epoch_ = epoch;
    started_ = true;
    slots_.clear();
    ended_ = stop_ = false;
  }

  std::optional<BatchKeys> NextKeys() {
    if (ended_) return std::nullopt;
    auto samples = sampler_.Next(options_.batch_size);
    if (!samples || samples->empty() || (options_.drop_last && samples->size() < options_.batch_size)) {
      ended_ = true;
      return std::nullopt;
    }
    return BatchKeys{options_.seed, epoch_, *std::move(samples)};
  }

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || ended_ || slots_.size() < ahead(); });
      if (stop_ || ended_) return;
      slots_.emplace_back();
      Slot& slot = slots_.back();  // stays where it is while others come and go at the ends
      try {
        const auto keys = NextKeys();
        if (!keys) {
          slots_.pop_back();
          break;
        }
        lock.unlock();
        slot.batch.emplace(make_(*keys));
        lock.lock();
      } catch (...) {
        if (!lock.owns_lock()) lock.lock();
        slot.error = std::current_exception();
        ended_ = true;
      }
      slot.done = true;
      changed_.notify_all();
    }
    changed_.notify_all();
  }

  void Stop() {
    if (workers_.empty()) return;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
  }

  EpochSampler sampler_;
  const LoaderOptions options_;
  const Make make_;
  std::optional<size_t> rest_;  // samples of a pass over the rest of an epoch
  size_t epoch_ = 0;
  bool started_ = false;

  std::vector<std::thread> workers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Slot> slots_;
  bool ended_ = true;  // no batch is begun any more
  bool stop_ = false;
};

}  // namespace lockstep
