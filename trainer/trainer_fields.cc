#include "lockstep/trainer/trainer_fields.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

namespace lockstep {

void AddTrainerFields(const std::string& prefix, TrainerOptions& options, ConfigFields& fields) {
  const auto add = [&](const std::string& name, auto* variable, const std::string& doc) {
    fields.Add(prefix + name, variable, doc);
  };
  const auto not_negative = [&](const std::string& name, double* variable, const std::string& doc) {
    add(name, variable, doc);
    fields.Check(prefix + name, [variable] {
      if (*variable >= 0) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("must be at least 0, got ", *variable));
    });
  };
  const auto at_least_1 = [&](const std::string& name, size_t* variable, const std::string& doc) {
    add(name, variable, doc);
    fields.Check(prefix + name, [variable] {
      return *variable >= 1 ? absl::OkStatus() : absl::InvalidArgumentError("must be at least 1");
    });
  };

  add("schedule_each_step", &options.schedule_each_step, "the schedule steps with the optimizer, not after each epoch");

  RunLimits& limits = options.limits;
  add("limits.min_epochs", &limits.min_epochs, "the stop criterion isn't heard before");
  add("limits.max_steps", &limits.max_steps, "steps of the optimizer at most; 0: any number");
  not_negative("limits.max_minutes", &limits.max_minutes, "time at most; 0: any");
  add("limits.train_batches", &limits.train_batches, "training batches of an epoch, on each rank; 0: all");
  add("limits.validation_batches", &limits.validation_batches, "batches of a validation, on each rank; 0: all");
  add("limits.test_batches", &limits.test_batches, "batches of a test or prediction, on each rank; 0: all");
  add("limits.overfit_batches", &limits.overfit_batches,
      "train on the same few batches in each epoch, and validate on as many; 0: no");
  add("limits.fast_dev_run", &limits.fast_dev_run, "try everything on so many batches and save nothing; 0: no");
  add("limits.validate_every_steps", &limits.validate_every_steps, "validations inside an epoch; 0: none");
  add("limits.validate_every_epochs", &limits.validate_every_epochs, "epochs between validations; 0: only at the end");
  add("limits.sanity_batches", &limits.sanity_batches, "batches that are validated before the training; 0: none");

  GradientStepOptions& gradients = options.gradients;
  at_least_1("gradients.accumulate", &gradients.accumulate, "batches whose gradients one step takes together");
  add("gradients.weight_by_samples", &gradients.weight_by_samples, "every sample of a step weighs the same");
  not_negative("gradients.max_grad_norm", &gradients.max_grad_norm, "gradients are scaled down to it; 0: not");
  not_negative("gradients.grad_norm_type", &gradients.grad_norm_type, "the p of that norm");
  add("gradients.clip_each_group", &gradients.clip_each_group, "the norm is each parameter group's own");
  not_negative("gradients.max_grad_value", &gradients.max_grad_value, "each number is clamped to it; 0: not");
  add("gradients.detect_anomaly", &gradients.detect_anomaly, "say where a number first isn't finite; slow");
  add("gradients.check_parameters_every", &gradients.check_parameters_every,
      "steps between checks that all ranks' parameters are equal; 0: none");

  add("finite.every", &options.finite.every, "steps after which losses are looked at; 0: at an epoch's end");
  add("finite.max_skipped_steps", &options.finite.max_skipped_steps, "steps in a row that the scaler may skip; 0: any");

  CheckpointIntervals& checkpoints = options.run.checkpoints;
  add("checkpoints.steps", &checkpoints.steps, "steps between checkpoints; 0: not by steps");
  add("checkpoints.epochs", &checkpoints.epochs, "epochs between checkpoints; 0: not by epochs");
  not_negative("checkpoints.minutes", &checkpoints.minutes, "minutes between checkpoints; 0: not by time");
  add("stop_exit_code", &options.run.stop_exit_code, "exit code after a signal, when all is saved");
  fields.Check(prefix + "stop_exit_code", [code = &options.run.stop_exit_code] {
    return *code >= 1 && *code <= 255 ? absl::OkStatus() : absl::InvalidArgumentError("must be from 1 to 255");
  });
}

}  // namespace lockstep
