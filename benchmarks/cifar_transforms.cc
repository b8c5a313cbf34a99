// For each line on stdin: the seconds that one picture takes in the CIFAR-10 job's training transforms, in one thread.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "lockstep/base/malloc.h"
#include "lockstep/data/transforms/pixels.h"
#include "lockstep/data/transforms/resize.h"
#include "lockstep/data/transforms/transform.h"

int main() {
  using namespace lockstep::transforms;  // NOLINT
  lockstep::KeepFreedMemory();
  at::set_num_threads(1);
  constexpr int64_t kBatch = 64, kBatches = 16;
  const Transform transform = Compose(
      {ToFloat(), Normalize({0.485, 0.456, 0.406}, {0.229, 0.224, 0.225}), ResizeAndRandomCrop(256, 256, 224, 224)});
  const at::Tensor pictures = at::randint(0, 256, {kBatch, 3, 32, 32}).to(at::kByte);
  lockstep::BatchKeys keys;
  for (int64_t i = 0; i < kBatch; ++i) keys.samples.push_back(static_cast<size_t>(i));
  transform({pictures, at::Tensor()}, keys);
  for (std::string line; std::getline(std::cin, line);) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < kBatches; ++i) {
      keys.epoch = static_cast<size_t>(i);
      transform({pictures, at::Tensor()}, keys);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    std::printf("%.9f\n", seconds.count() / (kBatch * kBatches));
    std::fflush(stdout);
  }
}
