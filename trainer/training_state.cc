#include "lockstep/trainer/training_state.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep {
namespace {

absl::StatusOr<const Value*> Part(const Value& checkpoint, const char* key) {
  const Value* part = checkpoint.find(key);
  if (part == nullptr) return absl::InvalidArgumentError(absl::StrCat("it has no '", key, "'"));
  return part;
}

}  // namespace

absl::StatusOr<Value> SaveTrainingState(const TrainingParts& parts, size_t epoch) {
  Value checkpoint((ValueDict()));
  checkpoint.set("model", ModuleState(*parts.module));
  LOCKSTEP_ASSIGN_OR_RETURN(Value optimizer, OptimizerState(*parts.optimizer));
  checkpoint.set("optimizer", std::move(optimizer));
  checkpoint.set("scaler", NumbersState(parts.scaler->state()));
  checkpoint.set("epoch", static_cast<int64_t>(epoch));
  const auto stop = parts.stop->state();
  const auto best = stop.find("best");
  checkpoint.set("best", best == stop.end() ? Value() : Value(best->second));
  checkpoint.set("stop", NumbersState(stop));
  return checkpoint;
}

absl::StatusOr<size_t> LoadTrainingState(const Value& checkpoint, const TrainingParts& parts) {
  LOCKSTEP_ASSIGN_OR_RETURN(const Value* model, Part(checkpoint, "model"));
  LOCKSTEP_ASSIGN_OR_RETURN(const Value* optimizer, Part(checkpoint, "optimizer"));
  LOCKSTEP_ASSIGN_OR_RETURN(const Value* scaler, Part(checkpoint, "scaler"));
  LOCKSTEP_ASSIGN_OR_RETURN(const Value* epoch, Part(checkpoint, "epoch"));
  LOCKSTEP_ASSIGN_OR_RETURN(const Value* stop, Part(checkpoint, "stop"));
  LOCKSTEP_ASSIGN_OR_RETURN(const double epoch_number, epoch->number());
  LOCKSTEP_ASSIGN_OR_RETURN(const auto scaler_numbers, LoadNumbersState(*scaler));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto stop_numbers, LoadNumbersState(*stop));
  LOCKSTEP_RETURN_IF_ERROR(LoadModuleState(*model, *parts.module));
  LOCKSTEP_RETURN_IF_ERROR(LoadOptimizerState(*optimizer, *parts.optimizer));
  if (!scaler_numbers.empty()) parts.scaler->set_state(scaler_numbers);
  LOCKSTEP_RETURN_IF_ERROR(parts.stop->set_state(stop_numbers));
  return static_cast<size_t>(epoch_number);
}

}  // namespace lockstep
