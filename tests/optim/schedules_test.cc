#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/optim/adagrad.h>
#include <torch/optim/adamw.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <tuple>

#include "lockstep/optim/decay_schedules.h"
#include "lockstep/optim/libtorch_schedules.h"
#include "lockstep/optim/make_schedule.h"
#include "lockstep/optim/one_cycle.h"
#include "lockstep/optim/reduce_on_plateau.h"
#include "lockstep/optim/schedule_state.h"
#include "lockstep/optim/warmup_schedules.h"

namespace lockstep {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::Optimizer;
using torch::optim::SGDOptions;

/// Of two parameter groups.
std::unique_ptr<Optimizer> MakeOptimizer(double first = 0.1, double second = 0.03, const std::string& name = "sgd") {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : {first, second}) {
    std::vector<at::Tensor> parameters = {at::zeros({1}).requires_grad_()};
    if (name == "sgd") {
      groups.emplace_back(parameters, std::make_unique<SGDOptions>(SGDOptions(rate).momentum(0.5)));
    } else {
      groups.emplace_back(parameters, std::make_unique<AdamWOptions>(rate));
    }
  }
  if (name == "sgd") return std::make_unique<torch::optim::SGD>(groups, SGDOptions(1.));
  return std::make_unique<torch::optim::AdamW>(groups, AdamWOptions(1.));
}

double Momentum(Optimizer& optimizer) {
  auto& options = optimizer.param_groups()[1].options();
  if (auto* const sgd = dynamic_cast<SGDOptions*>(&options)) return sgd->momentum();
  return std::get<0>(dynamic_cast<AdamWOptions&>(options).betas());
}

template <typename T>
void Read(const nlohmann::json& from, const char* name, std::optional<T>& into) {
  if (from.contains(name)) into = from[name].get<T>();
}

ScheduleOptions OptionsFrom(const nlohmann::json& from) {
  ScheduleOptions o;
  o.kind = from["kind"];
  Read(from, "warmup_steps", o.warmup_steps);
  Read(from, "total_steps", o.total_steps);
  Read(from, "num_cycles", o.num_cycles);
  Read(from, "step_size", o.step_size);
  Read(from, "gamma", o.gamma);
  Read(from, "power", o.power);
  Read(from, "min_lr", o.min_lr);
  Read(from, "max_lr", o.max_lr);
  Read(from, "anneal", o.anneal);
  Read(from, "pct_start", o.pct_start);
  Read(from, "cycle_momentum", o.cycle_momentum);
  Read(from, "base_momentum", o.base_momentum);
  Read(from, "max_momentum", o.max_momentum);
  Read(from, "div_factor", o.div_factor);
  Read(from, "final_div_factor", o.final_div_factor);
  Read(from, "three_phase", o.three_phase);
  Read(from, "mode", o.mode);
  Read(from, "factor", o.factor);
  Read(from, "patience", o.patience);
  Read(from, "threshold", o.threshold);
  Read(from, "threshold_mode", o.threshold_mode);
  Read(from, "cooldown", o.cooldown);
  Read(from, "eps", o.eps);
  if (from.contains("milestones")) o.milestones = from["milestones"].get<std::vector<int64_t>>();
  return o;
}

const nlohmann::json& Golden() {
  static const auto* const golden =
      new nlohmann::json(nlohmann::json::parse(std::ifstream("tests/optim/schedules.json")));
  return *golden;
}

std::optional<double> MetricOf(const nlohmann::json& golden, size_t step) {
  if (golden["metrics"].is_null()) return std::nullopt;
  const auto& metric = golden["metrics"][step];
  return metric.is_string() ? std::stod(metric.get<std::string>()) : metric.get<double>();
}

/// A schedule of a golden case, with its optimizer.
struct Scheduled {
  explicit Scheduled(const nlohmann::json& golden, double first = 0.1, double second = 0.03)
      : optimizer(MakeOptimizer(first, second, golden["optimizer"])),
        schedule(MakeSchedule(OptionsFrom(golden["options"]), *optimizer).value()) {}
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Schedule> schedule;
};

