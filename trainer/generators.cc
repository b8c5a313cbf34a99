#include "lockstep/trainer/generators.h"

#include <absl/strings/str_cat.h>
#include <ATen/Context.h>
#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error_text.h"

namespace lockstep {
namespace {

std::vector<std::pair<std::string, c10::DeviceType>> Kinds(c10::DeviceType device) {
  std::vector<std::pair<std::string, c10::DeviceType>> kinds = {{"cpu", at::kCPU}};
  if (device == at::kCUDA) kinds.emplace_back("cuda", at::kCUDA);
  return kinds;
}

/// https://prng.di.unimi.it/splitmix64.c
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

Value GeneratorsState(c10::DeviceType device) {
  Value state((ValueDict()));
  for (const auto& [name, kind] : Kinds(device)) {
    at::Generator generator = at::globalContext().defaultGenerator(at::Device(kind));
    const std::lock_guard<std::mutex> lock(generator.mutex());
    state.set(name, generator.get_state());
  }
  return state;
}

absl::Status LoadGeneratorsState(const Value& state, c10::DeviceType device) {
  for (const auto& [name, kind] : Kinds(device)) {
    const Value* const saved = state.find(name);
    if (saved == nullptr) continue;
    if (saved->tensor() == nullptr) return absl::InvalidArgumentError("the state of a random generator is no tensor");
    try {
      at::Generator generator = at::globalContext().defaultGenerator(at::Device(kind));
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(saved->tensor()->cpu().contiguous());
    } catch (const c10::Error& e) {
      return absl::InvalidArgumentError(absl::StrCat("the state of a random generator: ", FirstLine(e.what())));
    }
  }
  return absl::OkStatus();
}

void SeedGenerators(uint64_t seed, int rank, uint64_t step) {
  torch::manual_seed(Mix(Mix(Mix(seed) + static_cast<uint64_t>(rank)) + step));
}

}  // namespace lockstep
