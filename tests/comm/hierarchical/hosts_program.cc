// One rank of a run on several hosts; the tests start it by hand in network namespaces.
//
//   hosts_program MODE BACKEND TIMEOUT_MS [INIT_METHOD]
//
//   join         makes the group and says over what
//   collectives  every operation, compared with Gloo over all ranks and between the ranks
//   train        a small model; says which samples it saw, and the printer says what became of the parameters
//   loop         all-reduces until one fails; then the error
//   circle       passes a tensor on from rank to rank until that fails; then the error

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "lockstep/base/error_text.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/comm/definedness.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/samplers/distributed_sampler.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

void Say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

at::Tensor Values(int rank, int64_t n, at::ScalarType dtype) {
  at::Tensor t = at::empty({n}, at::kDouble);
  std::mt19937_64 random(rank + 17 * n);
  for (int64_t i = 0; i < n; ++i) t.data_ptr<double>()[i] = static_cast<double>(random() % 8);
  return t.to(dtype);
}

class Comparison {
 public:
  Comparison(ProcessGroupPtr group, ProcessGroupPtr gloo) : group_(std::move(group)), gloo_(std::move(gloo)) {}

  void Operations(at::ScalarType dtype, int64_t n) {
    what_ = std::string(c10::toString(dtype)) + ", " + std::to_string(n) + " elements";
    const int me = GetRank(group_), world = GetWorldSize(group_);
    const at::Tensor mine = Values(me, n, dtype);
    for (Reduction reduction : {c10d::ReduceOp::SUM, c10d::ReduceOp::AVG, c10d::ReduceOp::MAX, c10d::ReduceOp::BOR}) {
      if (!IsReductionDefined("hierarchical", reduction, dtype)) continue;
      Both("all-reduce", [&](const ProcessGroupPtr& group) {
        at::Tensor t = mine.clone();
        AllReduce(t, group, reduction);
        return t;
      });
      const int root = static_cast<int>(n) % world;
      Both("reduce", [&](const ProcessGroupPtr& group) {
        at::Tensor t = mine.clone();
        Reduce(t, group, root, reduction);
        return me == root ? t : mine;
      });
      if (n > 10000) continue;
      Both("reduce-scatter", [&](const ProcessGroupPtr& group) {
        at::Tensor t = at::empty({n}, dtype);
        ReduceScatter(t, Values(me, n * world, dtype), group, reduction);
        return t;
      });
    }
    for (int root = 0; root < world; ++root) {
      Both("broadcast", [&](const ProcessGroupPtr& group) {
        at::Tensor t = mine.clone();
        Broadcast(t, group, root);
        return t;
      });
    }
    const auto joined = [](std::vector<at::Tensor> tensors) { return at::cat(tensors); };
    Both("all-gather", [&](const ProcessGroupPtr& group) { return joined(AllGather(mine, group)); });
    Both("all-gather into one", [&](const ProcessGroupPtr& group) {
      at::Tensor t = at::empty({n * world}, dtype);
      AllGatherInto(t, mine, group);
      return t;
    });
    Both("gather", [&](const ProcessGroupPtr& group) {
      std::vector<at::Tensor> all = Gather(mine, group, world - 1);
      return all.empty() ? mine : joined(all);
    });
    Both("scatter", [&](const ProcessGroupPtr& group) {
      std::vector<at::Tensor> parts;
      for (int r = 0; r < world && me == 0; ++r) parts.push_back(Values(r + 100, n, dtype));
      at::Tensor t = at::empty({n}, dtype);
      Scatter(t, parts, group, 0);
      return t;
    });
    Both("all-to-all", [&](const ProcessGroupPtr& group) {
      at::Tensor t = at::empty({n * world}, dtype);
      AllToAll(t, Values(me, n * world, dtype), group);
      return t;
    });
    Both("send and receive", [&](const ProcessGroupPtr& group) {
      at::Tensor t = at::empty({n}, dtype);
      const WorkPtr sent = SendAsync(mine, (me + 1) % world, group, 3);
      Receive(t, (me + world - 1) % world, group, 3);
      sent->wait();
      return t;
    });
  }