// See make_schedules.py.
TEST(Schedule, GivesPythonsRatesAndMomentaAtEveryStep) {
  for (const auto& golden : Golden()) {
    const std::string kind = golden["options"]["kind"];
    // Python makes these rates out of those before, which adds up errors of rounding.
    const bool chained = kind == "step" || kind == "multi_step" || kind == "exponential" || kind == "polynomial" ||
                         kind == "cosine_annealing";
    Scheduled run(golden);
    const auto& rates = golden["rates"];
    for (size_t step = 0; step < rates.size(); ++step) {
      for (const size_t group : {0, 1}) {
        ASSERT_NEAR(run.schedule->Rates()[group], rates[step][group].get<double>(), chained ? 1e-15 : 1e-17)
            << golden["options"] << ", step " << step << ", group " << group;
      }
      if (!golden["momenta"].is_null()) {
        ASSERT_DOUBLE_EQ(Momentum(*run.optimizer), golden["momenta"][step].get<double>())
            << golden["options"] << ", step " << step;
      }
      if (step + 1 < rates.size()) run.schedule->Step(MetricOf(golden, step));
    }
  }
}

TEST(Schedule, GoesOnFromASavedStateWithTheBitsOfARunThatDidNotStop) {
  for (const auto& golden : Golden()) {
    const size_t steps = golden["rates"].size() - 1;
    Scheduled whole(golden);
    std::vector<Value> states = {whole.schedule->SaveState()};
    std::vector<std::vector<double>> rates = {whole.schedule->Rates()};
    std::vector<double> momenta = {Momentum(*whole.optimizer)};
    for (size_t step = 0; step < steps; ++step) {
      whole.schedule->Step(MetricOf(golden, step));
      states.push_back(whole.schedule->SaveState());
      rates.push_back(whole.schedule->Rates());
      momenta.push_back(Momentum(*whole.optimizer));
    }
    for (size_t from = 0; from <= steps; from += 3) {
      Scheduled again(golden, 7, 8);  // the saved base rates count
      ASSERT_TRUE(again.schedule->LoadState(states[from]).ok()) << golden["options"];
      for (size_t step = from; step <= steps; ++step) {
        ASSERT_EQ(again.schedule->Rates(), rates[step]) << golden["options"] << ", step " << step << " from " << from;
        if (!golden["momenta"].is_null()) {
          ASSERT_EQ(Momentum(*again.optimizer), momenta[step]) << golden["options"];
        }
        if (step < steps) again.schedule->Step(MetricOf(golden, step));
      }
    }
  }
}

TEST(Schedule, StepsAsLibTorchsBaseToo) {
  const auto optimizer = MakeOptimizer();
  LambdaSchedule schedule(*optimizer, StepDecay(1, 0.1));
  torch::optim::LRScheduler& base = schedule;
  base.step();
  EXPECT_DOUBLE_EQ(schedule.Rates()[0], 0.01);
  const Value state = ScheduleState(base);
  base.step();
  ASSERT_TRUE(LoadScheduleState(state, base).ok());
  EXPECT_DOUBLE_EQ(schedule.Rates()[1], 0.003);
}

TEST(Schedule, OneCycleRisesToTheGroupsOwnRatesUnlessOthersAreGiven) {
  const auto optimizer = MakeOptimizer();
  OneCycleOptions options;
  options.total_steps = 10;
  options.pct_start = 0.1;  // the rise has no step: Python divides by zero
  OneCycle own(*optimizer, options);
  EXPECT_EQ(own.Rates(), (std::vector<double>{0.1, 0.03}));
  options.max_lr = {1, 2};
  options.pct_start = 0.2;
  OneCycle given(*optimizer, options);
  EXPECT_NEAR(given.Rates()[1], 2 / 25., 1e-15);
  given.Step();
  EXPECT_EQ(given.Rates(), (std::vector<double>{1, 2}));
  for (int step = 1; step < 10; ++step) given.Step();
  EXPECT_THROW(given.Step(), c10::Error) << "an eleventh step";
}

TEST(ReduceOnPlateau, EachGroupHasItsOwnLeastRate) {
  const auto optimizer = MakeOptimizer(1, 1);
  ReduceOnPlateauOptions options;
  options.patience = 0;
  options.min_lr = {0.5, 0.05};
  ReduceOnPlateau schedule(*optimizer, options);
  for (int step = 0; step < 5; ++step) schedule.Step(1);
  EXPECT_EQ(schedule.Rates(), (std::vector<double>{0.5, 0.05}));
  EXPECT_THROW(schedule.Step(), c10::Error) << "no metric";
  EXPECT_THROW(schedule.step(), c10::Error) << "that of the last step doesn't count again";
}

