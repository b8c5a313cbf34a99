// A trainer's first lines, for launched_test.py: finds its place, meets the others and adds up what all ranks have.

#include <ATen/ops/full.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "lockstep/comm/collectives.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/process_group.h"

namespace {

int Fail(const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (const auto taken = lockstep::TakeLocalRankFlag(&argc, argv); !taken.ok()) {
    return Fail(std::string(taken.message()));
  }
  const auto env = lockstep::ReadEnvironment();
  if (!env.ok()) return Fail(std::string(env.status().message()));
  lockstep::ProcessGroupOptions options;
  options.timeout = std::chrono::seconds(30);
  try {
    auto group = lockstep::InitProcessGroup(options);
    if (!group.ok()) return Fail(std::string(group.status().message()));
    at::Tensor sum = at::full({1}, env->rank + 1, at::kLong);
    lockstep::AllReduce(sum, *group);
    std::printf("rank %d of %d, local %d of %d, sum %d\n", env->rank, env->world_size, env->local_rank,
                env->local_world_size, static_cast<int>(*sum.const_data_ptr<int64_t>()));
    std::fflush(stdout);
    lockstep::DestroyProcessGroup(*group);
  } catch (const std::exception& e) {
    return Fail(e.what());
  }
  return 0;
}
