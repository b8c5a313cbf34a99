#include "lockstep/parallel/data_parallel.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>

#include "lockstep/amp/autocast.h"
#include "lockstep/models/conv_net.h"
#include "tests/ddp/expect_error.h"
#include "tests/ddp/test_models.h"
#include "tests/parallel/replicas_on_cpu.h"

namespace lockstep {

/// An output of a type of its own.
struct Answer {
  at::Tensor value;
  std::optional<at::Tensor> extra;
  int calls = 0;
};
void VisitTensors(const Answer& answer, const TensorVisitor& visit) {
  visit(answer.value);
  if (answer.extra) visit(*answer.extra);
}

/// One whose visitor shows what is no member.
struct Hidden {
  at::Tensor value;
};
void VisitTensors(const Hidden& hidden, const TensorVisitor& visit) { visit(hidden.value.alias()); }

namespace {

using test_models::Branches;
using test_models::BranchesImpl;
using test_models::Mlp;
using test_models::MlpImpl;

/// Two of the same values.
template <typename Holder>
std::pair<Holder, Holder> Twins(at::ScalarType dtype = at::kDouble) {
  std::pair<Holder, Holder> twins;
  twins.first->to(dtype);
  twins.second->to(dtype);
  const at::NoGradGuard no_grad;
  auto target = twins.second->named_parameters();
  for (const auto& item : twins.first->named_parameters()) target[item.key()].copy_(item.value());
  return twins;
}

/// What a call of forward saw.
struct Seen {
  std::thread::id thread;
  at::Tensor input;
  const void* weight = nullptr;
  bool training = false, gradients = false;
};

/// A linear layer that tells.
struct ProbeImpl : torch::nn::Module {
  ProbeImpl() : linear(register_module("linear", torch::nn::Linear(3, 2))) {}
  at::Tensor forward(const at::Tensor& x) {
    {
      std::lock_guard<std::mutex> lock(Mutex());
      All().push_back(
          {std::this_thread::get_id(), x, linear->weight.const_data_ptr(), is_training(), c10::GradMode::is_enabled()});
    }
    return linear->forward(x);
  }
  static std::vector<Seen>& All() {
    static auto* const all = new std::vector<Seen>;
    return *all;
  }
  static std::mutex& Mutex() {
    static auto* const mutex = new std::mutex;
    return *mutex;
  }
  torch::nn::Linear linear;
};
TORCH_MODULE(Probe);

/// The sizes of the pieces that `samples` are cut into, sorted.
std::multiset<int64_t> Pieces(DataParallel<ProbeImpl>& parallel, int64_t samples) {
  ProbeImpl::All().clear();
  EXPECT_EQ(parallel.forward(at::ones({samples, 3})).sizes(), at::IntArrayRef({samples, 2}));
  std::multiset<int64_t> sizes;
  for (const auto& seen : ProbeImpl::All()) sizes.insert(seen.input.size(0));
  return sizes;
}

TEST(DataParallel, OutputsAndGradientsEqualTheModuleOnTheWholeBatch) {
  torch::manual_seed(1);
  for (const size_t replicas : {1, 2, 3}) {
    for (const int64_t samples : {12, 7, 2}) {
      auto [single, model] = Twins<Mlp>();
      DataParallel parallel(model, Cpus(replicas), Another<MlpImpl>());
      torch::optim::SGD optimizer(parallel.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      torch::optim::SGD reference(single->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < 4; ++step) {
        const at::Tensor x = at::randn({samples, 6}, at::kDouble), y = at::randint(3, {samples});
        optimizer.zero_grad(step % 2 == 0);
        reference.zero_grad(step % 2 == 0);
        const at::Tensor out = parallel.forward(x), expected = single->forward(x);
        EXPECT_TRUE(at::allclose(out, expected, 1e-9, 1e-12));
        torch::nn::functional::cross_entropy(out, y).backward();
        torch::nn::functional::cross_entropy(expected, y).backward();
        ExpectSameGradients(*single, parallel);
        optimizer.step();
        reference.step();
      }
    }
  }
}

TEST(DataParallel, AClonedModuleNeedsNoFactory) {
  torch::manual_seed(2);
  torch::nn::Sequential model(torch::nn::Linear(4, 8), torch::nn::ReLU(), torch::nn::Linear(8, 2));
  DataParallel parallel(model, Cpus(3));
  const at::Tensor x = at::randn({10, 4});
  EXPECT_TRUE(at::allclose(parallel.forward(x), model->forward(x)));
  EXPECT_EQ(parallel.named_parameters().keys(), model->named_parameters().keys());
}

TEST(DataParallel, BatchesAreCutAsTorchChunkDoes) {
  Probe model;
  DataParallel parallel(model, Cpus(4), Another<ProbeImpl>());
  EXPECT_EQ(Pieces(parallel, 8), (std::multiset<int64_t>{2, 2, 2, 2}));
  EXPECT_EQ(Pieces(parallel, 5), (std::multiset<int64_t>{2, 2, 1}));  // three replicas
  EXPECT_EQ(Pieces(parallel, 6), (std::multiset<int64_t>{2, 2, 2}));
  EXPECT_EQ(Pieces(parallel, 3), (std::multiset<int64_t>{1, 1, 1}));
  EXPECT_EQ(Pieces(parallel, 1), (std::multiset<int64_t>{1}));
  EXPECT_EQ(Pieces(parallel, 0), (std::multiset<int64_t>{0, 0, 0, 0}));
}

TEST(DataParallel, CutsAlongAnotherDimension) {
  struct Scale : torch::nn::Module {
    Scale() : factor(register_parameter("factor", at::full({1}, 2.))) {}
    at::Tensor forward(const at::Tensor& x) {
      EXPECT_EQ(x.size(1), 3);
      return x * factor;
    }
    at::Tensor factor;
  };
  DataParallel<Scale> parallel(std::make_shared<Scale>(), Cpus(2), Another<Scale>(), /*dim=*/1);
  const at::Tensor x = at::randn({2, 6});
  EXPECT_TRUE(parallel.forward(x).equal(x * 2));
}

TEST(DataParallel, ThreadsAndMemoryAreKept) {
  Probe model;
  DataParallel parallel(model, Cpus(3), Another<ProbeImpl>());
  const void* const weight = model->linear->weight.const_data_ptr();
  std::set<std::thread::id> threads;
  for (int step = 0; step < 5; ++step) {
    ProbeImpl::All().clear();
    std::set<std::thread::id> now;
    parallel.forward(at::ones({3, 3})).sum().backward();
    for (const auto& seen : ProbeImpl::All()) {
      EXPECT_EQ(seen.weight, weight);  // nothing was copied
      now.insert(seen.thread);
    }
    EXPECT_EQ(now.size(), 3);
    if (step == 0) threads = now;
    EXPECT_EQ(now, threads);
  }
}

TEST(DataParallel, OneDeviceWrapsNothing) {
  Probe model;
  DataParallel parallel(model, Cpus(1));
  ProbeImpl::All().clear();
  const at::Tensor x = at::ones({4, 3});
  parallel.forward(x);
  ASSERT_EQ(ProbeImpl::All().size(), 1);
  EXPECT_TRUE(ProbeImpl::All()[0].input.is_same(x));
  EXPECT_EQ(ProbeImpl::All()[0].thread, std::this_thread::get_id());
}

TEST(DataParallel, GradientsAccumulateOverBackwards) {
  torch::manual_seed(3);
  auto [single, model] = Twins<Mlp>();
  DataParallel parallel(model, Cpus(2), Another<MlpImpl>());
  const at::Tensor a = at::randn({5, 6}, at::kDouble), b = at::randn({4, 6}, at::kDouble);
  const at::Tensor first = parallel.forward(a).square().sum();
  parallel.forward(b).square().sum().backward();  // in the other order
  first.backward();
  single->forward(a).square().sum().backward();
  single->forward(b).square().sum().backward();
  ExpectSameGradients(*single, parallel);
}

TEST(DataParallel, ParametersThatNoReplicaUsesGetNoGradient) {
  torch::manual_seed(4);
  auto [single, model] = Twins<Branches>();
  DataParallel parallel(model, Cpus(2), Another<BranchesImpl>());
  const at::Tensor x = at::randn({4, 6}, at::kDouble);
  parallel.forward(x, false).square().sum().backward();
  single->forward(x, false).square().sum().backward();
  EXPECT_FALSE(model->left->weight.grad().defined());
  EXPECT_TRUE(model->right->weight.grad().defined());
  ExpectSameGradients(*single, parallel);
}

TEST(DataParallel, ParametersThatOneReplicaUsesGetItsGradient) {
  struct Odd : BranchesImpl {
    at::Tensor forward(const at::Tensor& x) { return BranchesImpl::forward(x, x.sum().item<double>() > 0); }
  };
  const auto model = std::make_shared<Odd>();
  DataParallel<Odd> parallel(model, Cpus(2), Another<Odd>());
  const at::Tensor x = at::cat({at::ones({1, 6}), at::ones({1, 6}).neg()});
  parallel.forward(x).sum().backward();
  const at::Tensor left = model->left->weight.grad().clone(), right = model->right->weight.grad().clone();
  model->zero_grad();
  (model->forward(x.narrow(0, 0, 1)).sum() + model->forward(x.narrow(0, 1, 1)).sum()).backward();
  EXPECT_TRUE(at::allclose(left, model->left->weight.grad()));
  EXPECT_TRUE(at::allclose(right, model->right->weight.grad()));
}

TEST(DataParallel, TiedParametersGetOneGradient) {
  torch::manual_seed(5);
  auto [single, model] = Twins<test_models::Shared>(at::kFloat);
  DataParallel parallel(model, Cpus(2), Another<test_models::SharedImpl>());
  const at::Tensor x = at::randn({4, 6});
  for (int step = 0; step < 2; ++step) {
    parallel.forward(x).square().sum().backward();
    single->forward(x).square().sum().backward();
    for (const auto& name : {"a.weight", "again"}) {
      EXPECT_TRUE(at::allclose(model->named_parameters()[name].grad(), single->named_parameters()[name].grad(), 1e-4));
    }
  }
}

TEST(DataParallel, HooksSeeTheSumOnceAndInputsGetGradients) {
  torch::manual_seed(6);
  auto [single, model] = Twins<Mlp>();
  DataParallel parallel(model, Cpus(3), Another<MlpImpl>());
  int calls = 0;
  model->a->weight.register_hook([&](const at::Tensor& grad) {
    ++calls;
    return grad * 2;
  });
  const at::Tensor x = at::randn({6, 6}, at::kDouble).requires_grad_(), same = x.detach().clone().requires_grad_();
  parallel.forward(x).square().sum().backward();
  single->forward(same).square().sum().backward();
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(at::allclose(model->a->weight.grad(), single->a->weight.grad() * 2));
  EXPECT_TRUE(at::allclose(x.grad(), same.grad()));
}

TEST(DataParallel, DerivativesOfHigherOrder) {
  torch::manual_seed(7);
  auto [single, model] = Twins<Mlp>();
  DataParallel parallel(model, Cpus(2), Another<MlpImpl>());
  const at::Tensor x = at::randn({4, 6}, at::kDouble);
  const auto second = [&](at::Tensor out, const at::Tensor& weight) {
    const at::Tensor g = torch::autograd::grad({out.square().sum()}, {weight}, {}, std::nullopt, true)[0];
    return torch::autograd::grad({g.square().sum()}, {weight})[0];
  };
  EXPECT_TRUE(
      at::allclose(second(parallel.forward(x), model->b->weight), second(single->forward(x), single->b->weight)));
}

/// The worked-out result of Python's DataParallel in training: each piece by itself, running statistics from the first.
TEST(DataParallel, BatchNormIsEachReplicasOwnAndTheFirstOnesStatisticsAreKept) {
  torch::manual_seed(8);
  const auto make = [] {
    return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4), torch::nn::Linear(4, 2));
  };
  torch::nn::Sequential model = make();
  model->to(at::kDouble);
  const auto clone = [&] { return std::dynamic_pointer_cast<torch::nn::SequentialImpl>(model->clone()); };
  auto first = clone(), second = clone();
  DataParallel parallel(model, Cpus(2));
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = at::randn({7, 3}, at::kDouble) + step;
    model->zero_grad();
    const at::Tensor out = parallel.forward(x);
    out.square().sum().backward();

