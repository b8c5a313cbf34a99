#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/data/batch_keys.h"

namespace lockstep::transforms {

/// The random numbers of one sample in one transform: SplitMix64 (Steele, Lea and Flood, doi:10.1145/2660193.2660195)
/// from a state made of seed, epoch, sample and stream. A UniformRandomBitGenerator.
class SampleRandom {
 public:
  /// Of the batch's sample at `position`.
  SampleRandom(const BatchKeys& keys, size_t position) : state_(keys.seed) {
    for (const uint64_t part :
         {static_cast<uint64_t>(keys.epoch), static_cast<uint64_t>(keys.samples.at(position)), keys.stream}) {
      state_ = (*this)() ^ part;
    }
  }

  using result_type = uint64_t;
  static constexpr uint64_t min() { return 0; }
  static constexpr uint64_t max() { return ~uint64_t{0}; }

  uint64_t operator()() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    return z ^ (z >> 31);
  }

  /// From 0 to n − 1.
  int64_t Below(int64_t n) {
    return static_cast<int64_t>(static_cast<unsigned __int128>((*this)()) * static_cast<uint64_t>(n) >> 64);
  }
  /// In [low, high).
  double Uniform(double low = 0, double high = 1) {
    return low + (high - low) * (static_cast<double>((*this)() >> 11) * 0x1p-53);
  }

 private:
  uint64_t state_;
};

}  // namespace lockstep::transforms
