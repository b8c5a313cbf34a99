#include "lockstep/comm/hierarchical/hierarchical_backend.h"

#include <absl/status/status.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <memory>
#include <stdexcept>
#include <string>

#include "lockstep/comm/liveness.h"

namespace lockstep {
namespace {

/// Counts the aborts.
class Network : public c10d::Backend {
 public:
  Network(int rank, int world_size, int& aborts) : Backend(rank, world_size), aborts_(aborts) {}
  const std::string getBackendName() const override { return "network"; }
  void abort() override { ++aborts_; }

 private:
  int& aborts_;
};

HierarchicalBackendOptions OptionsOf(const c10::intrusive_ptr<c10d::Store>& store, int world_size) {
  HierarchicalBackendOptions options;
  options.monitor = std::make_shared<LivenessMonitor>(store, 0, world_size);
  return options;
}

TEST(HierarchicalBackend, ANetworkThatCantBeMadeIsAStatus) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  auto options = OptionsOf(store, 1);
  options.make_network_backend = [](const auto&, int, int) -> c10::intrusive_ptr<c10d::Backend> {
    throw std::runtime_error("no cable\nframe #0");
  };
  EXPECT_EQ(MakeHierarchicalBackend(store, 0, Hosts{{0}}, options).status(),
            absl::UnavailableError("hierarchical: no cable"));
}

TEST(HierarchicalBackend, AnAbortReachesTheNetwork) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  store->set("levels/local/1", {'o', 'k'});  // the other host's rank
  auto options = OptionsOf(store, 2);
  int aborts = 0;
  options.make_network_backend = [&](const auto&, int rank, int world_size) {
    return c10::make_intrusive<Network>(rank, world_size, aborts);
  };
  const auto backend = MakeHierarchicalBackend(store, 0, Hosts{{0, 1}}, options);
  ASSERT_TRUE(backend.ok()) << backend.status();
  (*backend)->abort();
  EXPECT_EQ(aborts, 2);  // that between the hosts, and that of all ranks
  EXPECT_NE(LivenessMonitor::Looks(*options.monitor).WhyInVain(1), "");
}

}  // namespace
}  // namespace lockstep
