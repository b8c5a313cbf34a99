#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/value.h"
#include "lockstep/parallel/internal/parameter_server_model.h"
#include "lockstep/parallel/internal/parameter_server_packets.h"
#include "lockstep/parallel/internal/parameter_server_state.h"
#include "lockstep/parallel/parameter_server_layout.h"
#include "lockstep/parallel/parameter_server_staleness.h"

namespace lockstep::internal {

/// The tensors that a step moves, in order: those that are trained, and buffers.
std::vector<at::Tensor> MovedTensors(const std::vector<ServedTensor>& tensors);

/// What a worker sends for a step: the learning rate of each group of the whole model, which of the moved tensors have
/// something (a parameter without a gradient has not), gradients and buffers.
struct GradientPacket {
  GradientPacket(const std::vector<ServedTensor>& tensors, size_t groups);
  const at::Tensor& rates() const { return packed[0]; }
  const at::Tensor& present() const { return packed[1]; }
  const at::Tensor& moved(size_t i) const { return packed[2 + i]; }
  PackedTensors packed;
};

/// A server's tensors and its optimizer, and the rules by which workers' gradients become steps. Workers are numbered;
/// each is served by a thread of its own, which waits in here where the rules say so.
class ServerShard {
 public:
  /// Thrown to the threads of all workers when nothing can go on.
  struct Failure {
    std::string why;
  };

  ServerShard(const ParameterServerLayout& layout, int workers, std::vector<ServedTensor> tensors, PartOptimizer part);

  /// Called after each step, when no other can be taken; may use State.
  void set_after_step(std::function<void(int64_t steps)> call) { after_step_ = std::move(call); }

  /// A worker's gradient becomes a step, or part of one. Returns when the worker may go on; its staleness. With
  /// `values` it gets what is moved back.
  int64_t Step(int worker, const GradientPacket& gradient, PackedTensors* values);
  /// All tensors.
  void Read(int worker, PackedTensors& all);
  /// The worker takes no further steps.
  void Finish(int worker);
  /// It is gone, or has given up.
  void Lose(int worker, const std::string& why);
  /// Nothing can go on; the first reason counts.
  void Fail(const std::string& why);
  std::optional<std::string> failure() const;

  /// What `use` does no step gets between. Waits for so many steps.
  void Use(int64_t min_steps, const std::function<void()>& use);
  /// Before the first step of this run only; returns whether it was.
  bool UseUnlessBegun(const std::function<void()>& use);

  const std::vector<ServedTensor>& tensors() const { return tensors_; }
  PartOptimizer& part() { return part_; }
  int64_t steps() const;
  /// For Use, and before any worker is served.
  Value State() const { return PartState(tensors_, part_, steps_); }
  void set_steps(int64_t steps) { steps_ = first_step_ = steps; }
  /// Of the workers, those that have finished.
  int finished() const;
  ParameterServerStaleness staleness() const;

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Worker {
    enum class Stage { kWorking, kFinished, kGone };
    Stage stage = Stage::kWorking;
    int64_t gradients = 0;                     ///< That it has sent.
    int64_t read_at = 0;                       ///< The step after which it got its parameters.
    const GradientPacket* gradient = nullptr;  ///< Waits for the others'.
  };

  int64_t StepWithAll(int worker, const GradientPacket& gradient, Lock& lock);
  int64_t StepAlone(int worker, const GradientPacket& gradient, Lock& lock);
  void Mean();
  void Apply(const GradientPacket& gradient);
  int64_t SlowestWorking() const;
  void ThrowIfFailed() const;
  void FailLocked(const std::string& why);
  std::string Name(int worker) const { return layout_.Name(layout_.servers + worker); }

  const ParameterServerLayout layout_;
  const std::vector<ServedTensor> tensors_;
  const std::vector<at::Tensor> moved_;
  PartOptimizer part_;
  std::function<void(int64_t)> after_step_;

  mutable std::mutex mutex_;  // of all that follows, and of the tensors
  std::condition_variable changed_;
  std::vector<Worker> workers_;
  int64_t steps_ = 0, first_step_ = 0;
  std::optional<std::string> failure_;
  ParameterServerStaleness staleness_;
};

}  // namespace lockstep::internal
