#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <c10/core/GradMode.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <chrono>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/comm/agree.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/metrics/metric_sums.h"
#include "lockstep/trainer/observer.h"
#include "lockstep/trainer/step.h"
#include "lockstep/trainer/training_state.h"

namespace lockstep {

struct TrainerOptions {
  size_t epochs = 1;
  size_t first_epoch = 1;                  ///< More than 1 when resuming.
  c10::DeviceType device = c10::kCPU;      ///< Where autocast works.
  std::optional<at::ScalarType> autocast;  ///< bfloat16 or float16; nothing: off.
  size_t max_skipped_steps = 20;           ///< That the scaler may skip in a row before it is an error.
  std::string best_path;                   ///< Where the best state is kept; empty: nowhere.
  std::string last_path;                   ///< Where the last epoch's state is kept; empty: nowhere.
};

/// A training loop over swappable pieces, and nothing more: whatever it does can be done by hand with the same pieces
/// (see examples/by_hand.cc). Nothing is owned; every piece outlives the trainer. Every rank runs the same calls.
template <typename Batch>
class Trainer {
 public:
  struct Pieces {
    TrainingParts state;                   ///< Module (not its wrapper), optimizer, scaler, stop criterion.
    torch::nn::Module* wrapper = nullptr;  ///< Is switched between training and evaluation; may be the module.
    TrainStep<Batch> train_step;
    EvalStep<Batch> eval_step;
    BatchSource<Batch>* train = nullptr;
    BatchSource<Batch>* validation = nullptr;
    CheckpointWriter* writer = nullptr;              ///< Needed for best_path and last_path.
    torch::optim::LRScheduler* scheduler = nullptr;  ///< Stepped after each epoch; may be null.
    std::vector<TrainObserver*> observers;
    ProcessGroupPtr group;
  };

  Trainer(Pieces pieces, TrainerOptions options) : pieces_(std::move(pieces)), options_(std::move(options)) {}

  /// Trains and validates until the epochs are over or the stop criterion says so, on all ranks together. Errors: a
  /// loss or metric that is not finite, too many skipped steps, a checkpoint that can't be written, the criterion's.
  absl::Status Fit() {
    try {
      Tell([](TrainObserver& o) { o.OnFitStart(); });
      absl::StatusOr<bool> stop = false;
      for (size_t epoch = options_.first_epoch; epoch <= options_.epochs && stop.ok() && !*stop; ++epoch)
        stop = Epoch(epoch);
      if (!stop.ok()) Tell([&](TrainObserver& o) { o.OnException(std::string(stop.status().message())); });
      Tell([](TrainObserver& o) { o.OnFitEnd(); });
      return stop.status();
    } catch (const std::exception& e) {
      Tell([&](TrainObserver& o) { o.OnException(e.what()); });
      throw;
    }
  }

