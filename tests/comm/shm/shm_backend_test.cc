#include "lockstep/comm/shm/shm_backend.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/util/Exception.h>
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/collectives.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {
namespace {

const ProcessGroupPtr& World() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}
int Rank() { return GetRank(World()); }
int Size() { return GetWorldSize(World()); }

std::vector<int> AllRanks() {
  std::vector<int> ranks;
  for (int rank = 0; rank < Size(); ++rank) ranks.push_back(rank);
  return ranks;
}

ProcessGroupPtr NewGroup(const std::string& backend, ProcessGroupOptions options = {}) {
  options.backend = backend;
  return NewSubGroup(World(), AllRanks(), options).value();
}

c10::intrusive_ptr<c10d::Backend> BackendOf(const ProcessGroupPtr& group) { return group->getBackend(at::kCPU); }

at::Tensor Shared(const ProcessGroupPtr& group, const at::Tensor& values) {
  at::Tensor t = BackendOf(group)->allocateTensor(values.numel(), values.options());
  return t.copy_(values.view({-1}));
}

at::Tensor Random(int64_t n, at::ScalarType dtype, int seed) {
  at::Tensor t = at::empty({n}, at::kDouble);
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(-100, 100);
  for (int64_t i = 0; i < n; ++i) t.data_ptr<double>()[i] = uniform(random);
  return t.to(dtype);
}

bool SameBits(const at::Tensor& a, const at::Tensor& b) { return a.view(at::kByte).equal(b.view(at::kByte)); }

/// The texts after "shm: " of what `call` throws.
template <typename Call>
std::string ErrorOf(const Call& call) {
  try {
    call();
  } catch (const c10::DistBackendError& e) {
    return e.what_without_backtrace();
  }
  return "";
}

int CountFiles() {
  int count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

int CountMappings() {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("/memfd:lockstep") != std::string::npos;
  return count;
}

TEST(ShmBackend, SharedStagedAndMixedGiveTheSameBits) {
  for (at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kComplexFloat}) {
    for (int64_t n : {1, 63, 513, 4097, 100003, 700001}) {
      const at::Tensor mine = Random(n, dtype, Rank());
      at::Tensor staged = mine.clone(), shared = Shared(World(), mine);
      at::Tensor mixed = Rank() == 0 ? Shared(World(), mine) : mine.clone();
      for (at::Tensor t : {staged, shared, mixed}) AllReduce(t, World());
      EXPECT_TRUE(SameBits(staged, shared)) << dtype << " " << n;
      EXPECT_TRUE(SameBits(staged, mixed)) << dtype << " " << n;
      const auto everyone = AllGather(staged, World());
      for (const at::Tensor& other : everyone) EXPECT_TRUE(SameBits(staged, other)) << "all ranks have the same bits";
      at::Tensor expected = at::zeros({n}, c10::isComplexType(dtype) ? at::kComplexDouble : at::kDouble);
      for (int r = 0; r < Size(); ++r) expected += Random(n, dtype, r);
      const double tolerance = dtype == at::kBFloat16 ? 2.0 : dtype == at::kHalf ? 0.3 : 1e-3;
      EXPECT_TRUE(at::allclose(staged.to(expected.scalar_type()), expected, 1e-5, tolerance)) << dtype << " " << n;
    }
  }
}

TEST(ShmBackend, EveryOperationInSharedMemory) {
  for (int64_t n : {3, 5000, 100000}) {
    const at::Tensor mine = Shared(World(), at::full({n}, Rank() + 1.0));
    at::Tensor t = Shared(World(), mine);
    Broadcast(t, World(), Size() - 1);
    EXPECT_TRUE(t.eq(Size()).all().item<bool>());
    t = Shared(World(), mine);
    Reduce(t, World(), Size() - 1);
    if (Rank() == Size() - 1) {
      EXPECT_TRUE(t.eq(Size() * (Size() + 1) / 2.0).all().item<bool>());
    } else {
      EXPECT_TRUE(t.equal(mine));
    }
    at::Tensor all = BackendOf(World())->allocateTensor(n * Size(), at::kFloat);
    AllGatherInto(all, mine, World());
    for (int r = 0; r < Size(); ++r) EXPECT_TRUE(all.narrow(0, r * n, n).eq(r + 1.0).all().item<bool>());
    // In place: my part of the output is the input.
    all.zero_();
    all.narrow(0, Rank() * n, n).fill_(Rank() + 1.0);
    AllGatherInto(all, all.narrow(0, Rank() * n, n), World());
    for (int r = 0; r < Size(); ++r) EXPECT_TRUE(all.narrow(0, r * n, n).eq(r + 1.0).all().item<bool>());
    at::Tensor part = all.narrow(0, Rank() * n, n);
    ReduceScatter(part, all, World());
    EXPECT_TRUE(part.eq(Size() * (Rank() + 1.0)).all().item<bool>());
    at::Tensor rows = BackendOf(World())->allocateTensor(n * Size(), at::kFloat);
    for (int q = 0; q < Size(); ++q) rows.narrow(0, q * n, n).fill_(Rank() * 10.0 + q);
    at::Tensor received = BackendOf(World())->allocateTensor(n * Size(), at::kFloat);
    AllToAll(received, rows, World());
    for (int r = 0; r < Size(); ++r) {
      EXPECT_TRUE(received.narrow(0, r * n, n).eq(r * 10.0 + Rank()).all().item<bool>());
    }
  }
}

TEST(ShmBackend, PartsOfSharedTensorsAndThoseOfAnotherGroup) {
  const auto other = NewGroup("shm");
  at::Tensor large = Shared(World(), at::full({50000}, Rank() + 1.0));
  at::Tensor part = large.narrow(0, 10001 + Rank(), 20000);  // at another place on each rank
  AllReduce(part, World());
  EXPECT_TRUE(part.eq(Size() * (Size() + 1) / 2.0).all().item<bool>());
  EXPECT_EQ(large[10000 + Rank()].item<float>(), Rank() + 1.0f);
  EXPECT_EQ(large[30001 + Rank()].item<float>(), Rank() + 1.0f);
  at::Tensor foreign = Shared(other, at::full({50000}, Rank() + 1.0));
  AllReduce(foreign, World(), c10d::ReduceOp::MAX);
  EXPECT_TRUE(foreign.eq(Size()).all().item<bool>());
}

TEST(ShmBackend, MemoryOfFreedTensorsGoesBackEverywhere) {
  const auto group = NewGroup("shm");
  const auto round = [&](int count) {
    std::vector<at::Tensor> tensors;
    for (int i = 0; i < count; ++i) {
      tensors.push_back(BackendOf(group)->allocateTensor(100000, at::kFloat).fill_(1));
      AllReduce(tensors.back(), group);
      EXPECT_EQ(tensors.back()[99999].item<float>(), Size());
    }
  };
  round(3);
  const int files = CountFiles(), mappings = CountMappings();
  for (int i = 0; i < 60; ++i) round(3);
  for (int i = 0; i < 5; ++i) round(1);  // the others hear of what was freed in the next collectives
  EXPECT_LE(CountMappings(), mappings + 3 * Size());
  EXPECT_LE(CountFiles(), files);
  // A tensor may outlive its group.
  at::Tensor last = BackendOf(group)->allocateTensor(10000, at::kFloat).fill_(3);
  const_cast<ProcessGroupPtr&>(group).reset();
  EXPECT_EQ(last[9999].item<float>(), 3);
}

TEST(ShmBackend, NothingIsLeftOfAGroup) {
  NewGroup("shm");
  Barrier(World());
  const int files = CountFiles(), mappings = CountMappings();
  for (int i = 0; i < 5; ++i) {
    auto group = NewGroup("shm");
    at::Tensor t = Shared(group, at::ones({10000}));
    AllReduce(t, group);
    WorkPtr never_waited_for = AllReduceAsync(at::ones({5}), group);
    Send(at::ones({3}), (Rank() + 1) % Size(), group);
    at::Tensor in = at::zeros({3});
    Receive(in, (Rank() + Size() - 1) % Size(), group);
  }
  EXPECT_EQ(CountFiles(), files);
  EXPECT_EQ(CountMappings(), mappings);
}

TEST(ShmBackend, WorksMayOutliveTheirGroup) {
  auto group = NewGroup("shm");
  const WorkPtr sum = AllReduceAsync(at::ones({3}), group);
  at::Tensor in = at::zeros({3});
  const WorkPtr send = SendAsync(at::ones({3}), (Rank() + 1) % Size(), group);
  const WorkPtr receive = ReceiveAsync(in, (Rank() + Size() - 1) % Size(), group);
  receive->wait();
  group.reset();  // runs what is left
  sum->wait();
  send->wait();
  receive->wait();
  sum->getFuture()->wait();
  send->getFuture()->wait();
  // A receive that nobody answers ends with its group, and not at its time limit.
  group = NewGroup("shm");
  const WorkPtr never = ReceiveAsync(in, (Rank() + 1) % Size(), group, 9);
  group.reset();
  EXPECT_NE(ErrorOf([&] { never->wait(); }).find("its group is gone"), std::string::npos);
}

TEST(ShmBackend, WhatHangsOnAFutureMayUseTheGroup) {
  const auto group = NewGroup("shm");
  for (bool through_future : {false, true}) {
    at::Tensor first = at::ones({3}), second = at::ones({3});
    const auto done = AllReduceAsync(first, group)
                          ->getFuture()
                          ->then(
                              [&](c10::ivalue::Future&) {
                                const WorkPtr next = AllReduceAsync(second, group);
                                through_future ? next->getFuture()->wait() : static_cast<void>(next->wait());
                                return c10::IValue(1);
                              },
                              c10::IntType::get());
    done->wait();
    EXPECT_EQ(second[0].item<float>(), Size());
  }
  // Likewise for messages.
  at::Tensor in = at::zeros({2}), again = at::zeros({2});
  const int next = (Rank() + 1) % Size(), last = (Rank() + Size() - 1) % Size();
  const WorkPtr receive = ReceiveAsync(in, last, group, 1);
  Send(at::full({2}, 5.0), next, group, 1);
  const auto done = receive->getFuture()->then(
      [&](c10::ivalue::Future&) {
        EXPECT_TRUE(receive->isSuccess());
        const WorkPtr send = SendAsync(in + 1, next, group, 2);
        ReceiveAsync(again, last, group, 2)->getFuture()->wait();
        send->wait();
        return c10::IValue(1);
      },
      c10::IntType::get());
  done->wait();
  EXPECT_EQ(again[1].item<float>(), 6);
}

TEST(ShmBackend, WhatIsTakenMayOverwriteWhatIsGiven) {
  for (int64_t n : {1000, 200000}) {
    for (bool shared : {false, true}) {
      at::Tensor t = at::empty({Size() * n});
      for (int q = 0; q < Size(); ++q) t.narrow(0, q * n, n).fill_(Rank() * 10.0 + q);
      if (shared) t = Shared(World(), t);
      AllToAll(t, t, World());
      for (int r = 0; r < Size(); ++r) {
        ASSERT_TRUE(t.narrow(0, r * n, n).eq(r * 10.0 + Rank()).all().item<bool>()) << n << shared;
      }
      // My input lies where somebody else's values go.
      t.fill_(Rank() + 1.0);
      AllGatherInto(t, t.narrow(0, (Rank() + 1) % Size() * n, n), World());
      for (int r = 0; r < Size(); ++r) ASSERT_TRUE(t.narrow(0, r * n, n).eq(r + 1.0).all().item<bool>()) << n << shared;
    }
  }
}

TEST(ShmBackend, CoalescedOnesHaveAllResults) {
  const auto backend = BackendOf(World());
  std::vector<at::Tensor> tensors = {at::full({3}, Rank() + 1.0), at::full({40000}, Rank() + 2.0)};
  const double n = Size(), sum = n * (n + 1) / 2;
  const auto work = backend->allreduce_coalesced(tensors);
  const auto future = work->getFuture();
  work->wait();
  EXPECT_EQ(tensors[0][2].item<double>(), sum);
  EXPECT_EQ(tensors[1][39999].item<double>(), sum + n);
  ASSERT_EQ(work->result().size(), 2u);
  future->wait();
  EXPECT_EQ(future->value().toTensorVector().size(), 2u);

  std::vector<at::Tensor> outputs = {at::zeros({Size() * 2}), at::zeros({Size() * 5})};
  std::vector<at::Tensor> inputs = {at::full({2}, Rank() * 1.0), at::full({5}, Rank() * 2.0)};
  backend->allgather_into_tensor_coalesced(outputs, inputs)->wait();
  EXPECT_EQ(outputs[1][Size() * 5 - 1].item<double>(), (Size() - 1) * 2.0);
  backend->reduce_scatter_tensor_coalesced(inputs, outputs)->wait();
  EXPECT_EQ(inputs[0][0].item<double>(), Rank() * n);
  EXPECT_EQ(inputs[1][4].item<double>(), Rank() * 2 * n);
  std::vector<std::vector<at::Tensor>> lists;
  for (int r = 0; r < Size(); ++r) lists.push_back({at::zeros({2}), at::zeros({5})});
  backend->allgather_coalesced(lists, inputs)->wait();
  EXPECT_EQ(lists[Size() - 1][1][0].item<double>(), (Size() - 1) * 2 * n);
  std::vector<at::Tensor> none;
  EXPECT_THROW(backend->allreduce_coalesced(none), c10::Error);
}

TEST(ShmBackend, AManyRanksErrorNamesTheFirst) {
  const auto group = NewGroup("shm");
  // Rank 0 fails by itself; the others hear of it from it, or from each other.
  std::string error;
  if (Rank() == 0) {
    BackendOf(group)->abort();
  } else {
    error = ErrorOf([&] { AllReduce(at::ones({3}), group); });
    EXPECT_NE(error.find("rank 0 gave up: aborted"), std::string::npos) << error;
    EXPECT_EQ(error.find("gave up"), error.rfind("gave up")) << error;
  }
  Barrier(World());
}

TEST(ShmBackend, RandomSequencesAgreeWithGloo) {
  const int count = std::getenv("LOCKSTEP_EXHAUSTIVE") != nullptr ? 1000 : 100;
  const auto gloo = NewGroup("gloo");
  std::mt19937 random(17);  // the same on all ranks
  const auto pick = [&](int n) { return static_cast<int>(random() % n); };
  std::vector<std::pair<at::Tensor, at::Tensor>> results;
  std::vector<WorkPtr> works;
  for (int i = 0; i < count; ++i) {
    const int64_t n = std::vector<int64_t>{0, 1, 17, 1000, 30000, 200000}[pick(6)];
    const at::ScalarType dtype = std::vector<at::ScalarType>{at::kFloat, at::kDouble, at::kInt, at::kLong}[pick(4)];
    const Reduction reduction = std::vector<Reduction>{c10d::ReduceOp::SUM, c10d::ReduceOp::MIN, c10d::ReduceOp::MAX,
                                                       c10d::ReduceOp::PRODUCT}[pick(4)];
    const int root = pick(Size()), operation = pick(7), memory = pick(2), wait = pick(3);
    // Small whole numbers: no rounding, so the order of the sum doesn't matter.
    at::Tensor mine = at::randint(0, 4, {n}).to(dtype) + (i + Rank()) % 3;
    at::Tensor a = memory == 0 ? mine.clone() : Shared(World(), mine), b = mine.clone();
    const at::Tensor parts = mine.repeat({Size()});
    at::Tensor out_a = at::zeros({n * Size()}, dtype), out_b = at::zeros({n * Size()}, dtype);
    const auto start = [&](const ProcessGroupPtr& group, at::Tensor& t, at::Tensor& out) -> WorkPtr {
      switch (operation) {
        case 0: return AllReduceAsync(t, group, reduction);
        case 1: return BroadcastAsync(t, group, root);
        case 2: return AllGatherIntoAsync(out, t, group);
        case 3: return ReduceScatterAsync(t, parts, group, reduction);
        case 4: return AllToAllAsync(out, parts, group);
        case 5:
          return GatherAsync(Rank() == root ? out.chunk(1)[0].view({Size(), n}).unbind(0) : std::vector<at::Tensor>(),
                             t, group, root);
        default:
          return ScatterAsync(t, Rank() == root ? parts.view({Size(), n}).unbind(0) : std::vector<at::Tensor>(), group,
                              root);
      }
    };
    works.push_back(start(World(), a, out_a));
    start(gloo, b, out_b)->wait();
    if (wait == 0) works.back()->wait();
    // Looked at when all is done; until then many are under way.
    results.emplace_back(b, a);
    results.emplace_back(out_b, out_a);
  }
  for (const WorkPtr& work : works) work->wait();
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_TRUE(results[i].first.equal(results[i].second)) << "collective " << i / 2;
  }
}

