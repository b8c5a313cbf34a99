#include "lockstep/ddp/internal/backward_watch.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>
#include <utility>

namespace lockstep::internal {
namespace {

/// The parameters that have a reducer in this process.
struct Claims {
  std::mutex mutex;
  std::unordered_set<c10::TensorImpl*> taken;
};
Claims& AllClaims() {
  static auto* const claims = new Claims;  // outlives every reducer
  return *claims;
}

void Release(const at::Tensor& parameter) {
  std::lock_guard<std::mutex> lock(AllClaims().mutex);
  AllClaims().taken.erase(parameter.unsafeGetTensorImpl());
}

}  // namespace

/// Shared with the hooks, which may outlive the watch.
struct BackwardWatch::State {
  enum class Mode { kNone, kAverage, kAccumulate };

  mutable std::recursive_mutex mutex;
  Client* client = nullptr;          // null once the watch is gone
  Mode announced = Mode::kNone;      // of the backward of a forward whose outputs nobody knows
  Mode current = Mode::kNone;        // of the backward under way
  bool in_backward = false;          // from its first hook to its end
  bool has_gradient = false;         // it has made a gradient ready that is to be averaged
  std::vector<size_t> local{};       // parameters with gradients of this backward that were not
  std::weak_ptr<char> alive{};       // held by the engine as long as this backward runs
  std::vector<std::string> names{};  // of the parameters

  bool Threw() const { return in_backward && alive.expired(); }

  /// The first hook of a backward. On an output it is called in the outermost backward, so that the end is that one's
  /// also when a checkpoint's backward runs inside.
  static void Begin(const std::shared_ptr<State>& state, Mode mode) {
    if (state->Threw()) {
      if (state->current == Mode::kAverage) return;  // OnHook refuses its gradients
      state->in_backward = false;
    }
    if (state->in_backward) {
      // One backward through several forwards is averaged when one of them is to be.
      if (mode != Mode::kAverage || state->current == mode) return;
      state->current = mode;
      state->client->OnBackwardBegin();
      for (size_t index : std::exchange(state->local, {})) state->OnAverage(index, at::Tensor());
      return;
    }
    state->in_backward = true;
    state->has_gradient = false;
    state->local.clear();
    state->current = mode;
    const auto alive = std::make_shared<char>();
    state->alive = alive;
    torch::autograd::Engine::get_default_engine().queue_callback([weak = std::weak_ptr<State>(state), alive] {
      if (const auto state = weak.lock()) state->End();
    });
    if (mode == Mode::kAverage) state->client->OnBackwardBegin();
  }

  void OnHook(const std::shared_ptr<State>& self, size_t index, const at::Tensor& incoming) {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    if (client == nullptr) return;
    TORCH_CHECK(!c10::GradMode::is_enabled(), "reducer: double backward (create_graph): the gradient of ", names[index],
                " would have to be differentiated through its reduction, which is not supported; take higher "
                "derivatives with torch::autograd::grad, which leaves grad() alone, and call backward on the result");
    TORCH_CHECK(!Threw() || current != Mode::kAverage,
                "reducer: the last averaged backward threw, so that this rank is "
                "behind the others; run forward again before another backward");
    if (!in_backward || Threw()) {
      TORCH_CHECK(announced != Mode::kNone, "reducer: backward without forward: the gradient of ", names[index],
                  " came in a backward that no forward announced, so that ranks would drift apart. Run forward through "
                  "DistributedDataParallel (or call PrepareForBackward) before each backward, or, to keep gradients on "
                  "this rank, under NoSync (or after PrepareForAccumulation)");
      Begin(self, announced);
    }
    if (current == Mode::kAverage) return OnAverage(index, incoming);
    local.push_back(index);
    client->OnLocalGradient(index);
  }

  void OnAverage(size_t index, const at::Tensor& incoming) {
    has_gradient = true;
    client->OnGradient(index, incoming);
  }

  void End() {
    std::lock_guard<std::recursive_mutex> lock(mutex);
    in_backward = false;
    if (client == nullptr || current != Mode::kAverage) return;
    // torch::autograd::grad passes the outputs and leaves no gradients: the backward is still to come.
    if (!has_gradient && !client->IsEmptyBackward()) return;
    announced = Mode::kNone;
    has_gradient = false;
    client->OnBackwardEnd();
  }
};

BackwardWatch::BackwardWatch(Client& client) : state_(std::make_shared<State>()) { state_->client = &client; }

BackwardWatch::~BackwardWatch() {
  {
    std::lock_guard<std::recursive_mutex> lock(state_->mutex);
    state_->client = nullptr;
  }
  Watch({});
}

void BackwardWatch::Watch(const std::vector<NamedParameter>& parameters, bool hooks) {
  for (auto& watched : watched_) {
    if (watched.accumulator) watched.accumulator->del_post_hook(watched.hook);
    Release(watched.parameter);
  }
  watched_.clear();
  state_->names.clear();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i].parameter;
    {
      std::lock_guard<std::mutex> lock(AllClaims().mutex);
      TORCH_CHECK(
          AllClaims().taken.insert(parameter.unsafeGetTensorImpl()).second, "reducer: parameter ", parameters[i].name,
          " has a reducer already; two would each reduce its gradient. Destroy the other one first, or leave the "
          "parameter out of one of them");
    }
    watched_.push_back({parameter, nullptr});
    state_->names.push_back(parameters[i].name);
    if (!hooks) continue;
    Watched& watched = watched_.back();
    watched.accumulator = torch::autograd::impl::grad_accumulator(parameter);
    watched.hook = watched.accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [weak = std::weak_ptr<State>(state_), i](const torch::autograd::variable_list& outputs,
                                                 const torch::autograd::variable_list& inputs) {
          if (const auto state = weak.lock()) state->OnHook(state, i, inputs[0]);
          return outputs;
        }));
  }
}

void BackwardWatch::Announce(const std::vector<at::Tensor>& outputs, bool average) {
  std::lock_guard<std::recursive_mutex> lock(state_->mutex);
  for (size_t i = 0; average && i < watched_.size(); ++i) {
    TORCH_CHECK(torch::autograd::impl::try_get_grad_accumulator(watched_[i].parameter) == watched_[i].accumulator,
                "reducer: parameter ", state_->names[i],
                " has another dtype or device than when its reducer was made; convert the module before it is wrapped");
  }
  const auto mode = average ? State::Mode::kAverage : State::Mode::kAccumulate;
  state_->announced = mode;
  if (state_->Threw()) state_->in_backward = false;
  for (const auto& output : outputs) {
    if (!output.defined() || !output.grad_fn()) continue;
    output.register_hook([weak = std::weak_ptr<State>(state_), mode](const at::Tensor&) {
      const auto state = weak.lock();
      if (!state) return;
      std::lock_guard<std::recursive_mutex> lock(state->mutex);
      if (state->client != nullptr) State::Begin(state, mode);
    });
  }
}

bool BackwardWatch::IsUnfinished() const {
  std::lock_guard<std::recursive_mutex> lock(state_->mutex);
  return state_->Threw() && state_->current == State::Mode::kAverage;
}

bool BackwardWatch::IsAwaited() const {
  std::lock_guard<std::recursive_mutex> lock(state_->mutex);
  return state_->announced == State::Mode::kAverage || IsUnfinished();
}

void BackwardWatch::Reset() {
  std::lock_guard<std::recursive_mutex> lock(state_->mutex);
  state_->in_backward = state_->has_gradient = false;
  state_->announced = State::Mode::kNone;
}

std::recursive_mutex& BackwardWatch::mutex() const { return state_->mutex; }

}  // namespace lockstep::internal
