#include "lockstep/optim/one_cycle.h"

#include <c10/util/Exception.h>
#include <c10/util/MathConstants.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <tuple>
#include <utility>

#include "lockstep/base/status_macros.h"

namespace lockstep {
namespace {

void Check(const OneCycleOptions& options) {
  TORCH_CHECK(options.total_steps >= 1, "total_steps must be at least 1, is ", options.total_steps);
  TORCH_CHECK(options.pct_start >= 0 && options.pct_start <= 1, "pct_start must be from 0 to 1, is ",
              options.pct_start);
  for (const double rate : options.max_lr) {
    TORCH_CHECK(std::isfinite(rate) && rate >= 0, "max_lr must be a finite number from 0 on, is ", rate);
  }
  for (const auto& [name, factor] :
       {std::pair("div_factor", options.div_factor), std::pair("final_div_factor", options.final_div_factor)}) {
    TORCH_CHECK(std::isfinite(factor) && factor > 0, name, " must be a finite number above 0, is ", factor);
  }
  for (const auto& [name, momentum] :
       {std::pair("base_momentum", options.base_momentum), std::pair("max_momentum", options.max_momentum)}) {
    TORCH_CHECK(momentum >= 0 && momentum < 1, name, " must be from 0 to below 1, is ", momentum);
  }
}

double Between(OneCycleOptions::Anneal anneal, double start, double end, double part) {
  if (anneal == OneCycleOptions::Anneal::kLinear) return (end - start) * part + start;
  return end + (start - end) / 2 * (std::cos(c10::pi<double> * part) + 1);
}

/// What goes from `first` to `top` in the first phase, and from there to `last`; in three phases by way of `first`.
double At(const OneCycleOptions& options, int64_t step, double first, double top, double last) {
  TORCH_CHECK(step <= options.total_steps, "OneCycle has total_steps = ", options.total_steps, ", but step ", step,
              " was asked for");
  const double total = static_cast<double>(options.total_steps), rise = options.pct_start * total;
  struct Phase {
    double end, to;
  };
  std::vector<Phase> phases = {{rise - 1, top}};
  if (options.three_phase) phases.push_back({2 * options.pct_start * total - 2, first});
  phases.push_back({total - 1, last});
  size_t i = 0;
  double start = 0, from = first;
  for (; i + 1 < phases.size() && static_cast<double>(step) > phases[i].end; ++i) {
    start = phases[i].end;
    from = phases[i].to;
  }
  const Phase& now = phases[i];
  // A phase without a step is over when it begins; Python divides by zero there.
  const double part = now.end == start ? 1 : (static_cast<double>(step) - start) / (now.end - start);
  return Between(options.anneal, from, now.to, part);
}

template <typename Options>
bool SetBeta1(torch::optim::OptimizerOptions& options, double beta1) {
  auto* const own = dynamic_cast<Options*>(&options);
  if (own != nullptr) own->betas({beta1, std::get<1>(own->betas())});
  return own != nullptr;
}

template <typename Options>
bool SetMomentumOf(torch::optim::OptimizerOptions& options, double momentum) {
  auto* const own = dynamic_cast<Options*>(&options);
  if (own != nullptr) own->momentum(momentum);
  return own != nullptr;
}

void SetMomentum(torch::optim::Optimizer& optimizer, const OneCycleOptions& options, int64_t step) {
  if (!options.cycle_momentum) return;
  // In three phases it is at the top again when the second one ends, and stays there.
  const double top = options.max_momentum;
  const double momentum = At(options, step, top, options.base_momentum, top);
  for (auto& group : optimizer.param_groups()) {
    auto& own = group.options();
    const bool has = SetMomentumOf<torch::optim::SGDOptions>(own, momentum) ||
                     SetMomentumOf<torch::optim::RMSpropOptions>(own, momentum) ||
                     SetBeta1<torch::optim::AdamOptions>(own, momentum) ||
                     SetBeta1<torch::optim::AdamWOptions>(own, momentum);
    TORCH_CHECK(has, "cycle_momentum needs an optimizer with momentum or beta1: SGD, RMSprop, Adam or AdamW");
  }
}

/// Sets the first momentum; gives the highest rate of each group.
std::vector<double> Start(torch::optim::Optimizer& optimizer, const OneCycleOptions& options) {
  Check(options);
  const size_t groups = optimizer.param_groups().size();
  std::vector<double> rates = options.max_lr;
  if (rates.size() == 1) rates.resize(groups, rates[0]);
  TORCH_CHECK(rates.empty() || rates.size() == groups, "max_lr has ", rates.size(), " numbers, the optimizer has ",
              groups, " parameter groups");
  SetMomentum(optimizer, options, 0);
  return rates;
}

RateFunction CycleOf(const OneCycleOptions& options) {
  return [options](int64_t step, double max_rate) {
    const double first = max_rate / options.div_factor;
    return At(options, step, first, max_rate, first / options.final_div_factor);
  };
}

}  // namespace

OneCycle::OneCycle(torch::optim::Optimizer& optimizer, OneCycleOptions options)
    : LambdaSchedule(optimizer, CycleOf(options), Start(optimizer, options)), options_(std::move(options)) {}

std::vector<double> OneCycle::get_lrs() {
  std::vector<double> rates = LambdaSchedule::get_lrs();
  SetMomentum(optimizer(), options_, int64_t{step_count_} + 1);
  return rates;
}

absl::Status OneCycle::LoadState(const Value& state) {
  LOCKSTEP_RETURN_IF_ERROR(LambdaSchedule::LoadState(state));
  SetMomentum(optimizer(), options_, int64_t{step_count_});
  return absl::OkStatus();
}

}  // namespace lockstep
