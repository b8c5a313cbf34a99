// What a process and its device use.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "lockstep/metrics/device_memory.h"
#include "lockstep/metrics/device_utilisation.h"
#include "lockstep/metrics/process_memory.h"

namespace lockstep {
namespace {

constexpr int64_t kMegabyte = 1 << 20;

/// Touches memory, and gives it back.
void Use(int64_t bytes) {
  std::vector<char> memory(static_cast<size_t>(bytes));
  const int64_t page = sysconf(_SC_PAGESIZE);
  for (int64_t i = 0; i < bytes; i += page) static_cast<volatile char*>(memory.data())[i] = 1;
}

TEST(ProcessMemory, ItsPeakIsKeptAfterTheMemoryIsGivenBack) {
  const int64_t before = PeakMemory();
  EXPECT_GT(before, kMegabyte);
  Use(before + 64 * kMegabyte);
  EXPECT_GE(PeakMemory(), before + 64 * kMegabyte);
}

TEST(ProcessMemory, ItsPeakCanBeginAnew) {
  Use(256 * kMegabyte);
  const int64_t high = PeakMemory();
  if (!ResetPeakMemory()) GTEST_SKIP() << "the system doesn't permit it";
  EXPECT_LT(PeakMemory(), high - 128 * kMegabyte);
  Use(64 * kMegabyte);
  EXPECT_GE(PeakMemory(), 64 * kMegabyte);
}

TEST(DeviceMemory, TheCpuIsNoSuchDevice) {
  EXPECT_FALSE(PeakDeviceMemory(c10::kCPU).has_value());
  ResetPeakDeviceMemory(c10::kCPU);
}

TEST(DeviceUtilisation, IsToldByTheManagementLibrary) {
  const std::string library = "tests/metrics/libfake_nvml.so";
  const auto device = DeviceUtilisation::Open("0000:01:00.0", library);
  ASSERT_NE(device, nullptr);
  EXPECT_EQ(device->Now(), 0.42);
  const auto silent = DeviceUtilisation::Open("mig", library);
  ASSERT_NE(silent, nullptr);
  EXPECT_FALSE(silent->Now().has_value());
}

TEST(DeviceUtilisation, IsNotReportedWithoutTheLibraryOrTheDevice) {
  EXPECT_EQ(DeviceUtilisation::Open("0000:01:00.0", "libthere-is-none.so.1"), nullptr);
  EXPECT_EQ(DeviceUtilisation::Open("0000:01:00.0", "libz.so.1"), nullptr);
  EXPECT_EQ(DeviceUtilisation::Open("x", "tests/metrics/libfake_nvml.so"), nullptr);
  EXPECT_EQ(DeviceUtilisation::Of(c10::kCPU), nullptr);
}

}  // namespace
}  // namespace lockstep
