#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error_text.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/data/stream.h"

namespace lockstep {

struct StreamSourceOptions {
  size_t rank = 0;
  size_t world_size = 1;
  /// Threads of this rank; worker w reads shard rank · num_workers + w of world_size · num_workers. The same on all
  /// ranks.
  size_t num_workers = 1;
  size_t batch_size = 1;
  /// Leave out a worker's last batch if it is shorter.
  bool drop_last = false;
  /// Batches that each worker makes ahead, at least 1.
  size_t prefetch = 2;
  /// Samples among which the next one is drawn, in each worker; 0: in the stream's order. They are kept in memory.
  size_t shuffle_buffer = 0;
  /// Of the draws, with epoch and shard.
  uint64_t seed = 0;
};

/// Batches from streams. Each worker makes batches of its own shard's samples, and they come by turns, worker 0 first,
/// those that have ended being left out: the order is the same whatever the threads' timing, as in Python's DataLoader
/// over an IterableDataset. (LibTorch's StreamDataset and ChunkDataset know no ranks, and their order depends on
/// timing.) Ranks may have different numbers of batches: see Join.
///
/// An exception in a worker is thrown by Next() when its turn comes, as a c10::Error with the shard and the number of
/// the sample, from 0 on; then that pass is over, and Next() throws it again. A pass that was left early, or this
/// object, ends as soon as each worker's stream has returned from its Next(). For one thread at a time.
template <typename Sample, typename Batch>
class StreamSource : public BatchSource<Batch> {
 public:
  /// `collate` makes a batch of one or more samples, in the workers' threads.
  StreamSource(StreamFactory<Sample> open, std::function<Batch(std::vector<Sample>)> collate,
               StreamSourceOptions options)
      : open_(std::move(open)), collate_(std::move(collate)), options_(options) {
    TORCH_CHECK(options_.rank < options_.world_size, "StreamSource: rank ", options_.rank, " of ", options_.world_size);
    TORCH_CHECK(options_.num_workers > 0 && options_.batch_size > 0 && options_.prefetch > 0,
                "StreamSource: num_workers, batch_size and prefetch must be at least 1");
  }
  ~StreamSource() override { Stop(); }
  StreamSource(const StreamSource&) = delete;
  StreamSource& operator=(const StreamSource&) = delete;

  void StartEpoch(size_t epoch) override {
    Stop();
    workers_ = std::vector<Worker>(options_.num_workers);
    samples_ = {0};
    turn_ = 0;
    for (size_t w = 0; w < workers_.size(); ++w) {
      workers_[w].thread =
          std::thread([this, w, epoch] { Run(workers_[w], options_.rank * options_.num_workers + w, epoch); });
    }
  }

  std::optional<Batch> Next() override {
    TORCH_CHECK(!workers_.empty(), "StreamSource: Next before the first StartEpoch");
    std::unique_lock<std::mutex> lock(mutex_);
    for (size_t ended = 0; ended < workers_.size(); ++ended) {
      Worker& worker = workers_[turn_];
      changed_.wait(lock, [&] { return !worker.ready.empty() || worker.ended; });
      if (worker.ready.empty() && worker.error) std::rethrow_exception(worker.error);
      turn_ = (turn_ + 1) % workers_.size();
      if (worker.ready.empty()) continue;
      Made made = std::move(worker.ready.front());
      worker.ready.pop_front();
      lock.unlock();
      changed_.notify_all();
      samples_.push_back(samples_.back() + made.samples);
      return std::move(made.batch);
    }
    return std::nullopt;
  }

  /// Of batches that this pass has given.
  std::optional<size_t> SamplesIn(size_t batches) const override {
    if (batches < samples_.size()) return samples_[batches];
    return std::nullopt;
  }

 private:
  struct Made {
    Batch batch;
    size_t samples;
  };
  struct Worker {
    std::thread thread;
    std::deque<Made> ready;
    std::exception_ptr error;
    bool ended = false;
  };

  /// A stream's samples, drawn from a buffer.
  class Shuffled {
   public:
    Shuffled(std::unique_ptr<Stream<Sample>> stream, size_t buffer, std::seed_seq& seed)
        : stream_(std::move(stream)), size_(buffer), generator_(seed) {
      TORCH_CHECK(stream_ != nullptr, "the factory gave no stream");
    }

    std::optional<Sample> Next() {
      if (size_ == 0) return Read();
      while (buffer_.size() < size_) {
        auto sample = Read();
        if (!sample) break;
        buffer_.push_back(std::move(*sample));
      }
      if (buffer_.empty()) return std::nullopt;
      std::swap(buffer_[generator_() % buffer_.size()], buffer_.back());
      std::optional<Sample> drawn(std::move(buffer_.back()));
      buffer_.pop_back();
      return drawn;
    }
    /// Samples that the stream has given.
    size_t read() const { return read_; }

   private:
    std::optional<Sample> Read() {
      if (ended_) return std::nullopt;
      auto sample = stream_->Next();
      if (sample) ++read_;
      ended_ = !sample;
      return sample;
    }

    const std::unique_ptr<Stream<Sample>> stream_;
    const size_t size_;
    std::mt19937_64 generator_;
    std::vector<Sample> buffer_;
    size_t read_ = 0;
    bool ended_ = false;
  };

  void Run(Worker& worker, size_t shard, size_t epoch) {
    const size_t num_shards = options_.world_size * options_.num_workers;
    std::optional<Shuffled> stream;
    std::string error;
    try {
      std::seed_seq seed{options_.seed & 0xFFFFFFFF, options_.seed >> 32, uint64_t{epoch}, uint64_t{shard}};
      stream.emplace(open_(shard, num_shards, epoch), options_.shuffle_buffer, seed);
      while (auto made = Make(*stream)) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return stop_ || worker.ready.size() < options_.prefetch; });
        if (stop_) break;
        worker.ready.push_back(std::move(*made));
        lock.unlock();
        changed_.notify_all();
      }
    } catch (const std::exception& e) {
      error = FirstLine(e.what());
    } catch (...) {
      error = "an exception";
    }
    std::lock_guard<std::mutex> lock(mutex_);
    if (!error.empty()) {
      try {
        TORCH_CHECK(false, "StreamSource: shard ", shard, " of ", num_shards, ", sample ", stream ? stream->read() : 0,
                    ": ", error);
      } catch (const c10::Error&) {
        worker.error = std::current_exception();
      }
    }
    worker.ended = true;
    changed_.notify_all();
  }

  std::optional<Made> Make(Shuffled& stream) {
    std::vector<Sample> samples;
    while (samples.size() < options_.batch_size && !stop_) {
      auto sample = stream.Next();
      if (!sample) break;
      samples.push_back(std::move(*sample));
    }
    const size_t count = samples.size();
    if (stop_ || count == 0 || (options_.drop_last && count < options_.batch_size)) return std::nullopt;
    return Made{collate_(std::move(samples)), count};
  }

  void Stop() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (Worker& worker : workers_) worker.thread.join();
    workers_.clear();
    stop_ = false;
  }

  const StreamFactory<Sample> open_;
  const std::function<Batch(std::vector<Sample>)> collate_;
  const StreamSourceOptions options_;
  std::vector<Worker> workers_;
  std::vector<size_t> samples_{0};  // in the first batches
  size_t turn_ = 0;
  std::mutex mutex_;  // of the workers' ready, error and ended
  std::condition_variable changed_;
  std::atomic<bool> stop_{false};
};

}  // namespace lockstep
