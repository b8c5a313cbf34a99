#include <gtest/gtest.h>

#include "lockstep/checkpoint/pth.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/texts.h"
#include "lockstep/ddp/all_reduce_hook.h"
#include "lockstep/ddp/bucketed_reducer.h"
#include "lockstep/ddp/power_sgd_hook.h"
#include "test_models.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

/// What a rank hands in; the formula of make_golden.py.
at::Tensor Gradient(int64_t step, int64_t rank, int64_t index, at::IntArrayRef shape) {
  const at::Tensor i = at::arange(c10::multiply_integers(shape), at::kLong);
  const at::Tensor n = (i * 7919 + (i * i) % 613 + rank * 104729 + step * 1299709 + index * 15485863) % 2003;
  return (n.to(at::kDouble) / 1001 - 1).to(at::kFloat).view(shape);
}

std::vector<NamedParameter> Parameters() {
  return {{"a", at::zeros({20, 15}).requires_grad_()},
          {"b", at::zeros({12, 30}).requires_grad_()},
          {"bias", at::zeros({10}).requires_grad_()},
          {"conv", at::zeros({8, 3, 3, 4}).requires_grad_()}};
}

void Backward(int64_t step, const std::vector<NamedParameter>& parameters, BucketedReducer& reducer) {
  at::Tensor loss = at::zeros({});
  for (size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor parameter = parameters[i].parameter;
    parameter.mutable_grad().reset();
    loss = loss + (parameter * Gradient(step, GetRank(Group()), static_cast<int64_t>(i), parameter.sizes())).sum();
  }
  reducer.PrepareForBackward({loss});
  loss.backward();
}

Value StateWithQ(const Value& golden, const std::string& bucket) {
  Value memory = ValueDict{};
  for (const auto& [name, q] : golden.find("q")->dict()->items) {
    Value entry = ValueDict{};
    entry.set("q", *q.tensor());
    memory.set(*name.string() == "bucket" ? bucket : *name.string(), std::move(entry));
  }
  Value state = ValueDict{};
  state.set("step", 0);
  state.set("draws", 0);
  state.set("memory", std::move(memory));
  return state;
}

void ExpectGolden(
    const std::string& name, double tolerance,
    const std::function<std::shared_ptr<c10d::CommHookInterface>(const std::vector<NamedParameter>&)>& make,
    PowerSgdHook** power_sgd = nullptr) {
  const auto file = LoadPth("tests/ddp/hooks.pth");
  ASSERT_TRUE(file.ok()) << file.status();
  const Value* golden = file->find(name);
  ASSERT_NE(golden, nullptr);
  const auto parameters = Parameters();
  BucketedReducerOptions options;
  options.hook = make(parameters);
  BucketedReducer reducer(parameters, Group(), options);
  const ValueList& steps = *golden->find("steps")->items();
  ASSERT_EQ(steps.size(), 6u);
  for (size_t step = 0; step < steps.size(); ++step) {
    if (step == 1 && power_sgd != nullptr) {
      // The buckets that compression will work on are known from here.
      Backward(static_cast<int64_t>(step), parameters, reducer);
      std::string bucket;
      const std::vector<std::string> names = reducer.bucket_names()[0];
      for (const auto& of : names) bucket += (bucket.empty() ? "" : " ") + of;
      Value state = StateWithQ(*golden, bucket);
      state.set("step", 2);
      ASSERT_TRUE((*power_sgd)->LoadState(state).ok());
    } else {
      Backward(static_cast<int64_t>(step), parameters, reducer);
    }
    for (const auto& [of, parameter, sparse] : parameters) {
      const at::Tensor expected = *steps[step].find(of)->tensor();
      EXPECT_TRUE(tolerance == 0 ? parameter.grad().equal(expected)
                                 : at::allclose(parameter.grad(), expected, tolerance, tolerance))
          << name << ", step " << step << ", " << of << ": " << (parameter.grad() - expected).abs().max();
    }
  }
}

TEST(CommunicationHooks, AllReduceEqualsPythons) {
  ExpectGolden("allreduce", 0, [](auto&) { return std::make_shared<AllReduceHook>(Group()); });
  ExpectGolden("fp16", 0, [](auto&) { return std::make_shared<AllReduceHook>(Group(), at::kHalf); });
  ExpectGolden("bf16", 0, [](auto&) { return std::make_shared<AllReduceHook>(Group(), at::kBFloat16); });
}

