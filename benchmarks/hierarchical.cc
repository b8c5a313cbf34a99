// One rank of the benchmark of several hosts: all-reduce, broadcast and all-gather on the hierarchical backend and on
// Gloo over all ranks, alternating. Rank 0 prints a JSON line per operation and size with the seconds per call: the
// median of the blocks.
//
//   hierarchical_rank BLOCKS BYTES…      (in each of several ranks, on several hosts)

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/comm/collectives.h"
#include "lockstep/comm/process_group.h"

namespace {

using Clock = std::chrono::steady_clock;
using lockstep::ProcessGroupPtr;
constexpr double kSecondsPerBlock = 0.3;

double Seconds(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

struct Subject {
  const char* name;
  ProcessGroupPtr group;
  at::Tensor tensor;
  int calls = 1;  ///< Per block; the same on all ranks.
  std::vector<double> seconds;
};

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  lockstep::ProcessGroupOptions options;
  options.backend = "hierarchical";
  const ProcessGroupPtr ours = lockstep::InitProcessGroup(options).value();
  const int rank = lockstep::GetRank(ours), world = lockstep::GetWorldSize(ours);
  std::vector<int> all;
  for (int r = 0; r < world; ++r) all.push_back(r);
  options.backend = "gloo";
  const ProcessGroupPtr gloo = lockstep::NewSubGroup(ours, all, options).value();

  for (int i = 2; i < argc; ++i) {
    const int64_t bytes = std::atoll(argv[i]), count = bytes / 4;
    at::Tensor gathered = at::empty({count});
    const std::vector<std::pair<const char*, std::function<void(Subject&)>>> operations = {
        {"all-reduce", [](Subject& s) { lockstep::AllReduce(s.tensor, s.group); }},
        {"broadcast", [](Subject& s) { lockstep::Broadcast(s.tensor, s.group); }},
        {"all-gather",
         [&](Subject& s) { lockstep::AllGatherInto(gathered, s.tensor.narrow(0, 0, count / world), s.group); }},
    };
    for (const auto& [operation, call] : operations) {
      std::vector<Subject> subjects = {
          {"shared", ours, ours->getBackend(at::kCPU)->allocateTensor(count, at::kFloat).zero_(), 1, {}},
          {"staged", ours, at::zeros({count}), 1, {}},
          {"gloo", gloo, at::zeros({count}), 1, {}},
      };
      for (Subject& subject : subjects) {
        call(subject);
        const auto begin = Clock::now();
        call(subject);
        at::Tensor calls = at::scalar_tensor(std::clamp(kSecondsPerBlock / Seconds(begin), 1.0, 1000.0));
        lockstep::AllReduce(calls, gloo, c10d::ReduceOp::MAX);
        subject.calls = static_cast<int>(calls.item<float>());
      }
      for (int block = 0; block < std::atoi(argv[1]); ++block) {
        for (Subject& subject : subjects) {
          call(subject);
          lockstep::Barrier(gloo);
          const auto begin = Clock::now();
          for (int done = 0; done < subject.calls; ++done) call(subject);
          lockstep::Barrier(gloo);  // the slowest rank counts, not the one that may go ahead
          subject.seconds.push_back(Seconds(begin) / subject.calls);
        }
      }
      if (rank != 0) continue;
      std::printf("{\"operation\": \"%s\", \"bytes\": %lld", operation, static_cast<long long>(bytes));
      for (Subject& subject : subjects) {
        std::nth_element(subject.seconds.begin(), subject.seconds.begin() + subject.seconds.size() / 2,
                         subject.seconds.end());
        std::printf(", \"%s\": %.3e", subject.name, subject.seconds[subject.seconds.size() / 2]);
      }
      std::printf("}\n");
      std::fflush(stdout);
    }
  }
  ProcessGroupPtr group = ours;
  lockstep::DestroyProcessGroup(group);
}
