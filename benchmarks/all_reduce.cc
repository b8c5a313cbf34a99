// One rank of the all-reduce benchmark: `Backend::allreduce(…)->wait()` on the shared-memory backend, with tensors in
// shared memory and with others, and on Gloo, alternating; beside them a plain copy of the same bytes. Rank 0 prints a
// JSON line per size with seconds per call: the median of all calls, or of the blocks for those of some microseconds.
//
//   all_reduce BLOCKS BYTES…      (in each of several ranks)

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/gloo/gloo.h"
#include "lockstep/comm/rendezvous.h"
#include "lockstep/comm/shm/shm_backend.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr double kSecondsPerBlock = 0.1;
constexpr int kFew = 2000;  // calls

double Seconds(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Subject {
  const char* name;
  std::function<void()> call;
  int calls = 1;  ///< Per block; the same on all ranks.
  std::vector<double> seconds;
};

void AllReduce(c10d::Backend& backend, std::vector<at::Tensor>& tensors) { backend.allreduce(tensors)->wait(); }

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const auto place = lockstep::OpenRendezvous("env://", -1, -1, std::chrono::seconds(60)).value();
  const auto store = [&](const char* name) { return c10::make_intrusive<c10d::PrefixStore>(name, place.store); };
  const auto shm = lockstep::MakeShmBackend(store("shm"), place.rank, place.world_size).value();
  const auto gloo =
      lockstep::MakeGlooBackend(store("gloo"), place.rank, place.world_size, std::chrono::seconds(1800), "127.0.0.1");
  const auto agree = [&](int value) {
    std::vector<at::Tensor> tensors = {at::scalar_tensor(value, at::kInt)};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    shm->allreduce(tensors, options)->wait();
    return tensors[0].item<int>();
  };

  for (int i = 2; i < argc; ++i) {
    const int64_t bytes = std::atoll(argv[i]), count = bytes / 4;
    std::vector<at::Tensor> shared = {shm->allocateTensor(count, at::kFloat).fill_(1e-30)};
    std::vector<at::Tensor> plain = {at::full({count}, 1e-30)}, copy = {at::full({count}, 1.0)};
    std::vector<Subject> subjects = {
        {"shared", [&] { AllReduce(*shm, shared); }},
        {"staged", [&] { AllReduce(*shm, plain); }},
        {"gloo", [&] { AllReduce(*gloo, plain); }},
        {"copy", [&] { std::memcpy(copy[0].data_ptr(), plain[0].data_ptr(), static_cast<size_t>(bytes)); }},
    };
    for (Subject& subject : subjects) {
      subject.call();
      const auto begin = Clock::now();
      subject.call();
      subject.calls = agree(std::clamp(static_cast<int>(kSecondsPerBlock / Seconds(begin)), 1, 20000));
    }
    for (int block = 0; block < std::atoi(argv[1]); ++block) {
      for (Subject& subject : subjects) {
        subject.call();
        shm->barrier()->wait();
        // Small ones in batches: a look at the clock would count.
        const int batch = subject.calls > kFew ? subject.calls : 1;
        for (int done = 0; done < subject.calls; done += batch) {
          const auto begin = Clock::now();
          for (int call = 0; call < batch; ++call) subject.call();
          subject.seconds.push_back(Seconds(begin) / batch);
        }
        shm->barrier()->wait();
      }
    }
    if (place.rank != 0) continue;
    std::printf("{\"bytes\": %lld", static_cast<long long>(bytes));
    for (Subject& subject : subjects) {
      std::nth_element(subject.seconds.begin(), subject.seconds.begin() + subject.seconds.size() / 2,
                       subject.seconds.end());
      std::printf(", \"%s\": %.3e", subject.name, subject.seconds[subject.seconds.size() / 2]);
    }
    std::printf("}\n");
    std::fflush(stdout);
  }
}