  /// A mean of numbers whose sum is out of their type's range.
  void MeansOfLargeHalves() {
    const at::Tensor large = at::full({5}, 40000, at::kHalf);
    const auto check = [&](const char* operation, const at::Tensor& mean) {
      TORCH_CHECK(at::allclose(mean, large, 1e-2), operation, " of halves: ", mean[0].item<double>());
    };
    at::Tensor all = large.clone(), at_root = large.clone(), scattered = at::empty_like(large);
    AllReduce(all, group_, c10d::ReduceOp::AVG);
    check("all-reduce", all);
    Reduce(at_root, group_, 0, c10d::ReduceOp::AVG);
    if (GetRank(group_) == 0) check("reduce", at_root);
    at::Tensor ranks_here = at::scalar_tensor(ReadEnvironment().value().local_world_size, at::kLong),
               most = ranks_here.clone();
    AllReduce(most, group_, c10d::ReduceOp::MAX);
    if (AnyRank(!ranks_here.equal(most), group_)) return;  // then reduce-scatter is Gloo's, which divides a sum
    ReduceScatter(scattered, large.repeat({GetWorldSize(group_)}), group_, c10d::ReduceOp::AVG);
    check("reduce-scatter", scattered);
  }

  /// The sum of arbitrary numbers, which depends on the order of addition: all ranks have the same bits.
  void SameBits(bool shared) {
    const auto backend = group_->getBackend(at::kCPU);
    for (int64_t n : {5, 1000, 700001, 3000000}) {
      at::Tensor t = at::empty({n}, at::kFloat);
      if (shared && backend->supportsTensorAlloc(0)) t = backend->allocateTensor(n, at::kFloat);
      std::mt19937 random(GetRank(group_));
      for (int64_t i = 0; i < n; ++i) t.data_ptr<float>()[i] = static_cast<float>(random()) * 1e-9f;
      at::Tensor exact = t.to(at::kDouble);
      AllReduce(exact, gloo_);
      AllReduce(t, group_);
      TORCH_CHECK(at::allclose(t.to(at::kDouble), exact, 1e-5, 1e-5), "a wrong sum of ", n);
      for (const at::Tensor& other : AllGather(t, gloo_)) {
        TORCH_CHECK(other.view(at::kInt).equal(t.view(at::kInt)), "ranks have different bits of ", n);
      }
    }
  }

  /// Many at the same time, waited for backwards, by wait and by future.
  void Asynchronous() {
    std::vector<at::Tensor> tensors;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(at::full({i % 3 == 0 ? 700000 : 10}, i + GetRank(group_)));
      works.push_back(i % 4 == 1 ? BroadcastAsync(tensors.back(), group_, i % GetWorldSize(group_))
                                 : AllReduceAsync(tensors.back(), group_));
    }
    const int world = GetWorldSize(group_);
    for (int i = 19; i >= 0; --i) {
      if (i % 2 == 0) {
        works[i]->getFuture()->waitAndThrow();
      } else {
        works[i]->wait();
      }
      const int wanted = i % 4 == 1 ? i + i % world : world * i + world * (world - 1) / 2;
      TORCH_CHECK(tensors[i].eq(wanted).all().item<bool>(), "asynchronous collective ", i);
    }
    Barrier(group_);
  }

 private:
  template <typename Call>
  void Both(const char* operation, const Call& call) {
    const at::Tensor ours = call(group_), theirs = call(gloo_);
    const bool close = c10::isIntegralType(ours.scalar_type(), true)
                           ? ours.equal(theirs)
                           : at::allclose(at::view_as_real(ours.to(at::kComplexDouble)),
                                          at::view_as_real(theirs.to(at::kComplexDouble)), 1e-2, 1e-6);
    TORCH_CHECK(close, operation, " of ", what_);
  }

  const ProcessGroupPtr group_, gloo_;
  std::string what_;
};

std::vector<int> All(const ProcessGroupPtr& group) {
  std::vector<int> ranks;
  for (int r = 0; r < GetWorldSize(group); ++r) ranks.push_back(r);
  return ranks;
}

