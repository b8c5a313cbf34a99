// Modules of many kinds, and changes of a module between steps, in DataParallel: outputs and gradients are those of the
// module alone.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "tests/ddp/expect_error.h"
#include "tests/ddp/test_models.h"
#include "tests/parallel/replicas_on_cpu.h"

namespace lockstep {
namespace {

using test_models::MlpImpl;

/// Two with the same values.
template <typename M>
std::pair<std::shared_ptr<M>, std::shared_ptr<M>> Twins() {
  torch::manual_seed(5);
  auto first = std::make_shared<M>();
  torch::manual_seed(5);
  return {first, std::make_shared<M>()};
}

/// Trains a module alone and one in DataParallel, by `forward(module, step)`.
template <typename M, typename Forward>
void ExpectTrainsAsAlone(size_t replicas, const Forward& forward) {
  auto [single, model] = Twins<M>();
  DataParallel<M> parallel(model, Cpus(replicas), Another<M>());
  torch::optim::SGD optimizer(parallel.parameters(), torch::optim::SGDOptions(0.01));
  torch::optim::SGD reference(single->parameters(), torch::optim::SGDOptions(0.01));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    reference.zero_grad();
    const at::Tensor out = forward(parallel, step), expected = forward(*single, step);
    EXPECT_TRUE(at::allclose(out, expected, 1e-4, 1e-5));
    at::real(out * out).sum().backward();
    at::real(expected * expected).sum().backward();
    ExpectSameGradients(*single, *model, 1e-3, 1e-5);
    optimizer.step();
    reference.step();
  }
}

at::Tensor Batch(int step, int64_t samples = 7) {
  torch::manual_seed(100 + step);
  return at::randn({samples, 6});
}

TEST(DataParallelModules, RecurrentNets) {
  for (const size_t replicas : {2, 3}) {
    ExpectTrainsAsAlone<test_models::RecurrentImpl>(replicas, [](auto& module, int step) {
      return module.forward(Batch(step).repeat({1, 4}));
    });
  }
}

TEST(DataParallelModules, AttentionIsCloned) {
  torch::nn::Sequential model(torch::nn::TransformerEncoderLayer(
      torch::nn::TransformerEncoderLayerOptions(6, 2).dim_feedforward(8).dropout(0)));
  DataParallel<torch::nn::SequentialImpl> parallel(model, Cpus(3), nullptr, /*dim=*/1);
  const at::Tensor x = at::randn({4, 5, 6});
  for (int step = 0; step < 2; ++step) {
    model->zero_grad();
    EXPECT_TRUE(at::allclose(parallel.forward(x), model->forward(x), 1e-4, 1e-5));
    parallel.forward(x).square().sum().backward();
    std::vector<at::Tensor> own;
    for (const auto& p : model->parameters()) own.push_back(p.grad().clone());
    model->zero_grad();
    model->forward(x).square().sum().backward();
    for (size_t i = 0; i < own.size(); ++i) {
      EXPECT_TRUE(at::allclose(own[i], model->parameters()[i].grad(), 1e-3, 1e-4)) << i;
    }
    const at::NoGradGuard no_grad;
    for (const auto& p : model->parameters()) p.add_(0.01);
  }
}

/// Rows of a table by sparse gradients; samples below 0 also use all of it, which makes their gradient dense.
struct TableImpl : torch::nn::Module {
  TableImpl()
      : table(register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)))),
        out(register_module("out", torch::nn::Linear(4, 2))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = out->forward(table->forward(x.abs()));
    return x.min().item<int64_t>() < 0 ? y + table->weight.sum() : y;
  }
  torch::nn::Embedding table;
  torch::nn::Linear out;
};