    const at::Tensor expected = at::cat({first->forward(x.narrow(0, 0, 4)), second->forward(x.narrow(0, 4, 3))});
    first->zero_grad();
    second->zero_grad();
    expected.square().sum().backward();
    EXPECT_TRUE(at::allclose(out, expected));
    for (const auto& item : model->named_parameters()) {
      const at::Tensor sum =
          first->named_parameters()[item.key()].grad() + second->named_parameters()[item.key()].grad();
      EXPECT_TRUE(at::allclose(item.value().grad(), sum)) << item.key();
    }
    for (const auto& item : model->named_buffers()) {
      EXPECT_TRUE(at::allclose(item.value(), first->named_buffers()[item.key()])) << item.key();
    }
  }
  parallel.eval();  // the first one's statistics in all replicas
  first->eval();
  const at::Tensor x = at::randn({6, 3}, at::kDouble);
  EXPECT_TRUE(at::allclose(parallel.forward(x), first->forward(x)));
}

TEST(DataParallel, TwoForwardsThroughBatchNormAndThenTheirBackwards) {
  torch::manual_seed(9);
  models::ConvNet model;
  DataParallel parallel(model, Cpus(2), Another<models::ConvNetImpl>());
  const at::Tensor x = at::randn({4, 1, 28, 28});
  const at::Tensor a = parallel.forward(x).sum(), b = parallel.forward(x * 2).sum();
  a.backward();
  b.backward();
  EXPECT_TRUE(model->named_parameters()["fc.3.weight"].grad().defined());
}

