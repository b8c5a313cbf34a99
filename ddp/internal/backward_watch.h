#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/ddp/reducer.h"

namespace torch::autograd {
struct Node;
}

namespace lockstep::internal {

/// Tells a reducer what happens in backwards: when each parameter's gradient has been accumulated, and when the
/// outermost backward is over. Knows which backwards are to be averaged, by hooks on the outputs of the forwards.
///
/// Refuses what no reducer can serve: a parameter that another one watches, a backward that nobody announced, gradients
/// that are themselves to be differentiated.
class BackwardWatch {
 public:
  /// Called with the watch's lock held, from whatever thread runs backward.
  class Client {
   public:
    virtual ~Client() = default;
    /// A backward that is to be averaged has come to the outputs, or, where those aren't known, to the first gradient.
    virtual void OnBackwardBegin() {}
    /// In a backward that is averaged: this parameter's gradient is in grad(). `incoming` is what autograd has added.
    virtual void OnGradient(size_t parameter, const at::Tensor& incoming) = 0;
    /// The same in a backward that is not.
    virtual void OnLocalGradient(size_t parameter) {}
    /// Whether a backward that has come to the outputs and left no gradient is over nevertheless, since there can be
    /// none. Otherwise it was torch::autograd::grad's, and the backward is still to come.
    virtual bool IsEmptyBackward() { return false; }
    /// The averaged backward is over.
    virtual void OnBackwardEnd() = 0;
  };

  explicit BackwardWatch(Client& client);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  /// The parameters from now on; each needs a gradient and appears once. Without `hooks` they are only kept from
  /// others.
  void Watch(const std::vector<NamedParameter>& parameters, bool hooks = true);

  /// A forward has made `outputs`; whether its backward is averaged.
  void Announce(const std::vector<at::Tensor>& outputs, bool average);

  /// Whether a backward that is to be averaged has been announced and not come to its end.
  bool IsAwaited() const;
  /// Whether an averaged backward has begun and not come to its end: it threw.
  bool IsUnfinished() const;
  /// Forgets it.
  void Reset();

  /// Held while the client is called.
  std::recursive_mutex& mutex() const;

 private:
  struct State;
  struct Watched {
    at::Tensor parameter;
    std::shared_ptr<torch::autograd::Node> accumulator;  // where the hook is; kept alive by us
    uintptr_t hook = 0;
  };

  const std::shared_ptr<State> state_;
  std::vector<Watched> watched_;
};

}  // namespace lockstep::internal