TEST(DataParallelModules, SparseGradientsAlsoWhereAnotherReplicasAreDense) {
  for (const size_t replicas : {2, 3}) {
    for (const auto& x : {at::tensor({1, 2, 3, 3, 5, 9}), at::tensor({-1, 2, -3, 3, 5, 9}),
                          at::tensor({1, 2, 3, 3, 5, -9}), at::tensor({1, 2, -3, 3, -5, 9})}) {
      auto [single, model] = Twins<TableImpl>();
      DataParallel<TableImpl> parallel(model, Cpus(replicas), Another<TableImpl>());
      parallel.forward(x).square().sum().backward();
      at::Tensor loss = at::zeros({});
      for (const auto& piece : x.chunk(static_cast<int64_t>(replicas)))
        loss = loss + single->forward(piece).square().sum();
      loss.backward();
      ExpectSameGradients(*single, *model, 1e-3, 1e-5);
    }
  }
}

struct SpectralImpl : torch::nn::Module {
  SpectralImpl() : filter(register_parameter("filter", at::randn({6}, at::kComplexFloat))) {}
  at::Tensor forward(const at::Tensor& x) { return x.to(at::kComplexFloat) * filter.conj(); }
  at::Tensor filter;
};

TEST(DataParallelModules, ComplexParameters) {
  for (const size_t replicas : {2, 3}) {
    ExpectTrainsAsAlone<SpectralImpl>(replicas, [](auto& module, int step) { return module.forward(Batch(step)); });
  }
}

/// A sparse buffer, as a graph's edges; one that is expanded; and an empty parameter.
struct OddTensorsImpl : torch::nn::Module {
  OddTensorsImpl()
      : weight(register_parameter("weight", at::randn({6, 3}))),
        empty(register_parameter("empty", at::zeros({0, 3}))),
        edges(register_buffer("edges", at::eye(6).to_sparse())),
        mask(register_buffer("mask", at::ones({1, 6}).expand({4, 6}))) {}
  at::Tensor forward(const at::Tensor& x) { return at::mm(x * mask[0], at::mm(edges, weight)) + empty.sum(); }
  at::Tensor weight, empty, edges, mask;
};

TEST(DataParallelModules, SparseExpandedAndEmptyTensors) {
  for (const size_t replicas : {2, 3}) {
    ExpectTrainsAsAlone<OddTensorsImpl>(replicas, [](auto& module, int step) { return module.forward(Batch(step)); });
  }
}

/// Parameters that were made as views.
struct ViewsImpl : torch::nn::Module {
  ViewsImpl()
      : weight(register_parameter("weight", at::randn({6, 4}).t())),
        bias(register_parameter("bias", at::randn({2, 4})[0])) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight, bias).tanh(); }
  at::Tensor weight, bias;
};

TEST(DataParallelModules, ParametersThatAreViews) {
  for (const size_t replicas : {2, 3}) {
    ExpectTrainsAsAlone<ViewsImpl>(replicas, [](auto& module, int step) { return module.forward(Batch(step)); });
  }
}

TEST(DataParallelModules, SparseBuffersElsewhere) {
  const auto model = std::make_shared<OddTensorsImpl>(), replica = std::make_shared<OddTensorsImpl>();
  internal::Replicas replicas(model, at::kCPU, {{replica, at::kCPU}}, /*share=*/false);
  for (int step = 0; step < 2; ++step) {
    model->edges.mul_(2);
    model->weight.data().mul_(2);
    replicas.Follow();
    EXPECT_TRUE(replica->forward(Batch(step)).equal(model->forward(Batch(step))));
  }
}

/// Changes what it is given, by a parameter.
struct InPlaceImpl : torch::nn::Module {
  InPlaceImpl() : scale(register_parameter("scale", at::full({6}, 2.))) {}
  at::Tensor forward(at::Tensor x) { return x.mul_(scale).add_(1); }
  at::Tensor scale;
};

TEST(DataParallelModules, AForwardThatChangesItsInputInPlace) {
  for (const size_t replicas : {2, 3}) {
    ExpectTrainsAsAlone<InPlaceImpl>(replicas,
                                     [](auto& module, int step) { return module.forward(Batch(step).clone()); });
  }
}

/// Changes its input in place before a layer keeps it for backward.
struct PrepareImpl : MlpImpl {
  at::Tensor forward(at::Tensor x) { return MlpImpl::forward(x.div_(2)); }
};

