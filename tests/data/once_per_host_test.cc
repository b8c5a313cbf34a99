#include "lockstep/data/once_per_host.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/texts.h"
#include "lockstep/data/cifar.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

/// Two ranks stand for a host.
HostRanks Ranks(bool shared = false) { return {Group(), GetRank(Group()) % 2, shared}; }

std::string Archive() {
  static int count = 0;
  const std::string mine = std::string(std::getenv("TEST_TMPDIR")) + "/once." + std::to_string(count++);
  const std::string path = BroadcastString(mine, Group()) + "/cifar-10-binary.tar.gz";
  EXPECT_TRUE(OncePerHost(
                  [&] {
                    fs::create_directories(fs::path(path).parent_path());
                    fs::copy_file("tests/data/cifar/cifar-10-binary.tar.gz", path);
                    return absl::OkStatus();
                  },
                  Ranks(/*shared=*/true))
                  .ok());
  return path;
}

TEST(OncePerHost, OneRankOfEachHostWorks) {
  for (const bool shared : {false, true}) {
    int calls = 0;
    const auto work = [&] { return ++calls, absl::OkStatus(); };
    EXPECT_TRUE(OncePerHost(work, Ranks(shared)).ok());
    EXPECT_EQ(calls, shared ? GetRank(Group()) == 0 : GetRank(Group()) % 2 == 0);
  }
  int calls = 0;
  EXPECT_TRUE(OncePerHost([&] { return ++calls, absl::OkStatus(); }, {}).ok());
  EXPECT_EQ(calls, 1);
}

TEST(OncePerHost, AnErrorThereIsEveryRanks) {
  const auto failed = OncePerHost([] { return absl::NotFoundError("no data"); }, Ranks(/*shared=*/true));
  EXPECT_EQ(failed.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(failed.message().find("no data"), std::string::npos) << failed;
  const auto thrown = OncePerHost([]() -> absl::Status { throw std::runtime_error("broken"); }, Ranks());
  EXPECT_NE(thrown.message().find("broken"), std::string::npos) << thrown;
}

TEST(OncePerHost, AllRanksFindWhatWasUnpacked) {
  const std::string path = Archive(), folder = fs::path(path).parent_path().string() + "/out";
  ASSERT_TRUE(UnpackOnce(path, folder, Ranks()).ok());
  EXPECT_TRUE(fs::exists(folder + "/cifar-10-batches-bin/test_batch.bin"));
  ASSERT_TRUE(OncePerHost([&] { return FindCifar10(path).status(); }, Ranks()).ok());
  const auto data = LoadCifar10(path, CifarSplit::kTest);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->images.size(0), 2);
  EXPECT_EQ(UnpackOnce("/nowhere.tar.gz", folder + "2", Ranks()).code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace lockstep
