#include "lockstep/parallel/internal/parameter_server_shard.h"

#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace lockstep::internal {
namespace {

std::vector<at::Tensor> WithHead(const std::vector<ServedTensor>& tensors, size_t groups) {
  std::vector<at::Tensor> all = MovedTensors(tensors);
  const auto moved = static_cast<int64_t>(all.size());
  all.insert(all.begin(), {at::empty({static_cast<int64_t>(groups)}, at::kDouble), at::empty({moved}, at::kBool)});
  return all;
}

}  // namespace

std::vector<at::Tensor> MovedTensors(const std::vector<ServedTensor>& tensors) {
  std::vector<at::Tensor> moved;
  for (const auto& served : tensors) {
    if (served.kind != ServedTensor::Kind::kFrozen) moved.push_back(served.tensor);
  }
  return moved;
}

GradientPacket::GradientPacket(const std::vector<ServedTensor>& tensors, size_t groups)
    : packed(WithHead(tensors, groups)) {}

ServerShard::ServerShard(const ParameterServerLayout& layout, int workers, std::vector<ServedTensor> tensors,
                         PartOptimizer part)
    : layout_(layout),
      tensors_(std::move(tensors)),
      moved_(MovedTensors(tensors_)),
      part_(std::move(part)),
      workers_(workers) {}

int64_t ServerShard::Step(int worker, const GradientPacket& gradient, PackedTensors* values) {
  const at::NoGradGuard no_grad;
  Lock lock(mutex_);
  ThrowIfFailed();
  const int64_t staleness = layout_.mode == ParameterServerLayout::Mode::kSynchronous
                                ? StepWithAll(worker, gradient, lock)
                                : StepAlone(worker, gradient, lock);
  if (values != nullptr) {
    values->CopyFrom(moved_);
    workers_[worker].read_at = steps_;
  }
  return staleness;
}

int64_t ServerShard::StepWithAll(int worker, const GradientPacket& gradient, Lock& lock) {
  workers_[worker].gradient = &gradient;
  const int64_t mine = ++workers_[worker].gradients;
  for (size_t w = 0; w < workers_.size(); ++w) {
    if (workers_[w].stage == Worker::Stage::kWorking) continue;
    FailLocked(absl::StrCat(Name(static_cast<int>(w)), " has finished after ", workers_[w].gradients, " steps, ",
                            Name(worker), " makes its step ", mine, ": synchronous workers all make as many"));
    ThrowIfFailed();
  }
  if (std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.gradient != nullptr; })) {
    Mean();
    ThrowIfFailed();
    Apply(*workers_[0].gradient);
    for (auto& each : workers_) {
      each.gradient = nullptr;
      staleness_.Add(0, 0);
    }
    changed_.notify_all();
  } else {
    // The packet is the caller's, who is in here until it has been used.
    changed_.wait(lock, [&] { return workers_[worker].gradient == nullptr || failure_; });
  }
  ThrowIfFailed();
  return 0;
}

int64_t ServerShard::StepAlone(int worker, const GradientPacket& gradient, Lock& lock) {
  Worker& mine = workers_[worker];
  const int64_t staleness = steps_ - mine.read_at;
  Apply(gradient);
  ++mine.gradients;
  changed_.notify_all();
  const auto lead = [&] { return mine.gradients - SlowestWorking(); };
  if (layout_.max_staleness) {
    changed_.wait(lock, [&] { return lead() <= *layout_.max_staleness || failure_; });
  }
  ThrowIfFailed();
  staleness_.Add(staleness, lead());
  return staleness;
}

/// The first worker's packet becomes the mean of all, summed in their order, so that equal runs have equal bits. Of
/// buffers it keeps its own, as DistributedDataParallel keeps rank 0's.
void ServerShard::Mean() {
  const GradientPacket& mean = *workers_[0].gradient;
  for (size_t w = 1; w < workers_.size(); ++w) {
    const GradientPacket& other = *workers_[w].gradient;
    if (!mean.rates().equal(other.rates())) {
      FailLocked(absl::StrCat(Name(0), " and ", Name(static_cast<int>(w)), " have different learning rates"));
      return;
    }
    mean.present().logical_or_(other.present());
  }
  size_t i = 0;
  for (const auto& served : tensors_) {
    if (served.kind == ServedTensor::Kind::kFrozen) continue;
    if (served.kind == ServedTensor::Kind::kTrained) {
      at::Tensor sum = mean.moved(i);
      for (size_t w = 1; w < workers_.size(); ++w) sum.add_(workers_[w].gradient->moved(i));
      sum.div_(static_cast<double>(workers_.size()));
    }
    ++i;
  }
}