TEST(DataParallelModules, AnInputThatIsPreparedInPlace) {
  for (const size_t replicas : {2, 3}) {
    ExpectTrainsAsAlone<PrepareImpl>(replicas,
                                     [](auto& module, int step) { return module.forward(Batch(step).clone()); });
  }
}

TEST(DataParallelModules, AnInputThatIsChangedInPlaceCountsAsChangedForTheCaller) {
  DataParallel<PrepareImpl> parallel(std::make_shared<PrepareImpl>(), Cpus(2), Another<PrepareImpl>());
  const at::Tensor x = at::ones({4, 6}), w = at::ones({6}).requires_grad_();
  const at::Tensor product = x * w;
  parallel.forward(x);
  EXPECT_TRUE(x.equal(at::full({4, 6}, 0.5)));
  ExpectError([&] { product.sum().backward(); }, {"modified by an inplace operation"});
  DataParallel<MlpImpl> plain(std::make_shared<MlpImpl>(), Cpus(2), Another<MlpImpl>());
  const int64_t version = x._version();
  plain.forward(x);
  EXPECT_EQ(x._version(), version);
}

/// Looks at its own parameters, and takes a derivative within forward.
struct PenaltyImpl : MlpImpl {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor in = x.detach().to(parameters().front().scalar_type()).requires_grad_();
    const at::Tensor out = MlpImpl::forward(in);
    const at::Tensor slope =
        torch::autograd::grad({out.tanh().sum()}, {in}, {}, std::nullopt, /*create_graph=*/true)[0];
    const at::Tensor of_weight =
        torch::autograd::grad({out.sum()}, {a->weight}, {}, std::nullopt, /*create_graph=*/true)[0];
    return out + slope.square().sum(1, true) + 0 * of_weight.sum();
  }
};

TEST(DataParallelModules, DerivativesWithinForward) {
  for (const size_t replicas : {2, 3}) {
    ExpectTrainsAsAlone<PenaltyImpl>(replicas, [](auto& module, int step) { return module.forward(Batch(step)); });
  }
}

/// Goes backward itself.
struct BackwardImpl : MlpImpl {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor loss = MlpImpl::forward(x).square().sum();
    loss.backward();
    return loss.detach();
  }
};

TEST(DataParallelModules, BackwardWithinForwardReachesTheModule) {
  for (const size_t replicas : {2, 3}) {
    auto [single, model] = Twins<BackwardImpl>();
    DataParallel<BackwardImpl> parallel(model, Cpus(replicas), Another<BackwardImpl>());
    for (int step = 0; step < 3; ++step) {  // accumulates
      parallel.forward(Batch(step));
      single->forward(Batch(step));
      ExpectSameGradients(*single, *model, 1e-3, 1e-5);
    }
  }
}

TEST(DataParallelModules, NestedDataParallel) {
  auto [single, model] = Twins<MlpImpl>();
  using Inner = DataParallel<MlpImpl>;
  const auto inner = [](std::shared_ptr<MlpImpl> module) {
    return std::make_shared<Inner>(std::move(module), Cpus(2), Another<MlpImpl>());
  };
  const auto make = [&](at::Device) { return inner(std::make_shared<MlpImpl>()); };
  struct Outer : torch::nn::Module {
    explicit Outer(std::shared_ptr<Inner> in) : net(register_module("net", std::move(in))) {}
    at::Tensor forward(const at::Tensor& x) { return net->forward(x); }
    std::shared_ptr<Inner> net;
  };
  DataParallel<Outer> parallel(std::make_shared<Outer>(inner(model)), Cpus(2),
                               [&](at::Device device) { return std::make_shared<Outer>(make(device)); });
  for (int step = 0; step < 3; ++step) {
    model->zero_grad();
    single->zero_grad();
    const at::Tensor out = parallel.forward(Batch(step)), expected = single->forward(Batch(step));
    EXPECT_TRUE(at::allclose(out, expected, 1e-4, 1e-5));
    out.square().sum().backward();
    expected.square().sum().backward();
    ExpectSameGradients(*single, *model, 1e-3, 1e-5);
    const at::NoGradGuard no_grad;
    for (auto* net : {model.get(), single.get()}) {
      for (auto& p : net->parameters()) p.add_(p.grad(), -0.01);
    }
  }
}