TEST(LibTorchSchedule, WrapsLibTorchsStepLRAndGoesOnFromItsState) {
  const auto make = [](Optimizer& optimizer) {
    return LibTorchSchedule(optimizer, std::make_unique<torch::optim::StepLR>(optimizer, 2, 0.5));
  };
  const auto optimizer = MakeOptimizer(), bare = MakeOptimizer(), other = MakeOptimizer(7, 8);
  auto whole = make(*optimizer), again = make(*other);
  torch::optim::StepLR step_lr(*bare, 2, 0.5);
  for (int step = 0; step < 9; ++step) {
    if (step == 4) {
      ASSERT_TRUE(again.LoadState(whole.SaveState()).ok());
    }
    whole.Step();
    step_lr.step();
    EXPECT_EQ(whole.Rates()[1], bare->param_groups()[1].options().get_lr());
    if (step < 4) continue;
    again.Step();
    EXPECT_EQ(again.Rates(), whole.Rates());
  }
}

TEST(LibTorchSchedule, WrapsLibTorchsPlateauAndGoesOnFromItsState) {
  const auto make = [](Optimizer& optimizer) {
    using Plateau = torch::optim::ReduceLROnPlateauScheduler;
    return LibTorchPlateauSchedule(optimizer, std::make_unique<Plateau>(optimizer, Plateau::min, 0.5f, 1));
  };
  const std::vector<double> metrics = {1, 0.9, 0.95, 0.97, 0.99, 0.8, 0.81, 0.82, 0.83};
  const auto optimizer = MakeOptimizer();
  auto whole = make(*optimizer);
  for (size_t from = 0; from < metrics.size(); ++from) {
    const auto other = MakeOptimizer(7, 8);
    auto again = make(*other), rest = make(*optimizer);
    ASSERT_TRUE(again.LoadState(whole.SaveState()).ok());
    EXPECT_EQ(again.Rates(), whole.Rates()) << from;
    whole.Step(metrics[from]);
    again.Step(metrics[from]);
    EXPECT_EQ(again.Rates(), whole.Rates()) << from;
    EXPECT_FALSE(again.LoadState(whole.SaveState()).ok()) << "has stepped";
  }
  EXPECT_EQ(whole.Rates()[0], 0.025);
  EXPECT_THROW(whole.Step(), c10::Error);
}

TEST(StepSchedule, GivesTheMetricThatAScheduleGoesBy) {
  const auto optimizer = MakeOptimizer();
  ReduceOnPlateauOptions options;
  options.patience = 0;
  options.monitor = "val_error";
  ReduceOnPlateau schedule(*optimizer, options);
  for (int step = 0; step < 2; ++step)
    ASSERT_TRUE(StepSchedule(schedule, {{"val_error", 1}, {"val_loss", -step}}).ok());
  EXPECT_DOUBLE_EQ(schedule.Rates()[0], 0.01);
  EXPECT_EQ(StepSchedule(schedule, {{"a", 1}, {"b", 1}}).message(),
            "schedule: there is no metric 'val_error'; known: a, b");
}

/// Of MakeSchedule; empty where there is none.
std::string ErrorOf(const ScheduleOptions& options) {
  const auto optimizer = MakeOptimizer();
  const auto made = MakeSchedule(options, *optimizer);
  if (made.ok()) return "";
  EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.1) << "untouched";
  return std::string(made.status().message());
}

ScheduleOptions Kind(const std::string& kind) {
  ScheduleOptions options;
  options.kind = kind;
  return options;
}

