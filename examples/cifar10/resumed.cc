#include "lockstep/examples/cifar10/resumed.h"

#include <absl/strings/str_cat.h>
#include <torch/optim/sgd.h>

#include <set>
#include <string>
#include <utility>

#include "lockstep/base/logging.h"

namespace cifar10 {
namespace {

/// The configuration that a checkpoint was saved with; nothing where it has none that can be read.
bool Before(const lockstep::Value& checkpoint, Config& config, lockstep::ConfigFields& fields) {
  const lockstep::Value* const run = checkpoint.find("run");
  const lockstep::Value* const text = run == nullptr ? nullptr : run->find("config");
  AddFields(config, fields);
  return text != nullptr && text->string() != nullptr &&
         fields.LoadText(*text->string(), "the checkpoint's configuration").ok();
}

}  // namespace

absl::Status CheckResumed(const lockstep::Value& checkpoint, const lockstep::ConfigFields& now, bool logs) {
  Config config;
  lockstep::ConfigFields before;
  if (!Before(checkpoint, config, before)) return absl::OkStatus();
  const std::set<std::string> fixed{"model", "num_classes", "small_images", "seed", "schedule.kind"};
  const std::set<std::string> of_no_matter{"save_dir", "data", "pretrained"};
  std::string changed;
  for (const auto& [name, was, is] : now.DifferencesFrom(before)) {
    if (fixed.count(name) > 0) {
      return absl::InvalidArgumentError(absl::StrCat("the run has ", name, ": ", was, ", now it is ", is,
                                                     "; it must stay the same (--cfg with the run's config.yaml)"));
    }
    if (of_no_matter.count(name) == 0) {
      absl::StrAppend(&changed, changed.empty() ? "" : "; ", name, ": ", is, " instead of ", was);
    }
  }
  if (logs && !changed.empty()) LOG(WARNING) << "the run goes on with other settings: " << changed;
  return absl::OkStatus();
}

absl::Status TakeSettings(const lockstep::Value& checkpoint, const Config& config, const lockstep::Value& configured,
                          torch::optim::Optimizer& optimizer, lockstep::Schedule& schedule) {
  for (auto& group : optimizer.param_groups()) {
    auto& options = static_cast<torch::optim::SGDOptions&>(group.options());
    options.momentum(config.momentum).weight_decay(config.weight_decay);
  }
  lockstep::Value state = schedule.SaveState();
  // Those that are functions of the step have base rates; the plateau's are what it has made of them so far.
  if (const lockstep::Value* const rates = configured.find("base_lrs")) {
    state.set("base_lrs", *rates);
  } else {
    Config before;
    lockstep::ConfigFields fields;
    if (Before(checkpoint, before, fields) && before.lr > 0) {
      lockstep::ValueList scaled;
      for (const double rate : schedule.Rates()) scaled.emplace_back(rate * config.lr / before.lr);
      state.set("_last_lr", lockstep::Value(std::move(scaled)));
    }
  }
  return schedule.LoadState(state);
}

}  // namespace cifar10
