#include <gtest/gtest.h>
#include <torch/data/samplers/sequential.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "lockstep/samplers/distributed_sampler.h"
#include "lockstep/samplers/distributed_sampler_wrapper.h"
#include "lockstep/samplers/epoch_sampler.h"
#include "lockstep/samplers/length_batch_sampler.h"
#include "lockstep/samplers/subset_sampler.h"
#include "lockstep/samplers/weighted_sampler.h"

namespace lockstep {
namespace {

using Indices = std::vector<size_t>;
using Batches = std::vector<Indices>;

Batches BatchesOf(EpochSampler sampler, size_t epoch, size_t batch = 7) {
  sampler.StartEpoch(epoch);
  Batches batches;
  while (auto some = sampler.Next(batch)) batches.push_back(*some);
  return batches;
}

Indices Join(const Batches& batches) {
  Indices all;
  for (const Indices& some : batches) all.insert(all.end(), some.begin(), some.end());
  return all;
}

template <typename S>
Indices PassOf(const S& sampler, size_t epoch = 0) {
  return Join(BatchesOf(sampler, epoch));
}

// See make_samplers.py.
TEST(WeightedAndSubsetSampler, GivePythonsIndices) {
  std::ifstream file("tests/samplers/samplers.txt");
  int weighted = 0, subsets = 0;
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    std::string kind, colon;
    in >> kind;
    const auto numbers = [&](auto sample) {
      std::vector<decltype(sample)> list;
      for (std::string word; in >> word && word != ":";) list.push_back(static_cast<decltype(sample)>(std::stod(word)));
      return list;
    };
    if (kind == "weighted") {
      WeightedSamplerOptions options;
      in >> options.replacement >> options.num_samples >> options.seed >> colon;
      const auto weights = numbers(double{});
      const auto expected = numbers(size_t{});
      EXPECT_EQ(PassOf(WeightedSampler(weights, options)), expected) << line;
      if (options.seed > 0) {
        --options.seed;
        EXPECT_EQ(PassOf(WeightedSampler(weights, options), 1), expected) << "the epoch is added to the seed";
      }
      ++weighted;
    } else {
      SubsetSamplerOptions options;
      in >> options.seed >> colon;
      const auto subset = numbers(size_t{});
      EXPECT_EQ(PassOf(SubsetSampler(subset, options)), numbers(size_t{})) << line;
      ++subsets;
    }
  }
  EXPECT_GT(weighted, 50);
  EXPECT_EQ(subsets, 15);
}

TEST(WeightedSampler, DrawsEachIndexInProportionAndNoneOfWeightZero) {
  WeightedSamplerOptions options;
  options.num_samples = 20000;
  const Indices drawn = PassOf(WeightedSampler({1, 0, 3}, options));
  EXPECT_EQ(std::count(drawn.begin(), drawn.end(), 1), 0);
  EXPECT_NEAR(static_cast<double>(std::count(drawn.begin(), drawn.end(), 2)) / 20000, 0.75, 0.02);
}

TEST(WeightedSampler, RefusesWeightsThatMakeNoSense) {
  EXPECT_THROW(WeightedSampler({}), c10::Error);
  EXPECT_THROW(WeightedSampler({0, 0}), c10::Error);
  EXPECT_THROW(WeightedSampler({1, -1}), c10::Error);
  EXPECT_THROW(WeightedSampler({1, std::nan("")}), c10::Error);
  EXPECT_THROW(WeightedSampler({1e308, 1e308}), c10::Error) << "their sum is infinite";
  EXPECT_THROW(WeightedSampler({1, 0, 1}, {3, false}), c10::Error) << "two can be drawn without replacement";
}

TEST(SubsetSampler, KeepsItsOrderUnlessItShuffles) {
  EXPECT_EQ(PassOf(SubsetSampler({5, 3, 9}, {false}), 4), (Indices{5, 3, 9}));
  EXPECT_EQ(PassOf(SubsetSampler({})), Indices{});
  Indices many(100);
  for (size_t i = 0; i < 100; ++i) many[i] = 3 * i;
  const SubsetSampler sampler(many);
  Indices first = PassOf(sampler, 0), second = PassOf(sampler, 1);
  EXPECT_NE(first, second);
  EXPECT_EQ(PassOf(sampler, 0), first);
  std::sort(first.begin(), first.end());
  EXPECT_EQ(first, many);
}

TEST(PassSampler, CopiesShareEpochAndPositionAndStatesGoOn) {
  SubsetSampler a({1, 2, 3, 4, 5, 6, 7, 8, 9}), copy = a, other({1, 2, 3, 4, 5, 6, 7, 8, 9});
  a.set_epoch(3);
  copy.reset();
  EXPECT_EQ(copy.epoch(), 3u);
  copy.next(4);
  EXPECT_EQ(a.position(), 4u);
  EXPECT_EQ(a.size(), 9u);
  torch::serialize::OutputArchive out;
  a.save(out);
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  other.load(in);
  EXPECT_EQ(other.next(20), a.next(20));
  EXPECT_FALSE(other.next(1));
  EXPECT_THROW(a.reset(5), c10::Error);
}

TEST(DistributedSamplerWrapper, SharesASubsetAsDistributedSamplerWould) {
  for (const bool drop_last : {false, true}) {
    for (const bool pad : {true, false}) {
      if (drop_last && !pad) continue;
      for (const size_t n : {0, 1, 2, 7, 10, 33}) {
        for (const size_t world : {1, 2, 3, 8}) {
          for (size_t rank = 0; rank < world; ++rank) {
            Indices numbers(n);
            for (size_t i = 0; i < n; ++i) numbers[i] = i;
            // Both are shuffled as Python shuffles with seed + epoch.
            DistributedSamplerWrapper wrapped(SubsetSampler(numbers, {true, 9}), world, rank, {drop_last, pad});
            const DistributedSampler direct(n, world, rank, {true, 9, drop_last, pad});
            EXPECT_EQ(wrapped.size(), direct.size()) << "before a pass";
            for (const size_t epoch : {0, 3}) {
              EXPECT_EQ(PassOf(wrapped, epoch), PassOf(direct, epoch)) << n << " " << world << " " << rank;
              EXPECT_EQ(wrapped.size(), direct.size());
            }
          }
        }
      }
    }
  }
}

TEST(DistributedSamplerWrapper, SharesOutTheRestOfAnEpochThatAnotherWorldHasBegun) {
  const auto rest_of = [](size_t rank) {
    EpochSampler sampler(DistributedSamplerWrapper(SubsetSampler({10, 11, 12, 13, 14, 15}, {false}), 2, rank));
    EXPECT_TRUE(sampler.StartRest(1, {EpochPart{{1, 1, 1}}}));  // three ranks had taken one each
    EXPECT_EQ(sampler.size(), 2u);
    return *sampler.Next(10);
  };
  EXPECT_EQ(rest_of(0), (Indices{13, 15}));
  EXPECT_EQ(rest_of(1), (Indices{14, 13}));
}

/// A user's sampler of the epoch's first numbers, whose number differs between epochs, without a size.
class Growing : public torch::data::samplers::Sampler<> {
 public:
  void set_epoch(size_t epoch) { epoch_ = epoch; }
  void reset(std::optional<size_t>) override { next_ = 0; }
  std::optional<Indices> next(size_t) override {
    if (next_ > epoch_) return std::nullopt;
    return Indices{next_++};
  }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}