TEST(MakeSchedule, RefusesByName) {
  EXPECT_EQ(ErrorOf(Kind("cosin")),
            "unknown schedule 'cosin'; known: constant, linear, cosine, step, multi_step, exponential, polynomial, "
            "cosine_annealing, one_cycle, reduce_on_plateau");
  EXPECT_EQ(ErrorOf(Kind("cosine")), "schedule 'cosine': total_steps is missing");
  EXPECT_EQ(ErrorOf(Kind("one_cycle")), "schedule 'one_cycle': total_steps is missing");
  EXPECT_EQ(ErrorOf(Kind("multi_step")), "schedule 'multi_step': milestones is missing");
  auto options = Kind("cosine");
  options.total_steps = 10;
  options.gamma = 0.1;
  EXPECT_EQ(ErrorOf(options), "schedule 'cosine': it has no gamma; it has: warmup_steps, total_steps, num_cycles");
  options = Kind("constant");
  options.milestones = {3};
  EXPECT_EQ(ErrorOf(options), "schedule 'constant': it has no milestones; it has: warmup_steps");
  options = Kind("linear");
  options.total_steps = 10;
  options.warmup_steps = -1;
  EXPECT_EQ(ErrorOf(options), "schedule 'linear': warmup_steps must not be negative, is -1");
  options = Kind("step");
  options.step_size = 0;
  EXPECT_EQ(ErrorOf(options), "schedule 'step': step_size must be at least 1, is 0");
  options = Kind("exponential");
  options.gamma = std::nan("");
  EXPECT_EQ(ErrorOf(options), "schedule 'exponential': gamma must be a finite number from 0 on, is nan");
  options = Kind("one_cycle");
  options.total_steps = 10;
  options.anneal = "cosine";
  EXPECT_EQ(ErrorOf(options), "schedule 'one_cycle': anneal must be 'cos' or 'linear', is 'cosine'");
  options.anneal = "cos";
  options.pct_start = 1.5;
  EXPECT_EQ(ErrorOf(options), "schedule 'one_cycle': pct_start must be from 0 to 1, is 1.5");
  options = Kind("reduce_on_plateau");
  options.factor = 1;
  EXPECT_EQ(ErrorOf(options), "schedule 'reduce_on_plateau': factor must be from 0 to below 1, is 1");
}

TEST(OneCycle, RefusesAnOptimizerWithoutMomentumUnlessItIsLeftAlone) {
  torch::optim::Adagrad optimizer({at::zeros({1}).requires_grad_()}, torch::optim::AdagradOptions(0.1));
  auto options = Kind("one_cycle");
  options.total_steps = 10;
  EXPECT_EQ(
      MakeSchedule(options, optimizer).status().message(),
      "schedule 'one_cycle': cycle_momentum needs an optimizer with momentum or beta1: SGD, RMSprop, Adam or AdamW");
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.1) << "untouched";
  options.cycle_momentum = false;
  EXPECT_TRUE(MakeSchedule(options, optimizer).ok());
}

TEST(LoadState, RefusesWhatIsNoSuchStateAndChangesNothing) {
  for (const char* const kind : {"cosine", "one_cycle", "reduce_on_plateau"}) {
    const auto optimizer = MakeOptimizer();
    auto options = Kind(kind);
    if (options.kind != "reduce_on_plateau") options.total_steps = 10;
    const auto schedule = MakeSchedule(options, *optimizer).value();
    schedule->Step(1);
    const auto rates = schedule->Rates();
    const Value good = schedule->SaveState();
    for (const auto& [key, value] : good.dict()->items) {
      const double inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
      const std::vector<Value> bad_values = {Value(),
                                             Value("x"),
                                             Value(nan),
                                             Value(ValueList{1.0}),
                                             Value(ValueList{1.0, nan}),
                                             Value(ValueList{1.0, inf, 2.0})};
      for (const Value& bad_value : bad_values) {
        Value bad = good;
        bad.set(*key.string(), bad_value);
        const absl::Status status = schedule->LoadState(bad);
        EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << kind << ": " << *key.string();
        EXPECT_NE(status.message().find(*key.string()), std::string::npos) << status;
        EXPECT_EQ(schedule->Rates(), rates);
      }
    }
    EXPECT_FALSE(schedule->LoadState(Value("nothing")).ok());
    EXPECT_TRUE(schedule->LoadState(good).ok());
  }
  const auto optimizer = MakeOptimizer();
  auto options = Kind("one_cycle");
  options.total_steps = 10;
  const auto schedule = MakeSchedule(options, *optimizer).value();
  Value late = schedule->SaveState();
  late.set("last_epoch", 11);
  EXPECT_EQ(schedule->LoadState(late).message(), "OneCycle has total_steps = 10, but step 11 was asked for");
}

}  // namespace
}  // namespace lockstep
