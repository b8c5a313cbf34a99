// All ranks as threads of one process, so that a sanitizer sees every thread of the package at work: those that call,
// those that wait, each queue's and each mailbox's own.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "lockstep/comm/shm/shm_backend.h"

namespace lockstep {
namespace {

constexpr int kRanks = 3;
using Tensors = std::vector<at::Tensor>;
using Backend = c10::intrusive_ptr<c10d::Backend>;

/// Runs `body` as each rank of a new group.
void InRanks(const std::function<void(int, const Backend&)>& body, ShmBackendOptions options = {}) {
  at::set_num_threads(1);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back([&, rank] { body(rank, MakeShmBackend(store, rank, kRanks, options).value()); });
  }
  for (std::thread& thread : ranks) thread.join();
}

TEST(Sanitized, CollectivesOfAllSizesWaitedForAndNot) {
  InRanks([](int rank, const Backend& backend) {
    std::vector<Tensors> kept;
    for (int i = 0; i < 200; ++i) {
      const int64_t n = i % 10 == 9 ? 300000 : 1 + i * 7;
      Tensors t = {i % 3 == 0 ? backend->allocateTensor(n, at::kFloat) : at::zeros({n})};
      t[0].fill_(rank + 1);
      const auto work = backend->allreduce(t);
      if (i % 4 == 0) {
        work->wait();
        ASSERT_EQ(t[0].data_ptr<float>()[n - 1], 6);
      } else if (i % 4 == 1) {
        work->getFuture()->wait();
      } else if (i % 4 == 2) {
        while (!work->isCompleted()) std::this_thread::yield();
      }
      if (i % 4 == 3) kept.push_back(t);
      std::vector<Tensors> gathered = {{at::empty({5}), at::empty({5}), at::empty({5})}};
      Tensors mine = {at::full({5}, rank * 1.0)};
      backend->allgather(gathered, mine)->wait();
      ASSERT_EQ(gathered[0][2].data_ptr<float>()[4], 2);
    }
  });
}

TEST(Sanitized, SeveralThreadsWaitForOneGroup) {
  InRanks([](int rank, const Backend& backend) {
    std::vector<Tensors> tensors;
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int i = 0; i < 100; ++i) {
      tensors.push_back({at::full({1 + i * 50}, rank + 1)});
      works.push_back(backend->allreduce(tensors.back()));
    }
    std::vector<std::thread> threads;
    for (int k = 0; k < 3; ++k) {
      threads.emplace_back([&, k] {
        for (size_t i = k; i < works.size(); i += 3) works[works.size() - 1 - i]->wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Tensors& t : tensors) ASSERT_EQ(t[0].data_ptr<int64_t>()[0], 6);
  });
}

TEST(Sanitized, MessagesBesideCollectives) {
  InRanks([](int rank, const Backend& backend) {
    const int next = (rank + 1) % kRanks, last = (rank + kRanks - 1) % kRanks;
    std::thread messages([&] {
      for (int i = 0; i < 100; ++i) {
        Tensors out = {at::full({1 + (i % 5) * 20000}, i * 1.0)}, in = {at::zeros({1 + (i % 5) * 20000})};
        const auto send = backend->send(out, next, i), receive = backend->recv(in, last, i);
        if (i % 2 == 0) {
          receive->wait();
          send->wait();
        } else {
          while (!receive->isCompleted() || !send->isCompleted()) std::this_thread::yield();
        }
        ASSERT_EQ(in[0].data_ptr<float>()[0], i);
      }
    });
    for (int i = 0; i < 300; ++i) {
      Tensors t = {at::full({40}, 1.0)};
      backend->allreduce(t)->wait();
      ASSERT_EQ(t[0].data_ptr<float>()[0], kRanks);
    }
    messages.join();
  });
}

TEST(Sanitized, GroupsThatEndWithWorkUnderWay) {
  for (int i = 0; i < 10; ++i) {
    InRanks([](int rank, const Backend& backend) {
      for (int k = 0; k < 5; ++k) {
        Tensors t = {at::full({1000}, 1.0)};
        backend->allreduce(t);
        backend->send(t, (rank + 1) % kRanks, 0);
        Tensors in = {at::zeros({1000})};
        backend->recv(in, (rank + kRanks - 1) % kRanks, 0);
      }
    });
  }
}

TEST(Sanitized, ATimeoutAndAnAbort) {
  ShmBackendOptions options;
  options.timeout = std::chrono::milliseconds(500);
  InRanks(
      [](int rank, const Backend& backend) {
        if (rank == 2) return;
        Tensors t = {at::ones({10})};
        EXPECT_THROW(backend->allreduce(t)->wait(), c10::DistBackendError);
        EXPECT_THROW(backend->recv(t, 2, 0)->wait(), c10::DistBackendError);
      },
      options);
  InRanks([](int rank, const Backend& backend) {
    if (rank != 0) return;
    std::thread aborter([&] { backend->abort(); });
    Tensors t = {at::ones({10})};
    EXPECT_THROW(backend->allreduce(t)->wait(), c10::DistBackendError);
    aborter.join();
  });
}

}  // namespace
}  // namespace lockstep
