#include "lockstep/checkpoint/checkpointer.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/snapshot.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/texts.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

const ProcessGroupPtr& Group() {
  static const ProcessGroupPtr group = InitProcessGroup().value();
  return group;
}

/// A new folder, the same on all ranks.
std::string Folder() {
  static int count = 0;
  const std::string mine = std::string(std::getenv("TEST_TMPDIR")) + "/checkpointer." + std::to_string(getpid()) + "." +
                           std::to_string(count++);
  const std::string folder = BroadcastString(mine, Group());
  fs::create_directories(folder);
  Barrier(Group());
  return folder;
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

Value State(double number) {
  Value state((ValueDict()));
  Value model((ValueDict()));
  model.set("weight", at::full({1000}, number));
  state.set("model", std::move(model));
  state.set("number", number);
  return state;
}

double Number(const std::string& path) {
  const auto value = LoadPth(path);
  EXPECT_TRUE(value.ok()) << value.status();
  return value.ok() ? value->find("model")->find("weight")->tensor()->mean().item<double>() : -1;
}

CheckpointerOptions In(const std::string& folder) {
  CheckpointerOptions options;
  options.folder = folder;
  return options;
}

TEST(Checkpointer, KeepsTheNewestAndTheBest) {
  for (const bool background : {true, false}) {
    const std::string folder = Folder();
    CheckpointerOptions options = In(folder);
    options.background = background;
    options.keep_last = 2;
    options.keep_best = 1;
    options.monitor = "val_accuracy";
    options.more_is_better = true;
    options.name = "e{epoch}-s{step}-{val_accuracy:.2f}";
    PthWriter writer;
    {
      Checkpointer checkpointer(options, writer, Group());
      const double accuracies[] = {0.5, 0.9, 0.7, 0.8, 0.6};
      for (size_t i = 0; i < 5; ++i) {
        const absl::Status saved =
            checkpointer.Save(State(static_cast<double>(i)), {i + 1, 10 * i, {{"val_accuracy", accuracies[i]}}});
        ASSERT_TRUE(saved.ok()) << saved;
      }
      ASSERT_TRUE(checkpointer.Wait().ok());
    }
    EXPECT_EQ(Names(folder), (std::vector<std::string>{"checkpoints.json", "e2-s10-0.90.pth", "e4-s30-0.80.pth",
                                                       "e5-s40-0.60.pth", "latest"}));
    EXPECT_EQ(*Checkpointer::Latest(folder), folder + "/e5-s40-0.60.pth");
    EXPECT_EQ(*Checkpointer::Best(folder), folder + "/e2-s10-0.90.pth");
    EXPECT_EQ(Number(*Checkpointer::Best(folder)), 1);
    std::string latest;
    std::ifstream(folder + "/latest") >> latest;
    EXPECT_EQ(latest, "e5-s40-0.60.pth");
    Barrier(Group());
  }
}

TEST(Checkpointer, SavesWhatWasThereWhenItWasCalledAndTheOldFilesOfAnEarlierRunStay) {
  const std::string folder = Folder();
  PthWriter writer;
  at::Tensor weight = at::zeros({1 << 20});
  Value state((ValueDict()));
  state.set("model", weight);
  state.set("view", weight.narrow(0, 0, 3));
  for (int run = 0; run < 2; ++run) {
    Checkpointer checkpointer(In(folder), writer, Group());
    for (size_t step = 1; step <= 3; ++step) {
      weight.fill_(static_cast<double>(step + 10 * static_cast<size_t>(run)));
      ASSERT_TRUE(checkpointer.Save(state, {1, step + 10 * static_cast<size_t>(run)}).ok());
      weight.fill_(-1);
    }
  }
  Barrier(Group());
  EXPECT_EQ(*Checkpointer::Latest(folder), folder + "/step-13.pth");
  const auto loaded = LoadPth(folder + "/step-13.pth");
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->find("model")->tensor()->min().item<double>(), 13);
  EXPECT_TRUE(loaded->find("view")->tensor()->is_alias_of(*loaded->find("model")->tensor()));
  EXPECT_EQ(Names(folder).size(), 5u);
}

