// What observers write in a run's folder.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "lockstep/comm/texts.h"
#include "lockstep/data/timed_source.h"
#include "lockstep/metrics/write_report.h"
#include "lockstep/trainer/metrics_log.h"
#include "lockstep/trainer/resource_log.h"
#include "lockstep/trainer/tensor_board_log.h"
#include "training_run.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

/// The same empty folder on all ranks.
std::string Folder(const std::string& name) {
  const std::string folder = BroadcastString(std::string(std::getenv("TEST_TMPDIR")) + "/" + name, Group());
  if (Rank() == 0) {
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  Barrier(Group());
  return folder;
}

std::vector<nlohmann::json> Lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::string Bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(ResourceLog, HasALineForEachRankAndEpochAndAResumedRunGoesOn) {
  const std::string folder = Folder("resources");
  for (const size_t first : {1, 2}) {  // the second run begins with epoch 2 anew
    TrainingRun run({4, 4, 3});
    TimedSource<at::Tensor> timed(run.train);
    ResourceLog log({folder, at::kCPU, [&] { return timed.seconds(); }}, Group());
    ASSERT_TRUE(log.Open(first).ok());
    run.pieces.train = &timed;
    run.pieces.observers.push_back(&log);
    run.options.epochs = 2;
    if (first == 1) {
      const absl::Status status = run.Fit();
      ASSERT_TRUE(status.ok()) << status;
    } else {
      log.OnEpochStart(2);
      log.OnValidationStart();
      log.OnEpochEnd({2, 2, {}, false});
    }
  }
  if (Rank() != 0) return;
  const auto lines = Lines(folder + "/ranks.jsonl");
  ASSERT_EQ(lines.size(), static_cast<size_t>(2 * World()));
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["epoch"], i / World() + 1);
    EXPECT_EQ(lines[i]["rank"], i % World());
    EXPECT_GE(lines[i]["data_wait_share"], 0);
    EXPECT_LE(lines[i]["data_wait_share"], 1);
    EXPECT_GT(lines[i]["peak_memory_bytes"], 1 << 20);
    EXPECT_FALSE(lines[i].contains("peak_device_allocated_bytes"));
    EXPECT_FALSE(lines[i].contains("device_utilisation"));
    if (i / World() > 0) continue;
    EXPECT_GT(lines[i]["seconds"], 0);
    EXPECT_NEAR(lines[i]["images_per_second"].get<double>() * lines[i]["seconds"].get<double>(), 11, 1e-6);
  }
}

TEST(ResourceLog, AFileThatCantBeWrittenIsAnErrorOnAllRanks) {
  const std::string file = Folder("unwritable") + "/file";
  if (Rank() == 0) std::ofstream(file) << "no folder";
  Barrier(Group());
  ResourceLog below({file}, Group());
  const absl::Status opened = below.Open();
  EXPECT_FALSE(opened.ok());
  EXPECT_NE(opened.message().find("file/ranks.jsonl"), std::string::npos) << opened;
}

TEST(TimedSource, GivesWhatTheSourceGives) {
  Batches batches({2, 3, 1});
  TimedSource<at::Tensor> timed(batches);
  timed.StartEpoch(0);
  EXPECT_EQ(timed.num_batches(), 3u);
  ASSERT_TRUE(timed.Skip(1));
  EXPECT_EQ(timed.Next()->size(0), 3);
  EXPECT_EQ(timed.Next()->size(0), 1);
  EXPECT_FALSE(timed.Next().has_value());
  EXPECT_GT(timed.seconds(), 0);
}

TEST(TensorBoardLog, CountsTheStepsOfTheWholeRun) {
  const std::string folder = Folder("board");
  TrainingRun run({4, 4, 3});
  TensorBoardLog log(folder, 1);
  if (Rank() == 0) {
    ASSERT_TRUE(log.Open(10, "{\n  \"lr\": 1\n}").ok());
    run.pieces.observers.push_back(&log);
  }
  run.options.epochs = 2;
  Trainer<at::Tensor> trainer(run.pieces, run.options);
  ASSERT_TRUE(trainer.Fit().ok());
  EXPECT_EQ(trainer.total_steps(), 6u);
  if (Rank() != 0) return;
  const std::string bytes = Bytes(log.path());
  // Field 2 of an event, its step, before the field that is a summary.
  for (int step = 11; step <= 16; ++step) {
    EXPECT_NE(bytes.find(std::string("\x10") + static_cast<char>(step) + "\x2A"), std::string::npos) << step;
  }
  EXPECT_EQ(bytes.find("\x10\x11\x2A"), std::string::npos);
  for (const char* tag :
       {"step/loss", "step/learning_rate", "epoch/train_loss", "epoch/val_loss", "    {\n      \"lr\": 1"}) {
    EXPECT_NE(bytes.find(tag), std::string::npos) << tag;
  }
}

TEST(Report, IsDrawnOfWhatARunHasWritten) {
  const std::string folder = Folder("report");
  TrainingRun run({4, 4, 3});
  ResourceLog resources({folder}, Group());
  MetricsLog log(folder, 1);
  ASSERT_TRUE(resources.Open().ok());
  run.pieces.observers.push_back(&resources);
  if (Rank() == 0) {
    ASSERT_TRUE(log.Open().ok());
    run.pieces.observers.push_back(&log);
  }
  run.options.epochs = 2;
  ASSERT_TRUE(run.Fit().ok());
  if (Rank() != 0) return;
  EXPECT_EQ(Lines(folder + "/steps.jsonl")[4]["steps"], 3);
  std::vector<std::string> notes;
  const absl::Status written = WriteReport({folder}, folder + "/train", {"", &notes});
  ASSERT_TRUE(written.ok()) << written;
  EXPECT_TRUE(notes.empty());
  const std::string page = Bytes(folder + "/train.html");
  for (const char* part :
       {"data-name=\"training, per step\"", "data-name=\"validation, per epoch\"", "peak memory", "Ranks"}) {
    EXPECT_NE(page.find(part), std::string::npos) << part;
  }
  EXPECT_TRUE(fs::exists(folder + "/train.svg") && fs::exists(folder + "/train.png"));
}

}  // namespace
}  // namespace lockstep
