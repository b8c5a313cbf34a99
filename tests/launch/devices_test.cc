#include "lockstep/launch/devices.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(DeviceList, AllowsSpaces) {
  EXPECT_EQ(*ParseDeviceList("--gpu", ""), std::vector<int>());
  EXPECT_EQ(*ParseDeviceList("--gpu", "  "), std::vector<int>());
  EXPECT_EQ(*ParseDeviceList("--gpu", "2, 3"), (std::vector<int>{2, 3}));
  EXPECT_EQ(*ParseDeviceList("--gpu", " 0 "), std::vector<int>{0});
}

TEST(DeviceList, NamesWhatIsNone) {
  for (const char* text : {"x", "1,", "1,,2", "-1", "1,1", "1.5", "99999999999"}) {
    const auto devices = ParseDeviceList("--gpu", text);
    ASSERT_FALSE(devices.ok()) << text;
    EXPECT_NE(devices.status().message().find("--gpu="), std::string::npos);
  }
}

}  // namespace
}  // namespace lockstep