TEST(Checkpointer, WeightsAlone) {
  const std::string folder = Folder();
  CheckpointerOptions options = In(folder);
  options.weights_only = true;
  PthWriter writer;
  Checkpointer checkpointer(options, writer, Group());
  ASSERT_TRUE(checkpointer.Save(State(4), {}).ok());
  ASSERT_TRUE(checkpointer.Wait().ok());
  EXPECT_EQ(LoadPth(folder + "/step-0.pth")->dict()->items.size(), 1u);
  EXPECT_FALSE(checkpointer.Save(Value(ValueDict()), {}).ok());
}

/// Writes, but not the second time.
struct FailsOnce : PthWriter {
  absl::Status Save(const Value& state, const std::string& path) override {
    if (++calls == 2) return absl::ResourceExhaustedError("no space for " + path);
    return PthWriter::Save(state, path);
  }
  int calls = 0;
};

TEST(Checkpointer, AFailureIsAnErrorOrAWarningOnAllRanksAndTheLastOneStays) {
  for (const bool background : {true, false}) {
    for (const bool is_error : {true, false}) {
      const std::string folder = Folder();
      CheckpointerOptions options = In(folder);
      options.background = background;
      options.failure_is_error = is_error;
      FailsOnce writer;
      Checkpointer checkpointer(options, writer, Group());
      ASSERT_TRUE(checkpointer.Save(State(1), {1, 1}).ok());
      absl::Status second = checkpointer.Save(State(2), {1, 2});
      if (background && second.ok()) second = checkpointer.Wait();
      EXPECT_EQ(second.ok(), !is_error);
      if (is_error) {
        EXPECT_EQ(second.code(), absl::StatusCode::kResourceExhausted);
        EXPECT_NE(second.message().find("step-2.pth"), std::string::npos) << second;
      }
      Barrier(Group());
      EXPECT_EQ(*Checkpointer::Latest(folder), folder + "/step-1.pth");
      Barrier(Group());
      ASSERT_TRUE(checkpointer.Save(State(3), {1, 3}).ok()) << "training may go on";
      ASSERT_TRUE(checkpointer.Wait().ok());
      EXPECT_EQ(*Checkpointer::Latest(folder), folder + "/step-3.pth");
    }
  }
  PthWriter writer;
  Checkpointer nowhere(In("/proc/nowhere"), writer, Group());
  ASSERT_TRUE(nowhere.Save(State(1), {}).ok());
  EXPECT_NE(nowhere.Wait().message().find("/proc/nowhere"), std::string::npos);
}

TEST(Checkpointer, AFolderThatIsRemovedIsMadeAgain) {
  const std::string folder = Folder();
  PthWriter writer;
  Checkpointer checkpointer(In(folder), writer, Group());
  ASSERT_TRUE(checkpointer.Save(State(1), {1, 1}).ok());
  ASSERT_TRUE(checkpointer.Wait().ok());
  Barrier(Group());
  if (GetRank(Group()) == 0) fs::remove_all(folder);
  Barrier(Group());
  ASSERT_TRUE(checkpointer.Save(State(2), {1, 2}).ok());
  ASSERT_TRUE(checkpointer.Wait().ok());
  EXPECT_EQ(*Checkpointer::Latest(folder), folder + "/step-2.pth");
}