void ServerShard::Apply(const GradientPacket& gradient) {
  const bool* const present = gradient.present().const_data_ptr<bool>();
  const double* const rates = gradient.rates().const_data_ptr<double>();
  size_t i = 0;
  for (const auto& served : tensors_) {
    if (served.kind == ServedTensor::Kind::kFrozen) continue;
    at::Tensor tensor = served.tensor;
    if (served.kind == ServedTensor::Kind::kBuffer) {
      tensor.copy_(gradient.moved(i));
    } else if (present[i]) {
      tensor.mutable_grad() = gradient.moved(i);
    }
    ++i;
  }
  if (part_.optimizer) {
    for (size_t g = 0; g < part_.groups.size(); ++g) {
      if (part_.groups[g] >= 0) part_.optimizer->param_groups()[g].options().set_lr(rates[part_.groups[g]]);
    }
    part_.optimizer->step();
  }
  for (const auto& served : tensors_) {
    at::Tensor tensor = served.tensor;
    tensor.mutable_grad().reset();
  }
  ++steps_;
  if (after_step_) after_step_(steps_);
}

void ServerShard::Read(int worker, PackedTensors& all) {
  const Lock lock(mutex_);
  ThrowIfFailed();
  std::vector<at::Tensor> tensors;
  for (const auto& served : tensors_) tensors.push_back(served.tensor);
  all.CopyFrom(tensors);
  workers_[worker].read_at = steps_;
}

void ServerShard::Finish(int worker) {
  const Lock lock(mutex_);
  ThrowIfFailed();
  workers_[worker].stage = Worker::Stage::kFinished;
  for (size_t w = 0; w < workers_.size(); ++w) {
    if (workers_[w].gradient == nullptr) continue;
    FailLocked(absl::StrCat(Name(worker), " has finished after ", workers_[worker].gradients, " steps, ",
                            Name(static_cast<int>(w)), " makes its step ", workers_[w].gradients,
                            ": synchronous workers all make as many"));
  }
  changed_.notify_all();
}

void ServerShard::Lose(int worker, const std::string& why) {
  const Lock lock(mutex_);
  workers_[worker].stage = Worker::Stage::kGone;
  if (layout_.mode == ParameterServerLayout::Mode::kSynchronous) FailLocked(why);
  changed_.notify_all();
}

void ServerShard::Fail(const std::string& why) {
  const Lock lock(mutex_);
  FailLocked(why);
}

void ServerShard::FailLocked(const std::string& why) {
  if (!failure_) failure_ = why;
  changed_.notify_all();
}

std::optional<std::string> ServerShard::failure() const {
  const Lock lock(mutex_);
  return failure_;
}

void ServerShard::Use(int64_t min_steps, const std::function<void()>& use) {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return steps_ >= min_steps || failure_; });
  ThrowIfFailed();
  use();
}

bool ServerShard::UseUnlessBegun(const std::function<void()>& use) {
  const Lock lock(mutex_);
  ThrowIfFailed();
  if (steps_ != first_step_) return false;
  use();
  return true;
}

int64_t ServerShard::steps() const {
  const Lock lock(mutex_);
  return steps_;
}

int ServerShard::finished() const {
  const Lock lock(mutex_);
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(),
                                        [](const Worker& w) { return w.stage == Worker::Stage::kFinished; }));
}

ParameterServerStaleness ServerShard::staleness() const {
  const Lock lock(mutex_);
  return staleness_;
}

int64_t ServerShard::SlowestWorking() const {
  int64_t slowest = std::numeric_limits<int64_t>::max();
  for (const auto& worker : workers_) {
    if (worker.stage == Worker::Stage::kWorking) slowest = std::min(slowest, worker.gradients);
  }
  return slowest;
}

void ServerShard::ThrowIfFailed() const {
  if (failure_) throw Failure{*failure_};
}

}  // namespace lockstep::internal