void Collectives(const ProcessGroupPtr& group) {
  ProcessGroupOptions options;
  options.backend = "gloo";
  Comparison comparison(group, NewSubGroup(group, All(group), options).value());
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kByte, at::kBool}) {
    for (int64_t n : {0, 1, 1001}) comparison.Operations(dtype, n);
  }
  comparison.Operations(at::kComplexFloat, 1001);
  comparison.Operations(at::kFloat, 1500000);
  if (group->getBackend(at::kCPU)->getBackendName() == "hierarchical") comparison.MeansOfLargeHalves();
  comparison.SameBits(/*shared=*/false);
  comparison.SameBits(/*shared=*/true);
  comparison.Asynchronous();
}

void Train(const ProcessGroupPtr& group) {
  constexpr int kSamples = 128, kBatch = 8;
  torch::manual_seed(5);
  const at::Tensor data = at::randn({kSamples, 20}), target = at::randint(0, 4, {kSamples}, at::kLong);
  torch::nn::Linear model(20, 4);
  DistributedDataParallel<torch::nn::LinearImpl> ddp(model, group);
  torch::optim::SGD optimizer(ddp.parameters(), 0.1);
  DistributedSampler sampler(kSamples, GetWorldSize(group), GetRank(group));
  for (size_t epoch = 0; epoch < 2; ++epoch) {
    sampler.set_epoch(epoch);
    sampler.reset();
    std::string seen = "samples";
    while (const auto batch = sampler.next(kBatch)) {
      std::vector<int64_t> places(batch->begin(), batch->end());
      for (int64_t place : places) seen += " " + std::to_string(place);
      const at::Tensor index = at::tensor(places);
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(ddp.forward(data.index_select(0, index)), target.index_select(0, index))
          .backward();
      optimizer.step();
    }
    Say(seen);
  }
  if (GetRank(group) != 0) return;
  std::string text = "parameters";
  for (const at::Tensor& parameter : model->parameters()) {
    for (int64_t i = 0; i < parameter.numel(); ++i) {
      char number[32];
      std::snprintf(number, sizeof(number), " %.9g", parameter.detach().view({-1})[i].item<double>());
      text += number;
    }
  }
  Say(text);
}

void Loop(const ProcessGroupPtr& group) {
  at::Tensor t = at::ones({100000});
  for (int i = 0;; ++i) {
    AllReduce(t.fill_(1), group);
    if (i == 20) Say("going");
  }
}

void Circle(const ProcessGroupPtr& group) {
  const int me = GetRank(group), world = GetWorldSize(group);
  at::Tensor t = at::ones({1000});
  for (int i = 0;; ++i) {
    if (me == 0) Send(t, 1, group);
    Receive(t, (me + world - 1) % world, group);
    if (me != 0) Send(t, (me + 1) % world, group);
    if (i == 20) Say("going");
  }
}

int Main(const std::string& mode, const char* backend, int timeout_ms, const char* init_method) {
  ProcessGroupOptions options;
  options.init_method = init_method;
  options.backend = backend;
  options.timeout = std::chrono::milliseconds(timeout_ms);
  const auto joined = InitProcessGroup(options);
  if (!joined.ok()) {
    Say("error " + std::string(joined.status().message()));
    return 1;
  }
  ProcessGroupPtr group = *joined;
  const auto env = ReadEnvironment().value();
  Say("rank " + std::to_string(GetRank(group)) + " local " + std::to_string(env.local_rank) + " over " +
      group->getBackend(at::kCPU)->getBackendName());
  try {
    if (mode == "collectives") Collectives(group);
    if (mode == "train") Train(group);
    if (mode == "loop") Loop(group);
    if (mode == "circle") Circle(group);
    DestroyProcessGroup(group);
  } catch (const std::exception& e) {
    Say("error " + FirstLine(e.what()));
    std::fflush(stdout);
    _exit(3);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc != 4 && argc != 5) return 2;
  return lockstep::Main(argv[1], argv[2], std::atoi(argv[3]), argc == 5 ? argv[4] : "env://");
}
