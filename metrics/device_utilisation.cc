#include "lockstep/metrics/device_utilisation.h"

#include <dlfcn.h>

#include <utility>

namespace lockstep {
namespace {

// nvml.h, whose numbers and structures never change under these names.
struct NvmlUtilisation {
  unsigned int gpu, memory;  // percent
};
using NvmlDevice = void*;
using NvmlInit = int (*)();
using NvmlHandle = int (*)(const char*, NvmlDevice*);
using NvmlUtilisationRates = int (*)(NvmlDevice, NvmlUtilisation*);

// cuda_runtime_api.h. Every LibTorch program has the runtime, but not its headers.
using CudaBusId = int (*)(char*, int, int);

template <typename Function>
Function Find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

}  // namespace

struct DeviceUtilisation::Nvml {
  NvmlUtilisationRates rates = nullptr;
  NvmlDevice device = nullptr;
};

std::unique_ptr<DeviceUtilisation> DeviceUtilisation::Of(c10::Device device) {
  if (!device.is_cuda()) return nullptr;
  const auto find_bus_id = Find<CudaBusId>(RTLD_DEFAULT, "cudaDeviceGetPCIBusId");
  char bus_id[32] = {};
  if (find_bus_id == nullptr || find_bus_id(bus_id, sizeof bus_id, device.has_index() ? device.index() : 0) != 0) {
    return nullptr;
  }
  return Open(bus_id);
}

std::unique_ptr<DeviceUtilisation> DeviceUtilisation::Open(const std::string& bus_id, const std::string& library) {
  void* const nvml = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);  // stays open: it has threads of its own
  if (nvml == nullptr) return nullptr;
  const auto init = Find<NvmlInit>(nvml, "nvmlInit_v2");
  const auto handle = Find<NvmlHandle>(nvml, "nvmlDeviceGetHandleByPciBusId_v2");
  auto found = std::make_shared<Nvml>();
  found->rates = Find<NvmlUtilisationRates>(nvml, "nvmlDeviceGetUtilizationRates");
  if (init == nullptr || handle == nullptr || found->rates == nullptr || init() != 0 ||
      handle(bus_id.c_str(), &found->device) != 0) {
    return nullptr;
  }
  return std::unique_ptr<DeviceUtilisation>(new DeviceUtilisation(std::move(found)));
}

std::optional<double> DeviceUtilisation::Now() const {
  NvmlUtilisation utilisation{};
  if (nvml_->rates(nvml_->device, &utilisation) != 0) return std::nullopt;
  return utilisation.gpu / 100.;
}

}  // namespace lockstep