TEST(DataParallelModules, ParametersOfAnotherShapeAreFollowed) {
  for (const size_t replicas : {2, 3}) {
    auto [single, model] = Twins<MlpImpl>();
    DataParallel<MlpImpl> parallel(model, Cpus(replicas), Another<MlpImpl>());
    const at::Tensor x = Batch(0);
    parallel.forward(x).sum().backward();
    for (auto* net : {model.get(), single.get()}) {  // more outputs, as for new classes
      net->zero_grad();
      net->b->weight.set_data(at::ones({5, 16}));
      net->b->bias.set_data(at::zeros({5}));
    }
    const at::Tensor out = parallel.forward(x), expected = single->forward(x);
    EXPECT_TRUE(at::allclose(out, expected));
    out.square().sum().backward();
    expected.square().sum().backward();
    ExpectSameGradients(*single, *model, 1e-3, 1e-5);
  }
}

TEST(DataParallelModules, ToggledFrozenLoadedAndConvertedBetweenSteps) {
  for (const size_t replicas : {2, 3}) {
    auto [single, model] = Twins<MlpImpl>();
    DataParallel<MlpImpl> parallel(model, Cpus(replicas), Another<MlpImpl>());
    const std::vector<std::function<void(MlpImpl&)>> changes = {
        [](MlpImpl& net) { net.a->weight.set_requires_grad(false); },
        [](MlpImpl& net) { net.a->bias.set_requires_grad(false); },
        [](MlpImpl& net) { net.a->weight.set_requires_grad(true); },
        [](MlpImpl& net) { net.to(at::kDouble); },
        [](MlpImpl& net) {
          const at::NoGradGuard no_grad;
          net.b->weight.copy_(at::ones({3, 16}));
        },
        [](MlpImpl& net) {
          net.b->weight.set_data(at::full({3, 16}, 0.5, at::kDouble));
        },
        [](MlpImpl& net) { net.to(at::kFloat); },
        [](MlpImpl& net) {
          net.a->weight.set_data(at::full({6, 16}, 0.25).t());
        },
        [](MlpImpl& net) { net.a->bias.set_requires_grad(true); },
    };
    std::vector<at::Tensor> outputs, expected;  // all graphs live on
    for (const auto& change : changes) {
      for (auto* net : {model.get(), single.get()}) {
        change(*net);
        net->zero_grad();
      }
      const at::Tensor x = Batch(0).to(single->a->weight.scalar_type());
      outputs.push_back(parallel.forward(x));
      expected.push_back(single->forward(x));
      EXPECT_TRUE(at::allclose(outputs.back(), expected.back()));
      for (int again = 0; again < 2; ++again) {
        outputs.back().square().sum().backward({}, /*retain_graph=*/true);
        expected.back().square().sum().backward({}, /*retain_graph=*/true);
        ExpectSameGradients(*single, *model, 1e-3, 1e-5);
      }
    }
  }
}

TEST(DataParallelModules, MadeAndUsedInInferenceMode) {
  const c10::InferenceMode inference;
  torch::nn::Sequential model(torch::nn::Linear(6, 4), torch::nn::ReLU());
  DataParallel parallel(model, Cpus(3));
  for (int step = 0; step < 2; ++step) {
    EXPECT_TRUE(at::allclose(parallel.forward(Batch(step)), model->forward(Batch(step))));
    model[0]->as<torch::nn::Linear>()->weight.mul_(2);
  }
}