 private:
  size_t epoch_ = 0, next_ = 0;
};

TEST(DistributedSamplerWrapper, TellsTheInnerSamplerTheEpoch) {
  DistributedSamplerWrapper wrapped(Growing(), 2, 1);
  EXPECT_EQ(PassOf(wrapped, 5), (Indices{1, 3, 5}));
  EXPECT_EQ(PassOf(wrapped, 2), (Indices{1, 0}));
  const DistributedSamplerWrapper plain(torch::data::samplers::SequentialSampler(5), 2, 0);
  EXPECT_EQ(PassOf(plain, 3), (Indices{0, 2, 4})) << "has neither set_epoch nor size";
}

TEST(DistributedSamplerWrapper, GoesOnFromASavedPosition) {
  const auto make = [] { return DistributedSamplerWrapper(SubsetSampler({1, 2, 3, 4, 5, 6, 7, 8, 9}), 2, 1); };
  auto a = make(), b = make();
  a.set_epoch(4);
  a.reset();
  a.next(2);
  torch::serialize::OutputArchive out;
  a.save(out);
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  b.load(in);
  EXPECT_EQ(b.next(20), a.next(20));
  EXPECT_THROW(a.reset(5), c10::Error);
  EXPECT_THROW(DistributedSamplerWrapper(SubsetSampler({1}), 2, 2), c10::Error);
}