TEST(ShmBackend, TenThousandInARow) {
  at::Tensor t = at::ones({256}), shared = Shared(World(), at::ones({1024}));
  for (int i = 0; i < 10000; ++i) {
    at::Tensor& used = i % 2 == 0 ? t : shared;
    used.fill_(i % 100 + Rank());
    AllReduce(used, World());
    ASSERT_EQ(used[i % 256].item<float>(), Size() * (i % 100) + Size() * (Size() - 1) / 2) << i;
  }
}

TEST(ShmBackend, SubGroupsEachDrivenByAThread) {
  // All ranks, the even ones, the odd ones, and neighbours: each rank is in several.
  std::vector<std::vector<int>> lists = {AllRanks(), {}, {}};
  for (int r = 0; r < Size(); ++r) lists[1 + r % 2].push_back(r);
  for (int r = 0; r + 1 < Size(); ++r) lists.push_back({r + 1, r});
  std::vector<std::thread> threads;
  for (const auto& list : lists) {
    if (std::find(list.begin(), list.end(), Rank()) == list.end()) continue;
    const auto group = NewSubGroup(World(), list).value();
    threads.emplace_back([group, list] {
      const int n = static_cast<int>(list.size());
      ASSERT_EQ(GetWorldSize(group), n);
      ASSERT_EQ(list[GetRank(group)], Rank());
      for (int i = 0; i < 300; ++i) {
        at::Tensor t = at::full({1 + i * 100}, GetRank(group) + i * 1.0);
        AllReduce(t, group);
        ASSERT_TRUE(t.eq(i * n + n * (n - 1) / 2.0).all().item<bool>()) << i;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ShmBackend, ManyThreadsWaitForWorksOfOneGroup) {
  const auto group = NewGroup("shm");
  std::vector<at::Tensor> tensors;
  std::vector<WorkPtr> works;
  for (int i = 0; i < 64; ++i) {
    tensors.push_back(at::full({i * 37 + 1}, Rank() + 1.0));
    works.push_back(AllReduceAsync(tensors[i], group));
  }
  std::vector<std::thread> threads;
  for (int k = 0; k < 4; ++k) {
    threads.emplace_back([&, k] {
      for (size_t i = k; i < works.size(); i += 4) works[works.size() - 1 - i]->wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& t : tensors) EXPECT_TRUE(t.eq(Size() * (Size() + 1) / 2.0).all().item<bool>());
}

TEST(ShmBackend, DifferentCallsAreNamed) {
  {
    const auto group = NewGroup("shm");
    at::Tensor t = at::ones({Rank() == 1 ? 4 : 3});
    const std::string error = ErrorOf([&] { AllReduce(t, group); });
    EXPECT_NE(error.find("don't call the same"), std::string::npos) << error;
    EXPECT_NE(error.find("ALLREDUCE #1 (sum of Float [3])"), std::string::npos) << error;
    EXPECT_NE(error.find("ALLREDUCE #1 (sum of Float [4])"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 1"), std::string::npos) << error;
    const std::string after = ErrorOf([&] { AllReduce(at::ones({3}), group); });
    EXPECT_NE(after.find("the group has failed before"), std::string::npos) << after;
  }
  {
    const auto group = NewGroup("shm");
    const std::string error = ErrorOf([&] {
      if (Rank() == 1) {
        Broadcast(at::ones({3}, at::kDouble), group);
      } else {
        AllReduce(at::ones({3}), group);
      }
    });
    EXPECT_NE(error.find("rank 1 calls BROADCAST #1 (Double [3], root 0)"), std::string::npos) << error;
  }
  {
    // Another shape of as many elements is an error only when shapes are checked.
    const auto lenient = NewGroup("shm");
    at::Tensor t = Rank() == 1 ? at::ones({2, 3}) : at::ones({3, 2});
    AllReduce(t, lenient);
    ProcessGroupOptions options;
    options.check_collectives = true;
    const auto strict = NewGroup("shm", options);
    const std::string error = ErrorOf([&] { AllReduce(t, strict); });
    EXPECT_NE(error.find("[2, 3]"), std::string::npos) << error;
    EXPECT_NE(error.find("[3, 2]"), std::string::npos) << error;
  }
  {
    const auto group = NewGroup("shm");
    std::vector<int64_t> give(Size(), 1), take(Size(), 1);
    if (Rank() == 0) give[1] = 2;
    at::Tensor in = at::ones({Rank() == 0 ? Size() + 1 : Size()}), out = at::ones({Size()});
    const std::string error = ErrorOf([&] { AllToAll(out, in, group, take, give); });
    const bool told = error.find("rank 0 gives rank 1 8 bytes, which takes 4") != std::string::npos;
    EXPECT_TRUE(Rank() != 1 || told) << error;
  }
}

TEST(ShmBackend, ATimeoutNamesWhoDidNotCome) {
  ProcessGroupOptions options;
  options.timeout = std::chrono::milliseconds(300);
  const auto group = NewGroup("shm", options);
  Barrier(group);
  std::string error;
  if (Rank() != 1) error = ErrorOf([&] { AllReduce(at::ones({5}), group); });
  Barrier(World());
  if (Rank() == 1) {
    // Rank 1 comes too late, and hears that the others have given up.
    const std::string late = ErrorOf([&] { AllReduce(at::ones({5}), group); });
    EXPECT_NE(late.find("gave up: shm: ALLREDUCE #2 (sum of Float [5]) timed out"), std::string::npos) << late;
  } else if (Size() == 2 || error.find("gave up") == std::string::npos) {
    EXPECT_NE(error.find("ALLREDUCE #2 (sum of Float [5]) timed out after 300 ms: these ranks did not come: 1"),
              std::string::npos)
        << error;
  }
  const auto p2p = NewGroup("shm", options);
  if (Rank() == 0) {
    const std::string alone = ErrorOf([&] { Receive(at::ones({2}), 1, p2p, 5); });
    EXPECT_NE(alone.find("RECV from rank 1 (tag 5, Float, 2 elements) timed out after 300 ms"), std::string::npos)
        << alone;
  }
  Barrier(World());
}

TEST(ShmBackend, AWaitWithALimitLeavesTheCollectiveAlone) {
  at::Tensor t = at::ones({3});
  if (Rank() == 0) {
    const WorkPtr work = AllReduceAsync(t, World());
    EXPECT_NE(ErrorOf([&] { work->wait(std::chrono::milliseconds(50)); }).find("wait timed out after 50 ms"),
              std::string::npos);
    Send(at::ones({1}), 1, World());  // now rank 1 may come
    work->wait();
  } else {
    at::Tensor go = at::zeros({1});
    if (Rank() == 1) Receive(go, 0, World());
    AllReduce(t, World());
  }
  EXPECT_EQ(t[0].item<float>(), Size());
}

TEST(ShmBackend, AMessageOfAnotherSizeIsNamed) {
  const auto group = NewGroup("shm");
  if (Rank() == 0) {
    Send(at::ones({4}), 1, group);
    Send(at::full({2}, 7.0), 1, group);
  } else if (Rank() == 1) {
    const std::string error = ErrorOf([&] { Receive(at::ones({3}), 0, group); });
    EXPECT_NE(error.find("RECV from rank 0"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 0 sent 16 bytes of Float"), std::string::npos) << error;
    at::Tensor next = at::zeros({2});
    Receive(next, 0, group);
    EXPECT_EQ(next[1].item<float>(), 7) << "the next message is whole";
  }
  Barrier(World());
}

TEST(ShmBackend, MessagesDoNotOvertake) {
  // Of all sizes, some larger than what lies between two ranks, with receives that come early, late and in between.
  const auto group = NewGroup("shm");
  const int next = (Rank() + 1) % Size(), last = (Rank() + Size() - 1) % Size();
  std::mt19937 random(5);
  std::vector<int64_t> sizes;
  for (int i = 0; i < 300; ++i) sizes.push_back(random() % 3 == 0 ? 1 + random() % 40000 : 1 + random() % 20);
  std::vector<WorkPtr> sends;
  std::vector<at::Tensor> sent;
  for (int i = 0; i < 300; ++i) sent.push_back(at::full({sizes[i]}, i * 1.0));
  std::vector<WorkPtr> receives;
  std::vector<at::Tensor> received;
  for (int i = 0; i < 300; ++i) {
    sends.push_back(SendAsync(sent[i], next, group));
    if (i % 7 != Rank() % 7) continue;
    while (received.size() <= static_cast<size_t>(i)) {
      received.push_back(at::zeros({sizes[received.size()]}));
      receives.push_back(ReceiveAsync(received.back(), last, group));
    }
    if (i % 3 == 0) receives.back()->wait();
  }
  while (received.size() < 300) {
    received.push_back(at::zeros({sizes[received.size()]}));
    receives.push_back(ReceiveAsync(received.back(), last, group));
  }
  for (const WorkPtr& work : receives) work->wait();
  for (const WorkPtr& work : sends) work->wait();
  for (int i = 0; i < 300; ++i) ASSERT_TRUE(received[i].eq(i).all().item<bool>()) << i;
}

TEST(ShmBackend, AReceiveThatFailedHalfwayLeavesItsTensorAndTheNextMessageAlone) {
  ProcessGroupOptions options;
  options.timeout = std::chrono::seconds(20);
  const auto group = NewGroup("shm", options);
  Barrier(World());  // the store is rank 0's, which stops: nobody may still be making the group
  if (Rank() == 0) {
    Send(at::full({1}, static_cast<int64_t>(getpid()), at::kLong), 1, group);
    const WorkPtr large = SendAsync(at::ones({100000}), 1, group, 1);
    kill(getpid(), SIGSTOP);  // with part of it in the pipe; rank 1 wakes this rank up
    Send(at::full({3}, 5.0), 1, group, 2);
    large->wait();
  } else if (Rank() == 1) {
    at::Tensor pid = at::zeros({1}, at::kLong);
    Receive(pid, 0, group);
    const std::string path = "/proc/" + std::to_string(pid.item<int64_t>()) + "/stat";
    for (std::string status; status.find(") T ") == std::string::npos; std::this_thread::yield()) {
      std::ifstream file(path);
      std::getline(file, status);
    }
    BackendOf(group)->setTimeout(std::chrono::milliseconds(300));
    at::Tensor large = at::zeros({100000}), small = at::zeros({3});
    const std::string error = ErrorOf([&] { Receive(large, 0, group, 1); });
    EXPECT_NE(error.find("timed out after 300 ms"), std::string::npos) << error;
    large.zero_();
    BackendOf(group)->setTimeout(std::chrono::seconds(20));
    kill(static_cast<pid_t>(pid.item<int64_t>()), SIGCONT);
    Receive(small, 0, group, 2);
    EXPECT_EQ(small[2].item<float>(), 5);
    EXPECT_EQ(large.count_nonzero().item<int64_t>(), 0) << "the rest went into a tensor that is the caller's again";
  }
  Barrier(World());
}

TEST(ShmBackend, AMessageForWhichThereIsNoMemoryIsAnErrorOfItsReceive) {
  const auto group = NewGroup("shm");
  const int64_t bytes = 300 << 20;
  if (Rank() == 0) {
    const WorkPtr large = SendAsync(at::zeros({bytes}, at::kByte), 1, group, 1);
    Send(at::full({3}, 5.0), 1, group, 2);
    large->wait();
  } else if (Rank() == 1) {
    at::Tensor small = at::zeros({3}), large = at::zeros({bytes}, at::kByte);
    std::ifstream pages("/proc/self/statm");
    rlim_t used = 0;
    pages >> used;
    rlimit old{};
    getrlimit(RLIMIT_AS, &old);
    rlimit limit = old;
    limit.rlim_cur = used * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (100 << 20);
    setrlimit(RLIMIT_AS, &limit);
    Receive(small, 0, group, 2);  // the large one comes first, and is put aside
    setrlimit(RLIMIT_AS, &old);
    EXPECT_EQ(small[2].item<float>(), 5);
    const std::string error = ErrorOf([&] { Receive(large, 0, group, 1); });
    EXPECT_NE(error.find("for which there was no memory"), std::string::npos) << error;
  }
  Barrier(World());
}

TEST(ShmBackend, ReceivesFromAnyone) {
  const auto group = NewGroup("shm");
  if (Rank() == 0) {
    std::vector<bool> heard(Size(), false);
    for (int i = 1; i < Size(); ++i) {
      std::vector<at::Tensor> in = {at::zeros({1}, at::kInt)};
      const auto work = BackendOf(group)->recvAnysource(in, 3);
      work->wait();
      EXPECT_EQ(in[0].item<int>(), work->sourceRank());
      heard[work->sourceRank()] = true;
    }
    EXPECT_EQ(std::count(heard.begin(), heard.end(), true), Size() - 1);
  } else {
    Send(at::full({1}, Rank(), at::kInt), 0, group, 3);
  }
  // To oneself.
  const WorkPtr in_flight = SendAsync(at::full({1}, 5.0), Rank(), group);
  at::Tensor in = at::zeros({1});
  Receive(in, Rank(), group);
  in_flight->wait();
  EXPECT_EQ(in.item<float>(), 5);
}

TEST(ShmBackend, LackOfMemoryIsAnErrorAndNothingBreaks) {
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  rlimit small = old;
  small.rlim_cur = 1 << 20;
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string file_error = ErrorOf([&] { BackendOf(World())->allocateTensor(1 << 20, at::kFloat); });
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_NE(file_error.find("could not get 4194304 bytes of shared memory: the limit on file sizes (ulimit -f)"),
            std::string::npos)
      << file_error;
  // More than any machine has.
  const std::string error = ErrorOf([&] { BackendOf(World())->allocateTensor(int64_t{1} << 50, at::kFloat); });
  EXPECT_NE(error.find("bytes of shared memory: "), std::string::npos) << error;
  EXPECT_THROW(BackendOf(World())->allocateTensor(-1, at::kFloat), c10::Error);
  EXPECT_EQ(BackendOf(World())->allocateTensor(0, at::kFloat).numel(), 0);
  at::Tensor t = at::ones({3});
  AllReduce(t, World());
  EXPECT_EQ(t[0].item<float>(), Size());
}

TEST(ShmBackend, AbortEndsAWait) {
  const auto group = NewGroup("shm");
  std::thread aborter;
  std::string error;
  if (Rank() == 0) {
    aborter = std::thread([&] {
      std::this_thread::yield();
      BackendOf(group)->abort();
    });
    error = ErrorOf([&] { AllReduce(at::ones({3}), group); });
    aborter.join();
    EXPECT_NE(error.find("aborted"), std::string::npos) << error;
  }
  Barrier(World());
}

TEST(ShmBackend, C10dsReducerTrainsOnIt) {
  std::vector<at::Tensor> parameters = {at::ones({40, 30}).requires_grad_(), at::full({40}, 0.5).requires_grad_()};
  for (bool views : {false, true}) {
    c10d::Reducer reducer(parameters, {{1}, {0}}, World(), {false, false}, 25 << 20, /*find_unused_parameters=*/false,
                          /*gradient_as_bucket_view=*/views, {}, 1 << 20, false, false, {});
    for (int step = 0; step < 3; ++step) {
      for (at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
      reducer.prepare_for_forward();
      const at::Tensor input = at::full({8, 30}, Rank() + 1.0 + step);
      const at::Tensor loss = at::addmm(parameters[1], input, parameters[0].t()).sum();
      reducer.prepare_for_backward({loss});
      torch::autograd::backward({loss});
      // Each rank's gradient is 8 (rank + 1 + step); the mean of rank + 1 is (N + 1) / 2.
      EXPECT_TRUE(parameters[0].grad().eq(8 * ((Size() + 1) / 2.0 + step)).all().item<bool>());
      EXPECT_TRUE(parameters[1].grad().eq(8).all().item<bool>());
    }
  }
}

TEST(ShmBackend, RanksWithoutACommonSocketNamespaceAreToldSo) {
  // The store works, and a rank publishes an address that nobody listens on.
  const auto store = c10::make_intrusive<c10d::PrefixStore>("apart", World()->getStore());
  if (Rank() == 0) {
    const std::string address = "1 lockstep-nowhere ";
    store->set("here/0", std::vector<uint8_t>(address.begin(), address.end()));
    store->set("connected/0", std::vector<uint8_t>{'o', 'k'});
  } else {
    const auto backend = MakeShmBackend(store, Rank(), Size(), {std::chrono::seconds(20)});
    ASSERT_FALSE(backend.ok());
    EXPECT_TRUE(absl::IsFailedPrecondition(backend.status())) << backend.status();
    EXPECT_NE(std::string(backend.status().message()).find("rank 0 is out of reach on this host"), std::string::npos)
        << backend.status();
  }
  Barrier(World());
}

}  // namespace
}  // namespace lockstep