TEST(DataParallel, AChangeBetweenForwardAndBackwardIsNoticed) {
  Mlp model;
  DataParallel parallel(model, Cpus(2), Another<MlpImpl>());
  const at::Tensor loss = parallel.forward(at::ones({2, 6})).sum();
  {
    const at::NoGradGuard no_grad;
    model->b->weight.add_(1);
  }
  ExpectError([&] { loss.backward(); }, {"modified by an inplace operation"});
}

TEST(DataParallel, ReplicasFollowModesDtypeAndFrozenParameters) {
  torch::manual_seed(10);
  Probe model;
  DataParallel parallel(model, Cpus(2), Another<ProbeImpl>());
  const auto modes = [&](const at::Tensor& x) {
    ProbeImpl::All().clear();
    parallel.forward(x);
    std::multiset<bool> training;
    for (const auto& seen : ProbeImpl::All()) training.insert(seen.training);
    return training;
  };
  EXPECT_EQ(modes(at::ones({2, 3})), (std::multiset<bool>{true, true}));
  parallel.eval();
  EXPECT_FALSE(model->is_training());
  EXPECT_EQ(modes(at::ones({2, 3})), (std::multiset<bool>{false, false}));

  model->to(at::kDouble);
  const at::Tensor x = at::randn({4, 3}, at::kDouble);
  EXPECT_TRUE(at::allclose(parallel.forward(x), model->linear->forward(x)));
  parallel.forward(x).sum().backward();
  EXPECT_EQ(model->linear->weight.grad().scalar_type(), at::kDouble);

  model->zero_grad();
  model->linear->weight.set_requires_grad(false);
  parallel.forward(x).sum().backward();
  EXPECT_FALSE(model->linear->weight.grad().defined());
  EXPECT_TRUE(model->linear->bias.grad().equal(at::full({2}, 4., at::kDouble)));
  model->linear->weight.set_requires_grad(true);
  parallel.forward(x).sum().backward();
  EXPECT_TRUE(at::allclose(model->linear->weight.grad()[0], x.sum(0)));
}