std::vector<size_t> Lengths(size_t n) {
  std::vector<size_t> lengths;
  for (size_t i = 0; i < n; ++i) lengths.push_back(i * 7919 % 101);  // also 0
  return lengths;
}

size_t PaddedLength(const Indices& batch, const std::vector<size_t>& lengths) {
  size_t longest = 0;
  for (const size_t i : batch) longest = std::max(longest, lengths[i]);
  return longest * batch.size();
}

TEST(LengthBatchSampler, AllRanksHaveAsManyBatchesAndTogetherEverySample) {
  for (const bool drop_last : {false, true}) {
    for (const size_t n : {0, 1, 5, 100, 1003}) {
      const auto lengths = Lengths(n);
      for (const size_t world : {1, 2, 3, 4}) {
        for (const size_t most : {0, 250}) {
          LengthBatchSamplerOptions options;
          options.batch_size = 8;
          options.max_padded_length = most;
          options.window = 4;
          options.drop_last = drop_last;
          std::multiset<size_t> seen;
          std::set<size_t> numbers;
          for (size_t rank = 0; rank < world; ++rank) {
            const LengthBatchSampler sampler(lengths, world, rank, options);
            const Batches batches = BatchesOf(sampler, 1, /*batch=*/1);
            EXPECT_EQ(batches.size(), sampler.num_batches());
            numbers.insert(batches.size());
            for (const Indices& batch : batches) {
              EXPECT_FALSE(batch.empty());
              EXPECT_LE(batch.size(), 8u);
              EXPECT_TRUE(most == 0 || PaddedLength(batch, lengths) <= most);
              seen.insert(batch.begin(), batch.end());
            }
          }
          EXPECT_EQ(numbers.size(), 1u);
          const std::set<size_t> different(seen.begin(), seen.end());
          if (drop_last) {
            EXPECT_EQ(different.size(), seen.size()) << "none comes twice";
          } else {
            EXPECT_EQ(different.size(), n);
            EXPECT_LE(seen.size(), n + 8 * (world - 1));
          }
        }
      }
    }
  }
}

TEST(LengthBatchSampler, PadsLittleAndShufflesEachEpochAnew) {
  const auto lengths = Lengths(2000);
  LengthBatchSamplerOptions options;
  options.batch_size = 10;
  const LengthBatchSampler sampler(lengths, 2, 0, options), other(lengths, 2, 1, options);
  const Batches batches = BatchesOf(sampler, 0), others = BatchesOf(other, 0);
  size_t padded = 0, length = 0, apart = 0;
  for (size_t i = 0; i < batches.size(); ++i) {
    padded += PaddedLength(batches[i], lengths);
    for (const size_t sample : batches[i]) length += lengths[sample];
    const size_t mine = lengths[batches[i][0]], its = lengths[others[i][0]];
    apart += mine > its ? mine - its : its - mine;
  }
  EXPECT_LT(static_cast<double>(padded), 1.1 * static_cast<double>(length));
  EXPECT_LT(apart, 5 * batches.size()) << "ranks have batches of similar length at the same step";
  EXPECT_EQ(BatchesOf(sampler, 0), batches);
  EXPECT_NE(BatchesOf(sampler, 1), batches);
  std::vector<size_t> firsts;
  for (const Indices& batch : batches) firsts.push_back(lengths[batch[0]]);
  EXPECT_FALSE(std::is_sorted(firsts.begin(), firsts.end(), std::greater<>())) << "long ones don't all come first";
}

TEST(LengthBatchSampler, WithoutShufflingKeepsWindowsInOrder) {
  LengthBatchSamplerOptions options;
  options.batch_size = 2;
  options.window = 1;
  options.shuffle = false;
  const LengthBatchSampler sampler({1, 2, 3, 4, 9}, 1, 0, options);
  EXPECT_EQ(BatchesOf(sampler, 3), (Batches{{1, 0}, {3, 2}, {4}}));
}

TEST(LengthBatchSampler, RefusesWhatCannotBe) {
  LengthBatchSamplerOptions options;
  EXPECT_THROW(LengthBatchSampler({1}, 2, 2, options), c10::Error);
  options.max_padded_length = 5;
  EXPECT_THROW(LengthBatchSampler({1, 6}, 1, 0, options), c10::Error);
  options.window = 0;
  EXPECT_THROW(LengthBatchSampler({1}, 1, 0, options), c10::Error);
}

}  // namespace
}  // namespace lockstep
