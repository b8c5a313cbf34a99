#include "lockstep/comm/gloo/gloo.h"

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>

namespace lockstep {

c10::intrusive_ptr<c10d::Backend> MakeGlooBackend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                  int world_size, std::chrono::milliseconds timeout,
                                                  const std::string& host, const std::vector<std::string>& interfaces) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  if (!interfaces.empty()) {
    for (const std::string& name : interfaces) {
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
    }
    options->threads = static_cast<int>(options->devices.size()) * 2;
  } else if (!host.empty()) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(host));
  } else {
    options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world_size, options);
}

c10::intrusive_ptr<c10d::Backend> CheckCollectives(const c10::intrusive_ptr<c10d::Backend>& backend,
                                                   const c10::intrusive_ptr<c10d::Backend>& gloo) {
  return c10::make_intrusive<c10d::ProcessGroupWrapper>(backend, gloo);
}

}  // namespace lockstep