TEST(DataParallel, AChildInEvaluationModeStaysSoInReplicas) {
  torch::nn::Sequential model(torch::nn::Linear(3, 3), torch::nn::BatchNorm1d(3));
  model->ptr(1)->eval();
  DataParallel parallel(model, Cpus(3));
  const at::Tensor x = at::randn({6, 3});
  EXPECT_TRUE(at::allclose(parallel.forward(x), model->forward(x)));  // running statistics
}

TEST(DataParallel, GradAutocastAndInferenceModesReachReplicas) {
  struct Modes : ProbeImpl {
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor out = ProbeImpl::forward(x);
      const auto modes = std::vector<int64_t>{c10::GradMode::is_enabled(), c10::InferenceMode::is_enabled(),
                                              out.scalar_type() == at::kBFloat16};
      return at::tensor(modes).unsqueeze(0);
    }
  };
  DataParallel<Modes> parallel(std::make_shared<Modes>(), Cpus(3), Another<Modes>());
  const at::Tensor x = at::ones({3, 3});
  const auto modes = [&] { return parallel.forward(x); };
  const auto all = [](std::vector<int64_t> row) { return at::tensor(row).expand({3, 3}); };
  EXPECT_TRUE(modes().equal(all({1, 0, 0})));
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(modes().equal(all({0, 0, 0})));
  }
  {
    const c10::InferenceMode inference;
    EXPECT_TRUE(modes().equal(all({0, 1, 0})));
  }
  {
    const AutocastGuard autocast(at::kCPU, at::kBFloat16);
    EXPECT_TRUE(modes().equal(all({1, 0, 1})));
  }
  EXPECT_TRUE(modes().equal(all({1, 0, 0})));
}

