#include "lockstep/trainer/training_state.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <vector>

#include "lockstep/amp/master_weights.h"
#include "lockstep/base/prefixed.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/agree.h"
#include "lockstep/ddp/sharded_state.h"

namespace lockstep {
namespace {

absl::StatusOr<const Value*> Part(const Value& checkpoint, const char* key) {
  const Value* part = checkpoint.find(key);
  if (part == nullptr) return absl::InvalidArgumentError(absl::StrCat("it has no '", key, "'"));
  return part;
}

absl::Status CheckMasterWeights(const Value& saved, const MasterWeights& master) {
  const ValueList* const items = saved.items();
  const auto& copies = master.copies();
  if (items == nullptr || items->size() != copies.size()) {
    return absl::InvalidArgumentError(absl::StrCat("it must be a list of ", copies.size(), " tensors"));
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    const at::Tensor* const tensor = (*items)[i].tensor();
    if (tensor == nullptr || tensor->sizes() != copies[i].sizes() || tensor->scalar_type() != copies[i].scalar_type()) {
      return absl::InvalidArgumentError(absl::StrCat("number ", i, " doesn't fit its parameter"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Value> SaveTrainingState(const TrainingParts& parts, size_t epoch) {
  Value checkpoint((ValueDict())), others((ValueDict()));
  for (const auto& [name, other] : parts.others) others.set(name, other->SaveState());  // first: it may communicate
  Value model;
  ShardedState::Whole optimizer;
  if (parts.split != nullptr) {
    if (MasterWeights::Of(*parts.optimizer) != nullptr) {
      return absl::InvalidArgumentError("master weights of a model that is split over ranks can't be saved");
    }
    LOCKSTEP_ASSIGN_OR_RETURN(model, parts.split->WholeModel());
    LOCKSTEP_ASSIGN_OR_RETURN(optimizer.state, parts.split->WholeOptimizer());
  } else if (auto* const sharded = dynamic_cast<ShardedState*>(parts.optimizer)) {
    LOCKSTEP_ASSIGN_OR_RETURN(optimizer, sharded->WholeState());
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(optimizer.state, OptimizerState(*parts.optimizer));
    if (const auto* const master = MasterWeights::Of(*parts.optimizer)) {
      optimizer.master_weights = ValueList(master->copies().begin(), master->copies().end());
    }
  }
  checkpoint.set("model", parts.split != nullptr ? std::move(model) : ModuleState(*parts.module));
  checkpoint.set("optimizer", std::move(optimizer.state));
  checkpoint.set("scaler", NumbersState(parts.scaler->state()));
  checkpoint.set("epoch", static_cast<int64_t>(epoch));
  const auto stop = parts.stop->state();
  const auto best = stop.find("best");
  checkpoint.set("best", best == stop.end() ? Value() : Value(best->second));
  checkpoint.set("stop", NumbersState(stop));
  if (!optimizer.master_weights.is_none()) checkpoint.set("master_weights", std::move(optimizer.master_weights));
  if (!parts.others.empty()) checkpoint.set("others", std::move(others));
  return checkpoint;
}

absl::Status SaveOnRankZero(const TrainingParts& parts, size_t epoch, const std::string& path, CheckpointWriter& writer,
                            const ProcessGroupPtr& group) {
  const auto state = SaveTrainingState(parts, epoch);
  absl::Status status = state.status();
  if (GetRank(group) == 0 && state.ok()) status = writer.Save(*state, path);
  return AgreeOnStatus(status, group);
}

absl::StatusOr<size_t> LoadTrainingState(const Value& checkpoint, const TrainingParts& parts) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Value* model, Part(checkpoint, "model"));
  LOCKSTEP_ASSIGN_OR_RETURN(const Value* optimizer, Part(checkpoint, "optimizer"));
  LOCKSTEP_ASSIGN_OR_RETURN(const Value* scaler, Part(checkpoint, "scaler"));
  LOCKSTEP_ASSIGN_OR_RETURN(const Value* epoch, Part(checkpoint, "epoch"));
  LOCKSTEP_ASSIGN_OR_RETURN(const Value* stop, Part(checkpoint, "stop"));
  const auto named = [](const std::string& part, const absl::Status& status) {
    return Prefixed("'" + part + "': ", status);
  };
  const auto epoch_number = epoch->count();
  LOCKSTEP_RETURN_IF_ERROR(named("epoch", epoch_number.status()));
  const auto scaler_numbers = LoadNumbersState(*scaler), stop_numbers = LoadNumbersState(*stop);
  LOCKSTEP_RETURN_IF_ERROR(named("scaler", scaler_numbers.status()));
  LOCKSTEP_RETURN_IF_ERROR(named("stop", stop_numbers.status()));
  LOCKSTEP_RETURN_IF_ERROR(named(
      "model", parts.split != nullptr ? parts.split->CheckModel(*model) : CheckModuleState(*model, *parts.module)));
  auto* const sharded = dynamic_cast<ShardedState*>(parts.optimizer);
  auto* const master = sharded == nullptr ? MasterWeights::Of(*parts.optimizer) : nullptr;
  const Value* const master_weights = checkpoint.find("master_weights");
  if (master != nullptr && master_weights != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(named("master_weights", CheckMasterWeights(*master_weights, *master)));
  }
  if (sharded == nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(named("optimizer", parts.split != nullptr
                                                    ? parts.split->LoadOptimizer(*optimizer)
                                                    : LoadOptimizerState(*optimizer, *parts.optimizer)));
  }
  // A run without a scaler may go on with one, which then starts anew.
  if (!scaler_numbers->empty()) LOCKSTEP_RETURN_IF_ERROR(named("scaler", parts.scaler->set_state(*scaler_numbers)));
  LOCKSTEP_RETURN_IF_ERROR(named("stop", parts.stop->set_state(*stop_numbers)));
  const Value* const others = checkpoint.find("others");
  for (const auto& [name, other] : parts.others) {
    const Value* const state = others == nullptr ? nullptr : others->find(name);
    if (state != nullptr) LOCKSTEP_RETURN_IF_ERROR(named(name, other->LoadState(*state)));
  }
  LOCKSTEP_RETURN_IF_ERROR(
      named("model", parts.split != nullptr ? parts.split->LoadModel(*model) : LoadModuleState(*model, *parts.module)));
  // After the model: master weights may be made from it.
  if (sharded != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(named("optimizer", sharded->LoadWholeState(*optimizer, master_weights)));
  }
  if (master != nullptr && master_weights == nullptr) master->SetCopies(master->half_parameters());
  if (master != nullptr && master_weights != nullptr) {
    std::vector<at::Tensor> copies;
    for (const Value& copy : *master_weights->items()) copies.push_back(*copy.tensor());
    master->SetCopies(copies);
  }
  return static_cast<size_t>(*epoch_number);
}

}  // namespace lockstep
