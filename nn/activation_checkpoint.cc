#include "lockstep/nn/activation_checkpoint.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/custom_class.h>

#include <map>
#include <mutex>
#include <string>

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// States of default generators; sets them while it lives.
class GeneratorStates {
 public:
  explicit GeneratorStates(const std::vector<at::Tensor>& inputs) {
    Take(at::kCPU);
    for (const auto& input : inputs) {
      if (input.defined()) Take(input.device());
    }
  }
  void Set() const {
    for (const auto& [device, state] : states_) {
      at::Generator generator = at::globalContext().defaultGenerator(device);
      std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
  }
  /// As they are now, on the same devices.
  GeneratorStates Now() const {
    GeneratorStates now({});
    for (const auto& [device, state] : states_) now.Take(device);
    return now;
  }

 private:
  void Take(at::Device device) {
    if (device.type() != at::kCPU && device.type() != at::kCUDA) return;
    at::Generator generator = at::globalContext().defaultGenerator(device);
    std::lock_guard<std::mutex> lock(generator.mutex());
    states_[device.str()] = generator.get_state();
  }
  std::map<std::string, at::Tensor> states_;
};

/// Autocast on the CPU and CUDA. Its cache stays off meanwhile: what is cast without gradients must not be found in it
/// by a run that needs them.
class AutocastState {
 public:
  static AutocastState Now() {
    AutocastState state;
    for (size_t i = 0; i < 2; ++i) {
      state.enabled_[i] = at::autocast::is_autocast_enabled(kDevices[i]);
      state.dtype_[i] = at::autocast::get_autocast_dtype(kDevices[i]);
    }
    state.cache_ = at::autocast::is_autocast_cache_enabled();
    return state;
  }
  void Set() const {
    for (size_t i = 0; i < 2; ++i) {
      at::autocast::set_autocast_enabled(kDevices[i], enabled_[i]);
      at::autocast::set_autocast_dtype(kDevices[i], dtype_[i]);
    }
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  AutocastState WithoutCache() const {
    AutocastState state = *this;
    state.cache_ = false;
    return state;
  }

 private:
  static constexpr at::DeviceType kDevices[] = {at::kCPU, at::kCUDA};
  bool enabled_[2];
  at::ScalarType dtype_[2];
  bool cache_;
};

/// Sets a state and puts the former one back.
template <typename State>
class Restore {
 public:
  Restore(const State& state, State before) : before_(std::move(before)) { state.Set(); }
  ~Restore() { before_.Set(); }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  const State before_;
};

/// All tensors from the defined ones.
std::vector<at::Tensor> Spread(const std::vector<at::Tensor>& tensors, const std::vector<bool>& defined) {
  std::vector<at::Tensor> all;
  size_t next = 0;
  for (const bool is_defined : defined) all.push_back(is_defined ? tensors[next++] : at::Tensor());
  return all;
}

struct Run : torch::CustomClassHolder {
  Run(TensorsFunction fn, std::vector<bool> defined, const std::vector<at::Tensor>& inputs)
      : fn(std::move(fn)), defined(std::move(defined)), generators(inputs), autocast(AutocastState::Now()) {}

  std::vector<at::Tensor> Call(const std::vector<at::Tensor>& inputs) const {
    const Restore<AutocastState> cast(autocast.WithoutCache(), AutocastState::Now());
    return fn(Spread(inputs, defined));
  }

  const TensorsFunction fn;
  const std::vector<bool> defined;  // of the inputs
  std::vector<bool> outputs{};      // which of them are defined
  const GeneratorStates generators;
  const AutocastState autocast;
};

struct ActivationCheckpointFunction : torch::autograd::Function<ActivationCheckpointFunction> {
  // The anchor needs a gradient, so that backward comes here also when no input does.
  static variable_list forward(AutogradContext* ctx, const at::Tensor& anchor, at::TensorList inputs,
                               const c10::intrusive_ptr<Run>& run) {
    ctx->save_for_backward(inputs.vec());
    ctx->saved_data["run"] = c10::IValue::make_capsule(run);
    variable_list outputs, fixed;
    run->outputs.clear();
    for (const auto& output : run->Call(inputs.vec())) {
      run->outputs.push_back(output.defined());
      if (!output.defined()) continue;
      outputs.push_back(output);
      if (!torch::autograd::isDifferentiableType(output.scalar_type())) fixed.push_back(output);
    }
    ctx->mark_non_differentiable(fixed);
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    TORCH_CHECK(
        torch::autograd::Engine::get_default_engine().is_checkpoint_valid(),
        "ActivationCheckpoint: torch::autograd::grad and backward with inputs can't go through a checkpoint; call "
        "backward and read grad()");
    TORCH_CHECK(!c10::GradMode::is_enabled(), "ActivationCheckpoint: double backward (create_graph) is not supported");
    const auto run = c10::static_intrusive_pointer_cast<Run>(ctx->saved_data["run"].toCapsule());
    variable_list inputs;
    for (const auto& saved : ctx->get_saved_variables()) {
      inputs.push_back(saved.detach().requires_grad_(saved.requires_grad()));
    }
    variable_list outputs;
    {
      const at::AutoGradMode grad_mode(true);
      const Restore<GeneratorStates> generators(run->generators, run->generators.Now());
      outputs = run->Call(inputs);
    }
    variable_list roots, root_grads;
    size_t next = 0;
    for (const auto& output : outputs) {
      if (!output.defined()) continue;
      TORCH_CHECK(next < grad_outputs.size(), "ActivationCheckpoint: the function gave other outputs the second time");
      const at::Tensor& grad = grad_outputs[next++];
      if (!grad.defined() || !output.requires_grad()) continue;
      roots.push_back(output);
      root_grads.push_back(grad);
    }
    if (!roots.empty()) torch::autograd::backward(roots, root_grads);
    variable_list grads = {at::Tensor()};
    for (const auto& input : inputs) grads.push_back(input.grad());
    grads.emplace_back();  // of the run
    return grads;
  }
};

}  // namespace

std::vector<at::Tensor> ActivationCheckpoint(const TensorsFunction& fn, const std::vector<at::Tensor>& inputs) {
  if (!c10::GradMode::is_enabled()) return fn(inputs);
  std::vector<bool> defined;
  variable_list given;
  for (const auto& input : inputs) {
    defined.push_back(input.defined());
    if (input.defined()) given.push_back(input);
  }
  const at::Tensor anchor = at::empty({0}).requires_grad_();
  const auto run = c10::make_intrusive<Run>(fn, std::move(defined), given);
  const variable_list outputs = ActivationCheckpointFunction::apply(anchor, at::TensorList(given), run);
  return Spread(outputs, run->outputs);
}

}  // namespace lockstep::nn