TEST(Checkpointer, AFileThatIsNewerThanTheListIsTakenWhenItIsWhole) {
  const std::string folder = Folder();
  PthWriter writer;
  CheckpointerOptions options = In(folder);
  options.name = "last";
  options.keep_last = 1;
  {
    Checkpointer checkpointer(options, writer, Group());
    ASSERT_TRUE(checkpointer.Save(State(1), {1, 1}).ok());
    ASSERT_TRUE(checkpointer.Wait().ok());
  }
  Barrier(Group());
  if (GetRank(Group()) == 0) {
    ASSERT_TRUE(SavePth(State(2), folder + "/last.pth").ok());  // and the list was not written any more
  }
  Barrier(Group());
  const auto latest = Checkpointer::Latest(folder);
  ASSERT_TRUE(latest.ok()) << latest.status();
  EXPECT_EQ(*latest, folder + "/last.pth");
  Barrier(Group());
  if (GetRank(Group()) == 0) fs::resize_file(folder + "/last.pth", 300);
  Barrier(Group());
  EXPECT_EQ(Checkpointer::Latest(folder).status().code(), absl::StatusCode::kNotFound);
}

TEST(Checkpointer, ARunThatWentOnFromAnEarlierStepDropsWhatCameAfterIt) {
  for (size_t keep_last : {0, 3}) {
    const std::string folder = Folder();
    PthWriter writer;
    CheckpointerOptions options = In(folder);
    options.name = "step-{step}";
    options.keep_last = keep_last;
    Checkpointer checkpointer(options, writer, Group());
    for (size_t step : {1, 2, 3, 2}) ASSERT_TRUE(checkpointer.Save(State(1), {1, step}).ok());
    ASSERT_TRUE(checkpointer.Wait().ok());
    Barrier(Group());
    EXPECT_EQ(*Checkpointer::Latest(folder), folder + "/step-2.pth");
    EXPECT_EQ(fs::exists(folder + "/step-3.pth"), keep_last == 0) << "all are kept";
    EXPECT_TRUE(fs::exists(folder + "/step-1.pth"));
    Barrier(Group());
  }
}

TEST(Snapshot, CopiesEveryByteOfAnySize) {
  Snapshot snapshot;
  for (int64_t bytes : {0, 1, 15, 16, 63, 64, 65, 127, 1000, 4097, (1 << 20) + 13, (5 << 20) - 1}) {
    const at::Tensor original = at::randint(0, 256, {bytes}, at::kByte);
    EXPECT_TRUE(snapshot.Take(Value(original)).tensor()->equal(original)) << bytes;
  }
}

TEST(Checkpointer, BadNamesAndOptions) {
  const std::string folder = Folder();
  PthWriter writer;
  for (const char* name : {"{loss}", "{step", "{step:.9g}", "{step:x}"}) {
    CheckpointerOptions options = In(folder);
    options.name = name;
    Checkpointer checkpointer(options, writer, Group());
    const absl::Status status = checkpointer.Save(State(1), {1, 1, {{"accuracy", 0.5}}});
    EXPECT_NE(status.message().find(name), std::string::npos) << status;
  }
  for (const char* name : {"", "a/b"}) {
    CheckpointerOptions options = In(folder);
    options.name = name;
    EXPECT_THROW(Checkpointer(options, writer, Group()), c10::Error);
  }
  CheckpointerOptions options = In(folder);
  options.keep_best = 1;
  EXPECT_THROW(Checkpointer(options, writer, Group()), c10::Error);
  EXPECT_THROW(Checkpointer(CheckpointerOptions(), writer, Group()), c10::Error);
  EXPECT_EQ(Checkpointer::Latest(folder).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Checkpointer::Best(folder).status().code(), absl::StatusCode::kNotFound);
}

/// One rank: three checkpoints, one for each step.
std::string ThreeCheckpoints() {
  const std::string folder = Folder();
  CheckpointerOptions options = In(folder);
  options.monitor = "loss";
  PthWriter writer;
  Checkpointer checkpointer(options, writer, nullptr);
  for (size_t step = 1; step <= 3; ++step) {
    EXPECT_TRUE(
        checkpointer.Save(State(static_cast<double>(step)), {1, step, {{"loss", 1.0 / static_cast<double>(step)}}})
            .ok());
  }
  return folder;
}