/// Any number of LibTorch's threads, which may change from step to step.
TEST(DataParallelModules, NumbersOfThreads) {
  const int before = at::get_num_threads();
  auto [single, model] = Twins<MlpImpl>();
  for (const size_t replicas : {2, 3, 5}) {
    DataParallel<MlpImpl> parallel(model, Cpus(replicas), Another<MlpImpl>());
    for (const int threads : {1, 2, 7, 3, 16, 1}) {
      at::set_num_threads(threads);
      model->zero_grad();
      single->zero_grad();
      parallel.forward(Batch(0)).square().sum().backward();
      single->forward(Batch(0)).square().sum().backward();
      ExpectSameGradients(*single, *model, 1e-3, 1e-5);
      EXPECT_EQ(at::get_num_threads(), threads);
    }
  }
  at::set_num_threads(before);
}

TEST(DataParallelModules, CalledFromOtherThreadsAndParallelRegions) {
  auto [single, model] = Twins<MlpImpl>();
  const at::Tensor expected = single->forward(Batch(0));
  const auto check = [&](DataParallel<MlpImpl>& parallel) {
    EXPECT_TRUE(at::allclose(parallel.forward(Batch(0)), expected, 1e-4, 1e-5));
    parallel.forward(Batch(0)).sum().backward();
  };
  DataParallel<MlpImpl> first(model, Cpus(3), Another<MlpImpl>());
  for (int i = 0; i < 3; ++i) std::thread([&] { check(first); }).join();
  std::vector<std::unique_ptr<DataParallel<MlpImpl>>> all;
  for (int i = 0; i < 4; ++i) {
    const auto [copy, other] = Twins<MlpImpl>();
    all.push_back(std::make_unique<DataParallel<MlpImpl>>(copy, Cpus(3), Another<MlpImpl>()));
  }
  const at::Tensor x = Batch(0);
  std::atomic<int> right{0};
#pragma omp parallel for num_threads(4)
  for (int i = 0; i < 4; ++i) right += at::allclose(all[i]->forward(x), expected, 1e-4, 1e-5) ? 1 : 0;
  EXPECT_EQ(right, 4);
  check(first);
}

/// What a call of forward had set is gone from LibTorch's threads afterwards, also when it threw.
TEST(DataParallelModules, LibTorchsThreadsStayAsTheyWere) {
  struct Bad : MlpImpl {
    at::Tensor forward(const at::Tensor& x) {
      if (x.size(1) != 6) throw std::runtime_error("narrow");
      return MlpImpl::forward(x);
    }
  };
  DataParallel<Bad> parallel(std::make_shared<Bad>(), Cpus(2), Another<Bad>());
  {
    const at::NoGradGuard no_grad;
    parallel.forward(at::ones({2, 6}));
    ExpectError([&] { parallel.forward(at::ones({2, 5})); }, {"replica 0 of 2, on cpu: narrow"});
    at::autocast::set_autocast_cache_enabled(false);
    const c10::InferenceMode inference;
    parallel.forward(at::ones({2, 6}));
    at::autocast::set_autocast_cache_enabled(true);
  }
  std::atomic<int> wrong{0};
#pragma omp parallel num_threads(at::get_num_threads())
  if (!c10::GradMode::is_enabled() || c10::InferenceMode::is_enabled() || !at::autocast::is_autocast_cache_enabled()) {
    ++wrong;
  }
  EXPECT_EQ(wrong, 0);
}

/// Calls the wrapper that it is in.
TEST(DataParallelModules, AForwardWithinAForwardIsRefused) {
  struct Again : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return outer == nullptr ? x : outer->forward(x); }
    DataParallel<Again>* outer = nullptr;
  };
  const auto model = std::make_shared<Again>();
  const int before = at::get_num_threads();
  for (const int threads : {2, 8}) {
    at::set_num_threads(threads);
    DataParallel<Again> parallel(model, Cpus(2), Another<Again>());
    model->outer = &parallel;
    ExpectError([&] { parallel.forward(at::ones({4})); }, {"a forward is running already"});
    model->outer = nullptr;
    EXPECT_TRUE(parallel.forward(at::ones({4})).equal(at::ones({4})));
  }
  at::set_num_threads(before);
}

}  // namespace
}  // namespace lockstep