TEST(DataParallel, AfterInferenceModeItTrains) {
  Mlp model;
  DataParallel parallel(model, Cpus(2), Another<MlpImpl>());
  {
    const c10::InferenceMode inference;
    parallel.forward(at::ones({2, 6}));
  }
  parallel.forward(at::ones({2, 6})).sum().backward();
  EXPECT_TRUE(model->a->weight.grad().defined());
}

TEST(DataParallel, NestedInputsAndOutputs) {
  using Inputs = std::map<std::string, std::pair<at::Tensor, std::optional<at::Tensor>>>;
  struct Nested : torch::nn::Module {
    std::tuple<at::Tensor, std::vector<Answer>, double> forward(const Inputs& inputs, const std::string& key,
                                                                const at::Tensor& factor, std::vector<int> numbers) {
      const auto& [x, y] = inputs.at(key);
      EXPECT_EQ(numbers.size(), 2);
      EXPECT_EQ(factor.dim(), 0);
      return {x * factor, {{x + *y, std::nullopt, 7}, {x.sum(), y->mean(), 8}}, 0.5};
    }
  };
  DataParallel<Nested> parallel(std::make_shared<Nested>(), Cpus(2), Another<Nested>());
  const at::Tensor x = at::arange(6.).view({3, 2}), y = at::ones({3, 1});
  const auto [product, answers, number] = parallel.forward(Inputs{{"a", {x, y}}, {"b", {y, std::nullopt}}}, "a",
                                                           at::scalar_tensor(3.), std::vector<int>{1, 2});
  EXPECT_TRUE(product.equal(x * 3));
  EXPECT_TRUE(answers[0].value.equal(x + 1));
  EXPECT_FALSE(answers[0].extra.has_value());
  EXPECT_EQ(answers[0].calls, 7);
  EXPECT_TRUE(answers[1].value.equal(at::tensor({6., 9.})));  // one number for each replica
  EXPECT_TRUE(answers[1].extra->equal(at::ones({2})));
  EXPECT_EQ(number, 0.5);
}

TEST(DataParallel, HashedMapsAreCutAndPutTogetherByTheirKeys) {
  using Tensors = std::unordered_map<std::string, at::Tensor>;
  struct Reversed : torch::nn::Module {
    Tensors forward(const Tensors& in) {
      Tensors out;
      // Another history in each replica, so that the maps' own orders differ.
      out.rehash(in.at("a").sum().item<double>() > 2 ? 1 : 1000);
      std::vector<std::string> keys;
      for (const auto& item : in) keys.push_back(item.first);
      for (size_t i = 0; i < keys.size(); ++i) out[keys[in.at("a").sum().item<double>() > 2 ? i : keys.size() - 1 - i]];
      for (const auto& key : keys) out[key] = in.at(key) * 2;
      return out;
    }
  };
  DataParallel<Reversed> parallel(std::make_shared<Reversed>(), Cpus(2), Another<Reversed>());
  Tensors in;
  for (int i = 0; i < 20; ++i) in[std::string(1, static_cast<char>('a' + i))] = at::tensor({1., 2.}) + i;
  in["a"] = at::tensor({1., 5.});
  const Tensors out = parallel.forward(in);
  ASSERT_EQ(out.size(), in.size());
  for (const auto& [key, value] : in) EXPECT_TRUE(out.at(key).equal(value * 2)) << key;
}

