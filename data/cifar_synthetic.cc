#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <array>
#include <random>
#include <vector>

#include "lockstep/base/status_macros.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/data/cifar.h"

namespace lockstep {
namespace {

constexpr int kClasses = 10, kSide = 32, kGrid = 6, kStep = 8, kPlane = kGrid * kStep;  // 48 × 48 pixels
constexpr int kShift = 32;

/// Whole numbers only, and no distribution of the standard library's: those differ between machines.
class Random {
 public:
  explicit Random(uint64_t seed) : generator_(seed) {}
  /// From 0 to `n` − 1; the bias is below n ÷ 2⁶⁴.
  int Below(int n) { return static_cast<int>(generator_() % static_cast<uint64_t>(n)); }
  /// From −n to n.
  int Around(int n) { return Below(2 * n + 1) - n; }

 private:
  std::mt19937_64 generator_;
};

/// Three smooth planes, each drawn between the points of a coarse grid, that go on at the other end; values from 0 to
/// 255.
using Pattern = std::array<std::array<std::array<int, kPlane>, kPlane>, 3>;

Pattern MakePattern(Random& random) {
  Pattern pattern;
  for (auto& plane : pattern) {
    int grid[kGrid][kGrid];
    for (auto& row : grid) {
      for (int& point : row) point = random.Below(256);
    }
    for (int y = 0; y < kPlane; ++y) {
      for (int x = 0; x < kPlane; ++x) {
        const int gy = y / kStep, gx = x / kStep, fy = y % kStep, fx = x % kStep;
        const int down = (gy + 1) % kGrid, right = (gx + 1) % kGrid;
        const int above = grid[gy][gx] * (kStep - fx) + grid[gy][right] * fx;
        const int below = grid[down][gx] * (kStep - fx) + grid[down][right] * fx;
        plane[y][x] = (above * (kStep - fy) + below * fy) / (kStep * kStep);
      }
    }
  }
  return pattern;
}

/// Label and pixels, as a record of the file.
void AddPicture(std::string& file, const std::vector<Pattern>& patterns, Random& random) {
  const int label = random.Below(kClasses), other = random.Below(kClasses);
  const int share = 60 + random.Below(41);     // of its own pattern, in per cent
  const int contrast = 40 + random.Below(61);  // per cent
  const int light = random.Around(40);         // of 255
  const int y0 = random.Below(kShift), x0 = random.Below(kShift);
  const bool mirrored = random.Below(2) == 1;
  file += static_cast<char>(label);
  for (int c = 0; c < 3; ++c) {
    for (int y = 0; y < kSide; ++y) {
      for (int x = 0; x < kSide; ++x) {
        const int py = (y0 + y) % kPlane, px = (x0 + (mirrored ? kSide - 1 - x : x)) % kPlane;
        const int mixed = (patterns[label][c][py][px] * share + patterns[other][c][py][px] * (100 - share)) / 100;
        const int value = 128 + (mixed - 128) * contrast / 100 + light + random.Around(48);
        file += static_cast<char>(static_cast<unsigned char>(std::clamp(value, 0, 255)));
      }
    }
  }
}

absl::Status WritePictures(const std::string& path, int64_t count, const std::vector<Pattern>& patterns,
                           Random& random) {
  AtomicFile file(path);
  LOCKSTEP_RETURN_IF_ERROR(file.Open());
  std::string record;
  for (int64_t i = 0; i < count; ++i) {
    record.clear();
    AddPicture(record, patterns, random);
    LOCKSTEP_RETURN_IF_ERROR(file.Write(record.data(), record.size()));
  }
  return file.Commit();
}

}  // namespace

absl::Status WriteSyntheticCifar10(const std::string& folder, int64_t train_count, int64_t test_count, uint64_t seed) {
  constexpr int kFiles = 5;
  if (train_count < kFiles || test_count < 1) {
    return absl::InvalidArgumentError(absl::StrCat("synthetic CIFAR-10 of ", train_count, " and ", test_count,
                                                   " pictures: at least 5 for training and 1 for testing"));
  }
  const std::string batches = folder + "/cifar-10-batches-bin/";
  Random random(seed);
  std::vector<Pattern> patterns;
  for (int i = 0; i < kClasses; ++i) patterns.push_back(MakePattern(random));
  for (int i = 0; i < kFiles; ++i) {
    const int64_t count = train_count / kFiles + (i < train_count % kFiles ? 1 : 0);
    LOCKSTEP_RETURN_IF_ERROR(
        WritePictures(absl::StrCat(batches, "data_batch_", i + 1, ".bin"), count, patterns, random));
  }
  LOCKSTEP_RETURN_IF_ERROR(WritePictures(batches + "test_batch.bin", test_count, patterns, random));
  return WriteFileAtomically(batches + "batches.meta.txt",
                             "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n");
}

}  // namespace lockstep