void ExpectPowerSgd(const std::string& name, PowerSgdOptions options) {
  options.start_step = 2;
  options.min_compression_rate = 1;
  PowerSgdHook* hook = nullptr;
  ExpectGolden(
      name, 1e-5,
      [&](const auto& parameters) {
        auto made = std::make_shared<PowerSgdHook>(parameters, Group(), options);
        hook = made.get();
        return made;
      },
      &hook);
}

TEST(CommunicationHooks, PowerSgdEqualsPythons) {
  for (int rank : {1, 2, 4}) {
    PowerSgdOptions options;
    options.rank = rank;
    ExpectPowerSgd("power_sgd_" + std::to_string(rank), options);
  }
  PowerSgdOptions options;
  options.rank = 2;
  options.error_feedback = false;
  ExpectPowerSgd("power_sgd_no_feedback", options);
  options = {};
  options.batched = true;
  ExpectPowerSgd("power_sgd_batched", options);
}

TEST(CommunicationHooks, PowerSgdGoesOnFromItsSavedStateAlsoBeforeBucketsAreRebuilt) {
  for (const bool batched : {false, true}) {
    PowerSgdOptions options;
    options.start_step = 2;
    options.min_compression_rate = 1;
    options.rank = 2;
    options.batched = batched;
    std::vector<std::vector<at::Tensor>> results(2);
    for (const bool resumed : {false, true}) {
      const auto parameters = Parameters();
      BucketedReducerOptions reducer_options;
      auto hook = std::make_shared<PowerSgdHook>(parameters, Group(), options);
      reducer_options.hook = hook;
      reducer_options.rebuild_buckets = !batched;  // whose state is of a bucket as a whole
      auto reducer = std::make_unique<BucketedReducer>(parameters, Group(), reducer_options);
      for (int step = 0; step < 8; ++step) {
        if (resumed && step == 5) {
          const Value saved = hook->SaveState();  // on all ranks; rank 0 has it all
          const std::string path = AllGatherString(std::string(std::getenv("TEST_TMPDIR")) + "/state", Group())[0];
          if (GetRank(Group()) == 0) {
            ASSERT_TRUE(SavePth(saved, path).ok());
          }
          Barrier(Group());
          const auto state = LoadPth(path);
          ASSERT_TRUE(state.ok()) << state.status();
          reducer.reset();
          hook = std::make_shared<PowerSgdHook>(parameters, Group(), options);
          ASSERT_TRUE(hook->LoadState(*state).ok());
          reducer_options.hook = hook;
          reducer = std::make_unique<BucketedReducer>(parameters, Group(), reducer_options);
        }
        Backward(step, parameters, *reducer);
      }
      EXPECT_LT(hook->elements_after(), hook->elements_before());
      for (const auto& named : parameters) results[resumed].push_back(named.parameter.grad().clone());
    }
    for (size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_TRUE(at::allclose(results[0][i], results[1][i], 1e-5, 1e-6)) << batched << " " << i;
    }
  }
}

TEST(CommunicationHooks, PowerSgdRefusesWhatMakesNoSense) {
  const auto parameters = Parameters();
  const auto make = [&](auto set) {
    PowerSgdOptions options;
    set(options);
    PowerSgdHook hook(parameters, Group(), options);
  };
  EXPECT_THROW(make([](auto& o) { o.rank = 0; }), c10::Error);
  EXPECT_THROW(make([](auto& o) { o.start_step = -1; }), c10::Error);
  EXPECT_THROW(make([](auto& o) { o.min_compression_rate = 0; }), c10::Error);
  EXPECT_THROW(make([](auto& o) { o.orthogonalization_epsilon = -1; }), c10::Error);
  PowerSgdHook hook(parameters, Group());
  EXPECT_FALSE(hook.LoadState(Value()).ok());
  Value entry = ValueDict{}, memory = ValueDict{}, state = ValueDict{};
  entry.set("errors", ValueList{at::zeros({3}), at::zeros({3})});
  state.set("step", 1);
  state.set("draws", 1);
  memory.set("a", entry);
  state.set("memory", memory);
  EXPECT_NE(hook.LoadState(state).message().find("a has another shape"), std::string::npos);
  memory = ValueDict{};
  memory.set("z", entry);
  state.set("memory", memory);
  EXPECT_NE(hook.LoadState(state).message().find("parameter z"), std::string::npos);
}

}  // namespace
}  // namespace lockstep