  /// Means over every sample of `source` on all ranks, each counted once, under `prefix`.
  absl::StatusOr<std::map<std::string, double>> Evaluate(BatchSource<Batch>& source, const std::string& prefix) {
    Tell([](TrainObserver& o) { o.OnValidationStart(); });
    pieces_.wrapper->eval();
    const c10::NoGradGuard no_grad;
    MetricSums sums;
    source.StartEpoch(0);
    while (auto batch = source.Next()) {
      const AutocastGuard autocast(options_.device, options_.autocast);
      Count(pieces_.eval_step(*batch), sums);
    }
    return Means(sums, prefix);
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// One epoch; whether to stop after it.
  absl::StatusOr<bool> Epoch(size_t epoch) {
    Tell([&](TrainObserver& o) { o.OnEpochStart(epoch); });
    const auto start = Clock::now();
    MetricSums sums;
    LOCKSTEP_RETURN_IF_ERROR(TrainEpoch(epoch, start, sums));
    EpochInfo info{epoch, options_.epochs, {}, false};
    // When the scaler skipped every step of a short epoch there is no training mean, and that is no error.
    LOCKSTEP_ASSIGN_OR_RETURN(info.metrics, Means(sums, "train_", /*may_be_empty=*/skipped_ > 0));
    const double train_seconds = Seconds(start);
    const double samples = info.metrics["train_samples"];
    info.metrics.erase("train_samples");
    LOCKSTEP_ASSIGN_OR_RETURN(auto validated, Evaluate(*pieces_.validation, "val_"));
    validated.erase("val_samples");
    info.metrics.merge(validated);
    info.metrics["learning_rate"] = LearningRate();
    if (pieces_.scheduler != nullptr) pieces_.scheduler->step();

    // One decision for all: they stop after the same step, also with a criterion that differs between ranks.
    const absl::StatusOr<StopCriterion::Verdict> mine = pieces_.state.stop->Check(info.metrics);
    LOCKSTEP_RETURN_IF_ERROR(Agreed(mine.status()));
    const bool stop = AnyRank(mine->stop, pieces_.group);
    info.improved = AnyRank(mine->improved, pieces_.group);
    info.metrics["stop_counter"] = pieces_.state.stop->counter();
    info.metrics["images_per_second"] = samples / train_seconds;
    info.metrics["seconds"] = Seconds(start);
    Tell([&](TrainObserver& o) { o.OnValidated(info); });
    if (info.improved) LOCKSTEP_RETURN_IF_ERROR(Save(options_.best_path, epoch));
    LOCKSTEP_RETURN_IF_ERROR(Save(options_.last_path, epoch));
    Tell([&](TrainObserver& o) { o.OnEpochEnd(info); });
    if (stop) Tell([&](TrainObserver& o) { o.OnStopped(pieces_.state.stop->reason()); });
    return stop;
  }

  absl::Status TrainEpoch(size_t epoch, Clock::time_point start, MetricSums& sums) {
    auto& [module, optimizer, scaler, criterion] = pieces_.state;
    pieces_.wrapper->train();
    pieces_.train->StartEpoch(epoch - 1);
    StepInfo info;
    info.epoch = epoch;
    info.epochs = options_.epochs;
    info.steps = pieces_.train->num_batches();
    while (auto batch = pieces_.train->Next()) {
      optimizer->zero_grad(/*set_to_none=*/false);
      StepOutput output;
      {
        const AutocastGuard autocast(options_.device, options_.autocast);
        output = pieces_.train_step(*batch);
      }
      scaler->Scale(output.loss).backward();
      info.stepped = scaler->Step(*optimizer);
      scaler->Update();
      skipped_ = info.stepped ? 0 : skipped_ + 1;
      if (skipped_ >= options_.max_skipped_steps) {
        return absl::InternalError(absl::StrCat("epoch ", epoch, ", step ", info.step + 1, ": ", skipped_,
                                                " steps in a row had gradients that are not finite"));
      }

      ++info.step;
      info.samples += output.samples;
      info.seconds = Seconds(start);
      info.learning_rate = LearningRate();
      info.loss = output.loss.detach();
      info.loss_value.reset();
      info.scaler = scaler;
      Tell([&](TrainObserver& o) { o.OnStepEnd(info); });
      // A skipped step is the scaler's business; otherwise a number that somebody looked at must be one.
      if (info.stepped) Count(output, sums);
      if (info.stepped && info.loss_value && !std::isfinite(*info.loss_value)) {
        return absl::InternalError(absl::StrCat("epoch ", epoch, ", step ", info.step, ": the loss is ",
                                                *info.loss_value, ", not a finite number"));
      }
    }
    return absl::OkStatus();
  }

  static void Count(const StepOutput& output, MetricSums& sums) {
    sums.Add("loss", output.loss.detach().to(at::kDouble) * output.samples);
    for (const auto& [name, sum] : output.sums) sums.Add(name, sum);
    sums.AddSamples(output.samples);
  }

  /// Means under `prefix`, and `<prefix>samples`. The same on all ranks, so that an error is too.
  absl::StatusOr<std::map<std::string, double>> Means(const MetricSums& sums, const std::string& prefix,
                                                      bool may_be_empty = false) {
    const MetricSums::Result result = sums.Reduce(pieces_.group);
    if (result.samples == 0 && !may_be_empty)
      return Agreed(absl::InternalError(absl::StrCat(prefix, "metrics: there was no sample")));
    std::map<std::string, double> means = {{prefix + "samples", static_cast<double>(result.samples)}};
    for (const auto& [name, mean] : result.means) {
      if (!std::isfinite(mean)) {
        return Agreed(
            absl::InternalError(absl::StrCat("metric ", prefix, name, " is ", mean, ", not a finite number")));
      }
      means[prefix + name] = mean;
    }
    return means;
  }

  /// Rank 0 writes; all know whether it worked.
  absl::Status Save(const std::string& path, size_t epoch) {
    if (path.empty()) return absl::OkStatus();
    absl::Status status;
    if (GetRank(pieces_.group) == 0) {
      auto state = SaveTrainingState(pieces_.state, epoch);
      status = state.ok() ? pieces_.writer->Save(*state, path) : state.status();
    }
    LOCKSTEP_RETURN_IF_ERROR(Agreed(status));
    Tell([&](TrainObserver& o) { o.OnSaved(path); });
    return absl::OkStatus();
  }

  absl::Status Agreed(const absl::Status& status) { return AgreeOnStatus(status, pieces_.group); }

  double LearningRate() const { return pieces_.state.optimizer->param_groups().front().options().get_lr(); }

  static double Seconds(Clock::time_point since) { return std::chrono::duration<double>(Clock::now() - since).count(); }

  template <typename F>
  void Tell(F&& what) {
    for (auto* observer : pieces_.observers) what(*observer);
  }

  Pieces pieces_;
  TrainerOptions options_;
  size_t skipped_ = 0;  // steps in a row
};

}  // namespace lockstep