void Damage(const std::string& path, double where) {
  const auto size = static_cast<double>(fs::file_size(path));
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(size * where));
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(static_cast<std::streamoff>(size * where));
  file.put(byte);
}

TEST(Latest, TakesTheNextOlderWholeOne) {
  if (GetWorldSize(Group()) > 1) return;
  for (const double where : {0., 0.01, 0.3, 0.6, 0.9, 0.99}) {
    const std::string folder = ThreeCheckpoints();
    Damage(folder + "/step-3.pth", where);
    EXPECT_EQ(*Checkpointer::Latest(folder), folder + "/step-2.pth") << where;
    EXPECT_EQ(*Checkpointer::Best(folder), folder + "/step-2.pth") << where;
  }
  std::string folder = ThreeCheckpoints();
  fs::resize_file(folder + "/step-3.pth", 100);
  fs::resize_file(folder + "/step-2.pth", 0);
  EXPECT_EQ(*Checkpointer::Latest(folder), folder + "/step-1.pth");
  fs::remove(folder + "/step-1.pth");
  EXPECT_EQ(Checkpointer::Latest(folder).status().code(), absl::StatusCode::kNotFound);

  // Without a list, or with a bad one, by reading the files.
  for (
      const std::string list :
      {"", "{", "[]", R"({"version": 7})", R"({"version": 1, "more_is_better": false, "checkpoints": [{}]})",
       R"({"version": 1, "more_is_better": false, "checkpoints": [{"file": "../x", "epoch": 1, "step": 1, "bytes": 1, "crc32": 1}]})"}) {
    folder = ThreeCheckpoints();
    std::ofstream(folder + "/checkpoints.json") << list;
    fs::resize_file(folder + "/step-3.pth", 100);
    EXPECT_EQ(*Checkpointer::Latest(folder), folder + "/step-2.pth") << list;
  }
}

TEST(Checkpointer, CleansUpAfterACrash) {
  if (GetWorldSize(Group()) > 1) return;
  const std::string folder = ThreeCheckpoints();
  std::ofstream(folder + "/step-4.pth.tmp.123") << "half";
  std::ofstream(folder + "/my.tmp.notes") << "mine";
  PthWriter writer;
  Checkpointer checkpointer(In(folder), writer, nullptr);
  EXPECT_FALSE(fs::exists(folder + "/step-4.pth.tmp.123"));
  EXPECT_TRUE(fs::exists(folder + "/my.tmp.notes"));
}

TEST(Checkpointer, AProcessKilledAtAnyMomentLeavesAWholeLatest) {
  if (GetWorldSize(Group()) > 1) return;
  const std::string folder = Folder();
  const int kills = std::getenv("LOCKSTEP_EXHAUSTIVE") != nullptr ? 200 : 20;
  std::mt19937 random(1206);
  double last = 0;
  for (int kill_number = 0; kill_number < kills; ++kill_number) {
    const pid_t child = fork();
    if (child == 0) {
      at::set_num_threads(1);  // the threads of a forked process are gone
      CheckpointerOptions options = In(folder);
      options.background = false;
      options.keep_last = 2;
      PthWriter writer;
      Checkpointer checkpointer(options, writer, nullptr);
      for (size_t step = static_cast<size_t>(last) + 1;; ++step) {
        if (!checkpointer.Save(State(static_cast<double>(step)), {1, step}).ok()) _exit(1);
      }
    }
    // The first must be there once; then at random.
    while (!fs::exists(folder + "/latest")) usleep(1000);
    usleep(random() % 30000);
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    const auto latest = Checkpointer::Latest(folder);
    ASSERT_TRUE(latest.ok()) << latest.status();
    const double number = Number(*latest);
    EXPECT_GE(number, last) << "what was listed once is not lost";
    last = number;
  }
  EXPECT_GT(last, 1);
}

}  // namespace
}  // namespace lockstep
