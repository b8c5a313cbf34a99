#include "lockstep/examples/mnist/resumed_config.h"

#include <absl/strings/str_cat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "lockstep/base/logging.h"

namespace mnist {
namespace {

using Json = nlohmann::json;

/// A number in the bounds that the command line's have.
template <typename T>
T Number(const Json& json, const char* key, double least, double most, T otherwise) {
  if (!json.contains(key) || !json[key].is_number()) return otherwise;
  const double number = json[key].get<double>();
  return number >= least && number <= most ? static_cast<T>(number) : otherwise;
}

absl::Status CheckSameData(const Json& before, const Json& now, const std::string& resume_path) {
  for (const char* key : {"data", "seed", "pixel_scale"}) {
    if (before.contains(key) && before[key] != now[key]) {
      return absl::InvalidArgumentError(absl::StrCat("--resume=", resume_path, ": the run has ", key, " ",
                                                     before[key].dump(), ", now it is ", now[key].dump(),
                                                     "; it must stay the same"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status KeepConfig(const std::string& before_text, const std::string& resume_path, const Plan& plan, bool warns,
                        Config& config) {
  const auto before = Json::parse(before_text, nullptr, /*allow_exceptions=*/false);
  if (!before.is_object()) return absl::OkStatus();
  const auto now = Json::parse(ConfigJson(config, plan));
  if (absl::Status same = CheckSameData(before, now, resume_path); !same.ok()) return same;
  for (const char* key : {"amp", "loss_scale", "max_grad_norm", "max_grad_value", "sync_batch_norm",
                          "decay_biases_and_norms", "deterministic", "matmul_precision", "backend"}) {
    if (!warns || !before.contains(key) || before[key] == now[key]) continue;
    LOG(WARNING) << "the run had --" << key << "=" << before[key].dump() << ", now it is " << now[key].dump();
  }

  constexpr double kFloat = 3e38, kInt = 1e9;
  if (!config.lr_given) config.lr = Number(before, "lr", 0, kFloat, config.lr);
  if (!config.weight_decay_given) config.weight_decay = Number(before, "weight_decay", 0, kFloat, config.weight_decay);
  if (!config.accumulate_given) config.accumulate = Number(before, "accumulate", 1, kInt, config.accumulate);
  if (config.batch_size_given) return absl::OkStatus();
  const int world_size = plan.environment.world_size, ranks = Number(before, "world_size", 1, kInt, world_size);
  config.batch_size = Number(before, "batch_size", 1, kInt, config.batch_size);
  config.global_batch_size = Number(before, "global_batch_size", 1, 1e15, int64_t{config.batch_size} * ranks);
  if (config.global_batch_size % world_size == 0) {
    config.batch_size = static_cast<int>(std::min<int64_t>(config.global_batch_size / world_size, 1'000'000'000));
  } else if (warns && ranks != world_size) {
    LOG(WARNING) << "the batch of all ranks, " << config.global_batch_size << " samples, doesn't divide by "
                 << world_size << " ranks: each has " << config.batch_size;
  }
  return absl::OkStatus();
}

}  // namespace mnist
