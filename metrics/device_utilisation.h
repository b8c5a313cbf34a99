#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <optional>
#include <string>

namespace lockstep {

/// How busy a CUDA device is, by NVIDIA's management library (NVML), which comes with the driver and is looked for when
/// the program runs.
class DeviceUtilisation {
 public:
  /// Of a device as CUDA numbers them in this process. Null for other devices, and without the library.
  static std::unique_ptr<DeviceUtilisation> Of(c10::Device device);
  /// Of the device with this PCI bus id, as in 0000:01:00.0. Null where it can't be had from `library`.
  static std::unique_ptr<DeviceUtilisation> Open(const std::string& bus_id,
                                                 const std::string& library = "libnvidia-ml.so.1");

  /// The share, 0 to 1, of the last moment (a sixth of a second to a second) in which anything ran on it; nothing where
  /// the device doesn't tell, as with MIG.
  std::optional<double> Now() const;

 private:
  struct Nvml;
  explicit DeviceUtilisation(std::shared_ptr<Nvml> nvml) : nvml_(std::move(nvml)) {}

  const std::shared_ptr<Nvml> nvml_;
};

}  // namespace lockstep
