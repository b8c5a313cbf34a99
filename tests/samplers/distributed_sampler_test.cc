#include "lockstep/samplers/distributed_sampler.h"

#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "lockstep/data/data_loader_source.h"
#include "lockstep/samplers/epoch_sampler.h"

namespace lockstep {
namespace {

using Indices = std::vector<size_t>;

Indices Drain(DistributedSampler& sampler, size_t batch = 7) {
  Indices all;
  while (auto some = sampler.next(batch)) all.insert(all.end(), some->begin(), some->end());
  return all;
}

Indices Pass(DistributedSampler& sampler) {
  sampler.reset();
  return Drain(sampler);
}

struct GoldenRow {
  size_t size, replicas, rank, epoch;
  DistributedSamplerOptions options;
  Indices indices;
};

std::vector<GoldenRow> Golden() {
  std::ifstream file("tests/samplers/distributed_sampler.txt");
  std::vector<GoldenRow> rows;
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    GoldenRow row;
    std::string colon;
    in >> row.size >> row.replicas >> row.rank >> row.options.shuffle >> row.options.seed >> row.options.drop_last >>
        row.epoch >> colon;
    for (size_t i; in >> i;) row.indices.push_back(i);
    rows.push_back(row);
  }
  return rows;
}

TEST(DistributedSampler, GivesPythonsIndices) {
  const auto rows = Golden();
  ASSERT_GT(rows.size(), 1000u);
  for (const auto& row : rows) {
    DistributedSampler sampler(row.size, row.replicas, row.rank, row.options);
    sampler.set_epoch(row.epoch);
    ASSERT_EQ(Pass(sampler), row.indices) << "size " << row.size << " replicas " << row.replicas << " rank " << row.rank
                                          << " epoch " << row.epoch << " drop_last " << row.options.drop_last;
    ASSERT_EQ(sampler.size(), row.indices.size());
  }
}

/// A data set whose sample i is i.
struct Numbers : torch::data::datasets::BatchDataset<Numbers, Indices, Indices> {
  explicit Numbers(size_t n) : n(n) {}
  Indices get_batch(Indices indices) override { return indices; }
  std::optional<size_t> size() const override { return n; }
  size_t n;
};

TEST(DistributedSampler, SetEpochOnTheUsersObjectReachesLibTorchsLoader) {
  for (size_t workers : {0, 2}) {
    DistributedSampler sampler(33, 2, 1, {true, 1206});
    auto loader = torch::data::make_data_loader(
        Numbers(33), sampler, torch::data::DataLoaderOptions(4).workers(workers).enforce_ordering(true));
    for (size_t epoch = 0; epoch < 3; ++epoch) {
      DistributedSampler expected(33, 2, 1, {true, 1206});
      expected.set_epoch(epoch);
      sampler.set_epoch(epoch);
      Indices all;
      for (auto& batch : *loader) all.insert(all.end(), batch.begin(), batch.end());
      EXPECT_EQ(all, Pass(expected)) << workers << " workers, epoch " << epoch;
    }
  }
}

TEST(DataLoaderSource, StartsEachEpochOfALoader) {
  DistributedSampler sampler(20, 2, 0, {true, 7});
  auto loader = torch::data::make_data_loader(Numbers(20), sampler, torch::data::DataLoaderOptions(3));
  DataLoaderSource<decltype(loader), DistributedSampler> source(std::move(loader), sampler);
  for (size_t epoch = 0; epoch < 3; ++epoch) {
    DistributedSampler expected(20, 2, 0, {true, 7});
    expected.set_epoch(epoch);
    source.StartEpoch(epoch);
    Indices all;
    while (auto batch = source.Next()) all.insert(all.end(), batch->begin(), batch->end());
    EXPECT_EQ(all, Pass(expected));
    EXPECT_FALSE(source.Next());
  }
}

TEST(DistributedSampler, SharesAreDisjointAndOrdersNewEachEpoch) {
  DistributedSampler a(1000, 2, 0, {true, 1}), b(1000, 2, 1, {true, 1});
  const Indices first = Pass(a);
  EXPECT_EQ(Pass(a), first) << "the same order without set_epoch";
  std::set<size_t> all(first.begin(), first.end());
  EXPECT_EQ(all.size(), 500u);
  const Indices other = Pass(b);
  all.insert(other.begin(), other.end());
  EXPECT_EQ(all.size(), 1000u);
  a.set_epoch(1);
  EXPECT_NE(Pass(a), first);
}

TEST(DistributedSampler, DropLastDropsOthersEachEpoch) {
  const auto dropped = [](size_t epoch) {
    std::set<size_t> seen;
    for (size_t rank = 0; rank < 3; ++rank) {
      DistributedSampler sampler(100, 3, rank, {true, 1, true});
      sampler.set_epoch(epoch);
      for (size_t i : Pass(sampler)) seen.insert(i);
    }
    std::set<size_t> missing;
    for (size_t i = 0; i < 100; ++i) {
      if (seen.count(i) == 0) missing.insert(i);
    }
    return missing;
  };
  EXPECT_EQ(dropped(0).size(), 1u);
  std::set<std::set<size_t>> all;
  for (size_t epoch = 0; epoch < 5; ++epoch) all.insert(dropped(epoch));
  EXPECT_GT(all.size(), 1u);
}

TEST(DistributedSampler, WithoutPaddingEverySampleComesOnce) {
  for (size_t n : {0, 1, 3, 4, 101}) {
    for (size_t world : {1, 2, 4, 7}) {
      std::vector<int> count(n, 0);
      for (size_t rank = 0; rank < world; ++rank) {
        DistributedSamplerOptions options;
        options.shuffle = n % 2 == 0;
        options.pad = false;
        DistributedSampler sampler(n, world, rank, options);
        const Indices mine = Pass(sampler);
        EXPECT_EQ(mine.size(), sampler.size());
        EXPECT_LE(mine.size(), n / world + 1);
        for (size_t i : mine) ++count[i];
      }
      EXPECT_EQ(std::count(count.begin(), count.end(), 1), static_cast<long>(n));
    }
  }
}

TEST(DistributedSampler, CopiesShareEpochAndPosition) {
  DistributedSampler a(10, 1, 0);
  DistributedSampler b = a;
  a.set_epoch(3);
  b.reset();
  EXPECT_EQ(b.epoch(), 3u);
  b.next(4);
  EXPECT_EQ(a.position(), 4u);
}

TEST(DistributedSampler, TheBasesSetEpochIsNotLost) {
  DistributedSampler a(50, 1, 0), b(50, 1, 0);
  static_cast<torch::data::samplers::DistributedSampler<>&>(a).set_epoch(2);
  b.set_epoch(2);
  EXPECT_EQ(Pass(a), Pass(b));
}

TEST(DistributedSampler, GoesOnFromASavedPosition) {
  DistributedSampler a(50, 2, 1), b(50, 2, 1);
  a.set_epoch(4);
  a.reset();
  a.next(10);
  torch::serialize::OutputArchive out;
  a.save(out);
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  b.load(in);
  EXPECT_EQ(b.epoch(), 4u);
  EXPECT_EQ(Drain(b), Drain(a));
}

TEST(DistributedSampler, RefusesRanksOutsideTheWorld) {
  EXPECT_THROW(DistributedSampler(10, 2, 2), c10::Error);
  EXPECT_THROW(DistributedSampler(10, 0, 0), c10::Error);
  EXPECT_THROW(DistributedSampler(10, 2, 0, {true, 0, true, false}), c10::Error);
}

/// A user's own sampler, with nothing shared between copies: in epoch e it begins with e.
class Rotating : public torch::data::samplers::DistributedSampler<> {
 public:
  explicit Rotating(size_t n) : torch::data::samplers::DistributedSampler<>(n) {}
  void reset(std::optional<size_t>) override { next_ = 0; }
  std::optional<Indices> next(size_t batch_size) override {
    if (next_ >= size_) return std::nullopt;
    Indices batch;
    for (; batch.size() < batch_size && next_ < size_; ++next_) batch.push_back((next_ + epoch()) % size_);
    return batch;
  }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  size_t next_ = 0;
};

TEST(EpochSampler, TellsAUsersSamplerEachEpoch) {
  EpochSampler sampler{Rotating(5)};
  for (size_t epoch : {0, 1, 2}) {
    sampler.StartEpoch(epoch);
    EXPECT_EQ(sampler.Next(3)->front(), epoch);
    EXPECT_EQ(sampler.Next(3)->size(), 2u);
    EXPECT_FALSE(sampler.Next(3));
  }
  auto shared = std::make_shared<Rotating>(5);
  EpochSampler by_pointer(shared);
  by_pointer.StartEpoch(2);
  EXPECT_EQ(shared->epoch(), 2u);
}

}  // namespace
}  // namespace lockstep