TEST(DataParallel, ALossComputedInReplicasIsAVectorAlsoFromOne) {
  struct Loss : MlpImpl {
    at::Tensor forward(const at::Tensor& x) { return MlpImpl::forward(x).square().mean(); }
  };
  DataParallel<Loss> parallel(std::make_shared<Loss>(), Cpus(2), Another<Loss>());
  EXPECT_EQ(parallel.forward(at::ones({4, 6})).sizes(), at::IntArrayRef({2}));
  EXPECT_EQ(parallel.forward(at::ones({1, 6})).sizes(), at::IntArrayRef({1}));
  parallel.forward(at::ones({4, 6})).mean().backward();
  EXPECT_TRUE(parallel.module().a->weight.grad().defined());
}

TEST(DataParallel, AForwardWithoutResultAndOneWithoutArguments) {
  struct Count : torch::nn::Module {
    void forward(const at::Tensor& x) { total += static_cast<int>(x.size(0)); }
    at::Tensor forward() { return at::ones({1}); }
    int total = 0;
  };
  const auto first = std::make_shared<Count>();
  DataParallel<Count> parallel(first, Cpus(2), Another<Count>());
  parallel.forward(at::ones({5}));
  EXPECT_EQ(first->total, 3);
  EXPECT_EQ(parallel.forward().numel(), 1);
}

TEST(DataParallel, AnErrorSaysWhichReplicaAndKeepsTheOriginal) {
  struct Bad : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      if (x.sum().item<double>() > 3) throw std::out_of_range("too large");
      return x;
    }
  };
  DataParallel<Bad> parallel(std::make_shared<Bad>(), Cpus(3), Another<Bad>());
  const auto run = [&] { parallel.forward(at::arange(6)); };  // 0+1, 2+3, 4+5
  ExpectError(run, {"replica 1 of 3, on cpu: too large"});
  try {
    run();
    ADD_FAILURE() << "no error";
  } catch (const c10::Error& e) {
    EXPECT_THROW(std::rethrow_if_nested(e), std::out_of_range);
  }
  EXPECT_TRUE(parallel.forward(at::zeros({3})).equal(at::zeros({3})));  // the next one is sound
}

TEST(DataParallel, WhatCannotBeCutOrPutTogetherIsNamed) {
  struct Free : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x, const at::Tensor& y) { return x; }
    std::vector<at::Tensor> forward(const at::Tensor& x) {
      return std::vector<at::Tensor>(static_cast<size_t>(x[0].item<int64_t>()) + 1, x);
    }
    std::shared_ptr<int> forward(int) { return nullptr; }
    at::Tensor forward(const Hidden& hidden) { return hidden.value; }
  };
  DataParallel<Free> parallel(std::make_shared<Free>(), Cpus(2), Another<Free>());
  ExpectError([&] { parallel.forward(at::ones({4}), at::ones({5})); }, {"have 4 and 5 samples along dimension 0"});
  ExpectError([&] { parallel.forward(at::arange(2)); }, {"replica 0 returned 1 tensors and replica 1 2"});
  ExpectError([&] { parallel.forward(1); }, {"forward returns a std::shared_ptr<int>", "VisitTensors"});
  ExpectError([&] { parallel.forward(Hidden{at::ones({2})}); }, {"lockstep::Hidden", "visits a copy of a tensor"});
}

