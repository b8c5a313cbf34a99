#include "lockstep/data/tensor_loader.h"

#include <ATen/Functions.h>

#include <cstring>
#include <utility>

namespace lockstep {

TensorLoader::TensorLoader(at::Tensor data, at::Tensor target, EpochSampler sampler, TensorLoaderOptions options,
                           std::function<TensorBatch(TensorBatch)> transform)
    : data_(std::move(data)),
      target_(std::move(target)),
      sampler_(std::move(sampler)),
      options_(options),
      transform_(std::move(transform)) {
  TORCH_CHECK(data_.dim() > 0 && target_.dim() > 0 && data_.size(0) == target_.size(0),
              "TensorLoader: data and target must have the same number of samples in their first dimension");
  TORCH_CHECK(options_.batch_size > 0, "TensorLoader: batch_size must be at least 1");
}

TensorLoader::~TensorLoader() { Stop(); }

void TensorLoader::StartEpoch(size_t epoch) {
  Stop();
  sampler_.StartEpoch(epoch);
  rest_.reset();
  Start();
}

bool TensorLoader::StartRest(size_t epoch, const std::vector<EpochPart>& done) {
  Stop();
  if (!sampler_.StartRest(epoch, done)) return false;
  rest_ = sampler_.size().value_or(0);
  Start();
  return true;
}

void TensorLoader::Start() {
  started_ = true;
  ready_.clear();
  error_ = nullptr;
  ended_ = false;
  stop_ = false;
}

bool TensorLoader::Skip(size_t batches) {
  if (thread_.joinable()) return BatchSource<TensorBatch>::Skip(batches);
  while (batches > 0 && NextIndices()) --batches;
  return batches == 0;
}

std::optional<TensorBatch> TensorLoader::Next() {
  TORCH_CHECK(started_, "TensorLoader: Next before the first StartEpoch");
  if (options_.prefetch == 0) return ended_ ? std::nullopt : Make();
  if (!thread_.joinable()) thread_ = std::thread(&TensorLoader::Run, this);
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !ready_.empty() || ended_; });
  if (ready_.empty()) {
    if (error_) std::rethrow_exception(error_);
    return std::nullopt;
  }
  TensorBatch batch = std::move(ready_.front());
  ready_.pop_front();
  lock.unlock();
  changed_.notify_all();
  return batch;
}

size_t TensorLoader::num_batches() const {
  const size_t samples = rest_ ? *rest_ : options_.samples > 0 ? options_.samples : sampler_.size().value_or(0);
  return options_.drop_last ? samples / options_.batch_size : (samples + options_.batch_size - 1) / options_.batch_size;
}

std::optional<std::vector<size_t>> TensorLoader::NextIndices() {
  auto indices = sampler_.Next(options_.batch_size);
  if (!indices || indices->empty() || (options_.drop_last && indices->size() < options_.batch_size)) {
    return std::nullopt;
  }
  return indices;
}

std::optional<TensorBatch> TensorLoader::Make() {
  const auto indices = NextIndices();
  if (!indices) return std::nullopt;
  at::Tensor index = at::empty({static_cast<int64_t>(indices->size())}, at::kLong);
  std::memcpy(index.data_ptr(), indices->data(), indices->size() * sizeof(int64_t));
  TensorBatch batch{data_.index_select(0, index), target_.index_select(0, index)};
  return transform_ ? transform_(std::move(batch)) : batch;
}

void TensorLoader::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    if (ready_.size() >= options_.prefetch) {
      changed_.wait(lock);
      continue;
    }
    lock.unlock();
    std::optional<TensorBatch> batch;
    std::exception_ptr error;
    try {
      batch = Make();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (batch) {
      ready_.push_back(std::move(*batch));
    } else {
      error_ = error;
      ended_ = true;
    }
    changed_.notify_all();
    if (ended_) return;
  }
}

void TensorLoader::Stop() {
  if (!thread_.joinable()) return;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace lockstep
