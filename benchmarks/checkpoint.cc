// Ours of the checkpoint benchmark: prints a JSON line with the median seconds of each subject.
//   checkpoint FOLDER MIB ROUNDS
// The files are in the page cache on both sides, as after a save.

#include <ATen/Functions.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/malloc.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/state_dict.h"

namespace {

using namespace lockstep;  // NOLINT: a program
using Clock = std::chrono::steady_clock;

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(int mib) {
    for (int i = 0; i < mib / 16; ++i) register_parameter("p" + std::to_string(i), at::ones({4 << 20}));
  }
};

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::exit(1);
}

double Timed(const std::function<void()>& run) {
  const auto begin = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Kilobytes that were in memory at most.
int64_t Peak() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  KeepFreedMemory();
  const std::string folder = argv[1], path = folder + "/ours.pth";
  const int mib = std::atoi(argv[2]), rounds = std::atoi(argv[3]);
  const auto model = std::make_shared<ModelImpl>(mib);
  Check(SavePth(ModuleState(*model), path));
  std::map<std::string, std::vector<double>> seconds;

  // First, while nothing else has been in memory: what loading into the model takes beside it.
  const int64_t before = Peak();
  const auto load = [&] {
    const auto value = LoadPth(path);
    Check(value.status());
    Check(LoadModuleState(*value, *model));
  };
  load();
  const int64_t after = Peak();
  for (int round = 0; round < rounds; ++round) {
    seconds["open"].push_back(Timed([&] {
      LoadPthOptions options;
      options.verify = false;
      Check(LoadPth(path, options).status());
    }));
    seconds["load"].push_back(Timed(load));
    seconds["save"].push_back(Timed([&] { Check(SavePth(ModuleState(*model), path)); }));
  }
  PthWriter writer;
  CheckpointerOptions options;
  options.folder = folder + "/background";
  options.keep_last = 1;
  for (int round = 0; round < rounds; ++round) {
    Checkpointer checkpointer(options, writer, nullptr);
    const Value state = ModuleState(*model);
    // As between two saves of a training: what the last one wrote is on the disk.
    std::this_thread::sleep_for(std::chrono::seconds(2));
    seconds["first background save"].push_back(Timed([&] { Check(checkpointer.Save(state, {1, 1})); }));
    Check(checkpointer.Wait());
    std::this_thread::sleep_for(std::chrono::seconds(2));
    seconds["later background save"].push_back(Timed([&] { Check(checkpointer.Save(state, {1, 2})); }));
    Check(checkpointer.Wait());
  }
  std::printf("{\"peak beside the model, of the file\": %.4f", static_cast<double>(after - before) / (mib * 1024.));
  for (auto& [name, values] : seconds) {
    std::nth_element(values.begin(), values.begin() + rounds / 2, values.end());
    std::printf(", \"%s\": %.6f", name.c_str(), values[static_cast<size_t>(rounds / 2)]);
  }
  std::printf("}\n");
}