TEST(DataParallel, ReplicasOfAnotherShapeAndModulesWithoutCloneAreNamed) {
  const auto narrow = [](at::Device) { return std::make_shared<MlpImpl>(6, 8); };
  ExpectError([&] { DataParallel<MlpImpl>(Mlp(), Cpus(2), narrow); },
              {"parameter a.weight is [8, 6] in a replica and [16, 6] in the module"});
  ExpectError([&] { DataParallel<MlpImpl>(Mlp(), Cpus(2)); }, {"can't be cloned", "give make_replica"});
  Mlp model;
  ExpectError([&] { DataParallel<MlpImpl>(model, Cpus(2), [&](at::Device) { return model.ptr(); }); },
              {"a replica has the module's own parameter a.weight"});
  ExpectError(
      [&] {
        DataParallel<MlpImpl>(model, {at::Device(at::kCUDA, 0), at::Device(at::kCUDA, 0)});
      },
      {"device cuda:0 is there twice"});
  ExpectError(
      [&] {
        DataParallel<MlpImpl>(model, {at::Device(at::kCUDA, 0), at::Device(at::kCUDA, 1)});
      },
      {"a.weight is on cpu; move the module to the first device, cuda:0"});
}

TEST(DataParallel, MakingReplicasDrawsNoRandomNumbers) {
  Mlp model;
  torch::manual_seed(11);
  const at::Tensor expected = at::rand({3});
  torch::manual_seed(11);
  DataParallel parallel(model, Cpus(3), Another<MlpImpl>());
  EXPECT_TRUE(at::rand({3}).equal(expected));
}

/// Replicas on another device have memory of their own; here it is the same device.
TEST(Replicas, ElsewhereHaveTheModulesValuesInTheirOwnMemory) {
  torch::manual_seed(12);
  const auto model = std::make_shared<models::ConvNetImpl>(), replica = std::make_shared<models::ConvNetImpl>();
  {
    const at::NoGradGuard no_grad;
    at::Tensor& weight = model->layer2[0]->as<torch::nn::Conv2dImpl>()->weight;
    weight.set_data(weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  internal::Replicas replicas(model, at::kCPU, {{replica, at::kCPU}}, /*share=*/false);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  const void* memory = nullptr;
  for (int step = 0; step < 3; ++step) {
    if (step == 2) model->to(at::kDouble);
    replicas.Follow();
    const auto theirs = replica->named_parameters();
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(theirs[item.key()].equal(item.value())) << item.key();
      EXPECT_EQ(theirs[item.key()].strides(), item.value().strides()) << item.key();
      EXPECT_NE(theirs[item.key()].const_data_ptr(), item.value().const_data_ptr());
    }
    for (const auto& item : model->named_buffers()) {
      EXPECT_TRUE(replica->named_buffers()[item.key()].equal(item.value())) << item.key();
    }
    if (step == 1) {
      EXPECT_EQ(theirs["fc.3.bias"].const_data_ptr(), memory);
    }
    memory = theirs["fc.3.bias"].const_data_ptr();
    optimizer.zero_grad();
    const at::Tensor x = at::randn({4, 1, 28, 28}, model->parameters()[0].options().requires_grad(false));
    const at::Tensor loss = replica->forward(x).square().sum();
    model->forward(x).square().sum().backward();
    std::vector<at::Tensor> own;
    for (const auto& p : model->parameters()) own.push_back(p.grad().clone());
    optimizer.zero_grad();
    loss.backward();
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(at::allclose(model->parameters()[i].grad(), own[i], 1e-3, 1e-4)) << i << " step " << step;
    }
    optimizer.step();
  }
}

TEST(Replicas, ElsewhereAChangeBetweenForwardAndBackwardIsNoticed) {
  const auto model = std::make_shared<MlpImpl>(), replica = std::make_shared<MlpImpl>();
  internal::Replicas replicas(model, at::kCPU, {{replica, at::kCPU}}, /*share=*/false);
  replicas.Follow();
  const at::Tensor loss = replica->forward(at::ones({2, 6})).sum(), again = replica->forward(at::ones({2, 6})).sum();
  replicas.Follow();
  again.backward();  // nothing has changed
  {
    const at::NoGradGuard no_grad;
    model->b->weight.add_(1);
  }
  replicas.Follow();
  ExpectError([&] { loss.backward(); }, {"modified by an inplace operation"});
}

}  // namespace
}  // namespace lockstep
