#include "lockstep/data/stream_source.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/data/record_stream.h"

namespace lockstep {
namespace {

using Batch = std::vector<int>;
using Source = StreamSource<int, Batch>;

/// The numbers below `end` that are the shard's. At each it may do something.
class Numbers : public Stream<int> {
 public:
  Numbers(size_t shard, size_t num_shards, int end, std::function<void(int)> at = nullptr)
      : next_(static_cast<int>(shard)), step_(static_cast<int>(num_shards)), end_(end), at_(std::move(at)) {}
  std::optional<int> Next() override {
    if (next_ >= end_) return std::nullopt;
    const int number = next_;
    if (at_) at_(number);
    next_ += step_;
    return number;
  }

 private:
  int next_;
  const int step_, end_;
  const std::function<void(int)> at_;
};

StreamFactory<int> Below(int end, std::function<void(int)> at = nullptr) {
  return [=](size_t shard, size_t num_shards, size_t) { return std::make_unique<Numbers>(shard, num_shards, end, at); };
}

Batch Same(std::vector<int> samples) { return samples; }

StreamSourceOptions Options(size_t workers, size_t batch_size) {
  StreamSourceOptions options;
  options.num_workers = workers;
  options.batch_size = batch_size;
  return options;
}

std::vector<Batch> Pass(Source& source, size_t epoch = 0) {
  source.StartEpoch(epoch);
  std::vector<Batch> batches;
  while (auto batch = source.Next()) batches.push_back(*batch);
  EXPECT_FALSE(source.Next());
  return batches;
}

std::vector<int> Sorted(const std::vector<Batch>& batches) {
  std::vector<int> all;
  for (const Batch& batch : batches) all.insert(all.end(), batch.begin(), batch.end());
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<int> Range(int end) {
  std::vector<int> range;
  for (int i = 0; i < end; ++i) range.push_back(i);
  return range;
}

TEST(StreamSource, EverySampleOnceOverAllRanksAndWorkers) {
  for (const size_t world : {1, 3}) {
    for (const size_t workers : {1, 2, 5}) {
      for (const size_t buffer : {0, 4, 1000}) {
        for (const int samples : {0, 1, 7, 100}) {
          std::vector<Batch> all;
          for (size_t rank = 0; rank < world; ++rank) {
            StreamSourceOptions options = Options(workers, 4);
            options.rank = rank;
            options.world_size = world;
            options.shuffle_buffer = buffer;
            Source source(Below(samples), Same, options);
            for (const Batch& batch : Pass(source)) all.push_back(batch);
          }
          EXPECT_EQ(Sorted(all), Range(samples)) << world << workers << buffer;
        }
      }
    }
  }
}

TEST(StreamSource, WorkersTakeTurnsAndThoseThatEndedAreLeftOut) {
  // Worker 0 has 0, 3, 6, 9 and so on; worker 2 has fewer.
  Source source(Below(10), Same, Options(3, 2));
  EXPECT_EQ(Pass(source), (std::vector<Batch>{{0, 3}, {1, 4}, {2, 5}, {6, 9}, {7}, {8}}));
  EXPECT_EQ(source.SamplesIn(4), 8u);
  EXPECT_EQ(source.SamplesIn(6), 10u);
  EXPECT_FALSE(source.SamplesIn(7));
  StreamSourceOptions options = Options(3, 2);
  options.drop_last = true;
  Source dropping(Below(10), Same, options);
  EXPECT_EQ(Pass(dropping), (std::vector<Batch>{{0, 3}, {1, 4}, {2, 5}, {6, 9}}));
  // One has nothing at all.
  Source few(Below(2), Same, Options(4, 2));
  EXPECT_EQ(Pass(few), (std::vector<Batch>{{0}, {1}}));
}

TEST(StreamSource, TheOrderIsTheSameWhateverTheTiming) {
  // Worker 0 gives nothing before worker 1 has given all that its bound allows.
  std::promise<void> others;
  std::atomic<int> read{0};
  const auto wait = [&, there = others.get_future().share()](int number) {
    if (number % 2 == 0) there.wait();
    if (number % 2 == 1 && ++read == 6) others.set_value();
  };
  StreamSourceOptions options = Options(2, 2);
  Source source(Below(20, wait), Same, options), plain(Below(20), Same, options);
  EXPECT_EQ(Pass(source), Pass(plain));
}

TEST(StreamSource, WorkersStayWithinTheirBound) {
  std::atomic<int> read{0};
  StreamSourceOptions options = Options(1, 2);
  options.prefetch = 3;
  Source source(Below(1000, [&](int) { ++read; }), Same, options);
  source.StartEpoch(0);
  for (int taken = 1; taken < 20; ++taken) {
    ASSERT_TRUE(source.Next());
    EXPECT_LE(read, 2 * (taken + 3 + 1));  // what was taken, is ready, and is held until there is room
  }
}

TEST(StreamSource, ABufferShufflesByEpochAndSeed) {
  StreamSourceOptions options = Options(2, 5);
  options.shuffle_buffer = 8;
  Source source(Below(100), Same, options), again(Below(100), Same, options);
  const auto first = Pass(source, 0), second = Pass(source, 1);
  EXPECT_EQ(first, Pass(again, 0));
  EXPECT_NE(first, second);
  EXPECT_EQ(second, Pass(again, 1));
  options.seed = uint64_t{1} << 40;
  Source other(Below(100), Same, options);
  EXPECT_NE(first, Pass(other, 0));
  options.shuffle_buffer = 0;
  Source plain(Below(100), Same, options);
  EXPECT_NE(first, Pass(plain, 0));
}

TEST(StreamSource, SkipLeavesBatchesOut) {
  Source source(Below(50), Same, Options(3, 4)), whole(Below(50), Same, Options(3, 4));
  const auto all = Pass(whole, 2);
  source.StartEpoch(2);
  EXPECT_TRUE(source.Skip(5));
  EXPECT_EQ(source.SamplesIn(5), 20u);
  EXPECT_EQ(*source.Next(), all[5]);
  EXPECT_FALSE(source.Skip(1000));
}

std::string Thrown(Source& source) {
  try {
    source.Next();
  } catch (const c10::Error& e) {
    return e.what();
  }
  return "";
}

TEST(StreamSource, AnExceptionComesInItsTurnWithShardAndSample) {
  const auto fail = [](int number) {
    if (number == 9) throw std::runtime_error("bad sample");
  };
  StreamSourceOptions options = Options(2, 2);
  options.rank = 1;
  options.world_size = 2;  // shards 2 and 3 of 4: 2, 6, 10, … and 3, 7, 11, …
  Source good(Below(40, fail), Same, options);
  EXPECT_EQ(Pass(good).size(), 10u);
  options.rank = 0;  // 0, 4, 8, … and 1, 5, 9, …
  Source source(Below(40, fail), Same, options);
  source.StartEpoch(0);
  EXPECT_EQ(*source.Next(), (Batch{0, 4}));
  EXPECT_EQ(*source.Next(), (Batch{1, 5}));
  EXPECT_EQ(*source.Next(), (Batch{8, 12}));
  for (int i = 0; i < 2; ++i) {
    EXPECT_NE(Thrown(source).find("shard 1 of 4, sample 2: bad sample"), std::string::npos) << Thrown(source);
  }
}

TEST(StreamSource, ExceptionsOfTheFactoryAndOfCollateToo) {
  Source no_stream([](size_t, size_t, size_t) { return nullptr; }, Same, Options(1, 1));
  no_stream.StartEpoch(0);
  EXPECT_NE(Thrown(no_stream).find("shard 0 of 1, sample 0: the factory gave no stream"), std::string::npos);
  Source odd([](size_t, size_t, size_t) -> std::unique_ptr<Stream<int>> { throw 1; }, Same, Options(1, 1));
  odd.StartEpoch(0);
  EXPECT_NE(Thrown(odd).find("an exception"), std::string::npos);
  Source collate(
      Below(4), [](std::vector<int>) -> Batch { throw std::runtime_error("too long"); }, Options(1, 2));
  collate.StartEpoch(0);
  EXPECT_NE(Thrown(collate).find("sample 2: too long"), std::string::npos);
}

TEST(StreamSource, APassThatIsLeftEarlyEnds) {
  for (const size_t taken : {0, 1, 5}) {
    Source source(Below(1 << 30), Same, Options(3, 2));
    for (size_t epoch = 0; epoch < 2; ++epoch) {
      source.StartEpoch(epoch);
      for (size_t i = 0; i < taken; ++i) EXPECT_TRUE(source.Next());
    }
  }
  // Also one that collects a batch without end.
  Source endless(Below(1 << 30), Same, Options(1, 1 << 30));
  endless.StartEpoch(0);
}

TEST(StreamSource, RefusesWhatDoesNotFit) {
  EXPECT_THROW(Source(Below(1), Same, Options(0, 1)), c10::Error);
  EXPECT_THROW(Source(Below(1), Same, Options(1, 0)), c10::Error);
  StreamSourceOptions options;
  options.rank = 1;
  EXPECT_THROW(Source(Below(1), Same, options), c10::Error);
  Source source(Below(1), Same, Options(1, 1));
  EXPECT_THROW(source.Next(), c10::Error);
}

std::string Folder() {
  std::string pattern = std::string(std::getenv("TEST_TMPDIR")) + "/records.XXXXXX";
  return mkdtemp(pattern.data());
}

std::string Write(const std::string& text) {
  const std::string path = Folder() + "/file";
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

std::vector<std::string> All(const StreamFactory<std::string>& open, size_t shard = 0, size_t num_shards = 1,
                             size_t epoch = 0) {
  std::vector<std::string> all;
  const auto stream = open(shard, num_shards, epoch);
  while (auto record = stream->Next()) all.push_back(*record);
  return all;
}

using Strings = std::vector<std::string>;

TEST(RecordStream, LinesOfAllFiles) {
  const auto open = RecordStreams({Write("a\nb\r\n\nc"), Write(""), Write("\n"), Write("d\n")});
  EXPECT_EQ(All(open), (Strings{"a", "b", "", "c", "", "d"}));
}

TEST(RecordStream, RecordsOfOneSize) {
  RecordStreamOptions options;
  options.record_bytes = 3;
  EXPECT_EQ(All(RecordStreams({Write("abc\n\n\n"), Write("def")}, options)), (Strings{"abc", "\n\n\n", "def"}));
}

TEST(RecordStream, FilesAreDealtOutAndEachLineComesOnce) {
  Strings files, lines;
  for (int i = 0; i < 10; ++i) files.push_back(Write(lines.emplace_back(std::to_string(i)) + "\n"));
  RecordStreamOptions options;
  options.shuffle_seed = 3;
  Strings orders[2];
  for (size_t epoch = 0; epoch < 2; ++epoch) {
    for (size_t shard = 0; shard < 3; ++shard) {
      for (const auto& line : All(RecordStreams(files, options), shard, 3, epoch)) orders[epoch].push_back(line);
    }
    Strings sorted = orders[epoch];
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(sorted, lines);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_EQ(All(RecordStreams(files), 1, 4), (Strings{"1", "5", "9"}));
}

TEST(RecordStream, WhatIsWrongIsNamed) {
  const auto expect = [](const Strings& files, const RecordStreamOptions& options, const std::string& want) {
    try {
      All(RecordStreams(files, options));
      FAIL() << want;
    } catch (const c10::Error& e) {
      EXPECT_NE(std::string(e.what()).find(want), std::string::npos) << e.what();
    }
  };
  RecordStreamOptions options;
  options.max_line_bytes = 3;
  const std::string path = Write("abc\nabcd\n");
  expect({path}, options, path + ": a line of more than 3 bytes");
  options.record_bytes = 4;
  expect({path}, options, path + ": truncated: the last record has 1 bytes, not 4");
  expect({"/nowhere"}, options, "/nowhere: no such file");
  expect({Folder()}, options, "not a regular file");
}

TEST(StreamSource, LinesBecomeBatches) {
  StreamSource<std::string, Strings> source(
      RecordStreams({Write("a\nb\nc\n"), Write("d\n")}), [](Strings lines) { return lines; }, Options(2, 2));
  source.StartEpoch(0);
  EXPECT_EQ(*source.Next(), (Strings{"a", "b"}));
  EXPECT_EQ(*source.Next(), (Strings{"d"}));
  EXPECT_EQ(*source.Next(), (Strings{"c"}));
  EXPECT_FALSE(source.Next());
}

}  // namespace
}  // namespace lockstep
