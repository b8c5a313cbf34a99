#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <c10/core/GradMode.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/base/exit_code.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/save_failure.h"
#include "lockstep/comm/agree.h"
#include "lockstep/comm/join.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/metrics/metric_sums.h"
#include "lockstep/trainer/batch_stream.h"
#include "lockstep/trainer/continue_pass.h"
#include "lockstep/trainer/finite_check.h"
#include "lockstep/trainer/gradient_step.h"
#include "lockstep/trainer/observer.h"
#include "lockstep/trainer/run_keeper.h"
#include "lockstep/trainer/run_progress.h"
#include "lockstep/trainer/run_state.h"
#include "lockstep/trainer/step.h"
#include "lockstep/trainer/stop_signals.h"
#include "lockstep/trainer/training_state.h"

namespace lockstep {

struct TrainerOptions {
  size_t epochs = 1;
  c10::DeviceType device = c10::kCPU;      ///< Where autocast works.
  std::optional<at::ScalarType> autocast;  ///< bfloat16 or float16; nothing: as the caller has it.
  FiniteCheckOptions finite;               ///< Losses that are not finite, skipped steps in a row.
  GradientStepOptions gradients;           ///< Accumulation, weights, clipping, checks.
  bool schedule_each_step = false;         ///< The scheduler steps with the optimizer, not after each epoch.
  JoinOptions join;                        ///< Used when there are joinables.
  std::string best_path;                   ///< Where the best state is kept; empty: nowhere.
  bool best_failure_is_error = true;       ///< Whether training ends when that can't be written; else a warning.
  RunKeeperOptions run;                    ///< When everything is saved, and what else a resumed run needs.
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
    CheckpointWriter* writer = nullptr;              ///< Needed for best_path.
    torch::optim::LRScheduler* scheduler = nullptr;  ///< May be null.
    DistributedDataParallelBase* ddp = nullptr;      ///< The wrapper, where it is one; needed for GradientStepOptions.
    Checkpointer* checkpointer = nullptr;            ///< Saves everything that Resume needs; may be null.
    const StopSignals* signals = nullptr;            ///< Save and stop a batch later; may be null.
    /// What takes part in a Join of ranks with different numbers of batches, `ddp` and batch norms; empty: all ranks
    /// have as many.
    std::vector<Joinable*> joinables;
    std::vector<TrainObserver*> observers;
    ProcessGroupPtr group;
  };

  Trainer(Pieces pieces, TrainerOptions options)
      : pieces_(std::move(pieces)),
        options_(std::move(options)),
        gradients_(pieces_.state.optimizer, pieces_.state.scaler, pieces_.ddp, options_.gradients),
        finite_(options_.finite, pieces_.group),
        keeper_(options_.run, {pieces_.state, pieces_.scheduler, pieces_.ddp, &gradients_}, &finite_,
                pieces_.checkpointer, pieces_.signals, options_.device, pieces_.group) {}

  /// Before Fit, to go on from a checkpoint of the checkpointer, the batches of whose epoch that are done are left out,
  /// or of best_path, with the epoch after it. In a world of another size the rest of the epoch is shared
  /// out anew; what can't be kept is said in the log. Every rank has the whole checkpoint. Errors, on all ranks: a part
  /// that doesn't fit. Collective.
  absl::Status Resume(const Value& checkpoint) { return keeper_.Resume(checkpoint); }

  /// The epoch that Fit begins or goes on with, and the steps of it that are done.
  size_t epoch() const { return keeper_.progress().epoch; }
  size_t step() const { return keeper_.progress().step; }

  /// Trains and validates until the epochs are over or the stop criterion says so, on all ranks together. Errors, on
  /// all ranks: a loss, norm or metric that is not finite, but for steps that the scaler skipped; too many skipped
  /// steps; a checkpoint that can't be written; the criterion's. After a signal, when all is saved: EndWithCode.
  absl::Status Fit() {
    const GradientStepOptions& wanted = options_.gradients;
    if (pieces_.group && pieces_.ddp == nullptr &&
        (wanted.accumulate > 1 || wanted.weight_by_samples || wanted.check_parameters_every > 0)) {
      return absl::InvalidArgumentError("accumulate, weight_by_samples and check_parameters_every need Pieces::ddp");
    }
    const LossScaler& scaler = *pieces_.state.scaler;
    if (scaler.dynamic() && GetWorldSize(scaler.group()) != GetWorldSize(pieces_.group)) {
      return absl::InvalidArgumentError(
          "the loss scaler doesn't decide with all ranks, so that they would drift apart; give it their group "
          "(GradScalerOptions::group)");
    }
    try {
      Tell([](TrainObserver& o) { o.OnFitStart(); });
      absl::StatusOr<bool> stop = keeper_.Start();
      while (stop.ok() && !*stop && epoch() <= options_.epochs) stop = Epoch(epoch());
      absl::Status status = stop.status();
      if (status.ok()) status = keeper_.Finish();
      const std::string why(status.message());
      if (!status.ok() && !ExitCodeOf(status)) TellException(why);
      Tell([](TrainObserver& o) { o.OnFitEnd(); });
      return status;
    } catch (const std::exception& e) {
      TellException(e.what());
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
      const auto autocast = Autocast();
      Count(pieces_.eval_step(*batch), sums);
    }
    return sums.FiniteMeans(prefix, pieces_.group);
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// One epoch; whether to stop after it.
  absl::StatusOr<bool> Epoch(size_t epoch) {
    Tell([&](TrainObserver& o) { o.OnEpochStart(epoch); });
    LOCKSTEP_RETURN_IF_ERROR(TrainEpoch());
    EpochInfo info{epoch, options_.epochs, {}, false};
    const RunProgress& progress = keeper_.progress();
    // When the scaler skipped every step of a short epoch there is no training mean, and that is no error.
    LOCKSTEP_ASSIGN_OR_RETURN(info.metrics,
                              progress.sums.FiniteMeans("train_", pieces_.group,
                                                        /*may_be_empty=*/progress.skipped > 0 || progress.step == 0));
    const double train_seconds = Seconds();
    const double samples = info.metrics["train_samples"];
    info.metrics.erase("train_samples");
    LOCKSTEP_ASSIGN_OR_RETURN(auto validated, Evaluate(*pieces_.validation, "val_"));
    validated.erase("val_samples");
    info.metrics.merge(validated);
    info.metrics["learning_rate"] = LearningRate();
    const LossScaler& scaler = *pieces_.state.scaler;
    if (const double scale = scaler.scale(); scaler.dynamic() || scale != 1) {
      info.metrics["loss_scale"] = scale;
      info.metrics["skipped_steps"] = static_cast<double>(progress.skipped);
    }
    if (pieces_.scheduler != nullptr && !options_.schedule_each_step) pieces_.scheduler->step();

    // One decision for all: they stop after the same step, also with a criterion that differs between ranks.
    const absl::StatusOr<StopCriterion::Verdict> mine = pieces_.state.stop->Check(info.metrics);
    LOCKSTEP_RETURN_IF_ERROR(AgreeOnStatus(mine.status(), pieces_.group));
    const bool stop = AnyRank(mine->stop, pieces_.group);
    info.improved = AnyRank(mine->improved, pieces_.group);
    info.metrics["stop_counter"] = pieces_.state.stop->counter();
    info.metrics["images_per_second"] = samples / train_seconds;
    info.metrics["seconds"] = Seconds();
    Tell([&](TrainObserver& o) { o.OnValidated(info); });
    if (info.improved) LOCKSTEP_RETURN_IF_ERROR(Save(options_.best_path, epoch));
    Tell([&](TrainObserver& o) { o.OnEpochEnd(info); });
    LOCKSTEP_RETURN_IF_ERROR(keeper_.AfterEpoch(info.metrics, stop || epoch == options_.epochs));
    if (stop) Tell([&](TrainObserver& o) { o.OnStopped(pieces_.state.stop->reason()); });
    return stop;
  }

  absl::Status TrainEpoch() {
    pieces_.wrapper->train();
    BatchStream<Batch> batches(*pieces_.train, pieces_.joinables, pieces_.group, options_.join);
    LOCKSTEP_RETURN_IF_ERROR(StartPass(batches));
    const auto device = keeper_.noted_generators();
    RunProgress& progress = keeper_.progress();
    start_ =
        Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(progress.seconds));
    StepInfo info;
    info.epoch = progress.epoch;
    info.epochs = options_.epochs;
    info.step = progress.step;
    info.samples = progress.samples;
    info.loss = progress.loss;
    const size_t window = options_.gradients.accumulate;
    info.steps = progress.steps_before_pass + (pieces_.train->num_batches() + window - 1) / window;
    bool starts = true;  // also a step that a run goes on with
    while (Batch* batch = batches.Next(device)) {
      if (std::exchange(starts, false)) Tell([](TrainObserver& o) { o.OnStepStart(); });
      if (gradients_.between_steps()) {
        gradients_.Begin();
        progress.step_sums = {};
      }
      const bool last = gradients_.is_next_last() || batches.is_last();
      StepOutput output;
      {
        const auto no_sync = gradients_.ForwardGuard(last);
        const auto autocast = Autocast();
        output = pieces_.train_step(*batch);
      }
      gradients_.Backward(output, last, batches.counts());
      if (batches.counts()) {
        progress.samples = info.samples += output.samples;
        ++progress.batches;
        Count(output, progress.step_sums);
      }
      if (last) LOCKSTEP_RETURN_IF_ERROR(Step(info));
      starts = last;
      // A join is left between steps, and while all ranks have batches: what it does for those that have none no
      // checkpoint knows.
      if (pieces_.joinables.empty() || (last && batches.all_count())) {
        LOCKSTEP_RETURN_IF_ERROR(
            keeper_.AfterBatch(last, batches.generators_before_next(), pieces_.train->SamplesIn(progress.batches)));
      }
    }
    if (!gradients_.between_steps()) {  // only where a run goes on with other batches
      LogUnfinishedStep(progress.epoch, pieces_.group);
      pieces_.state.module->zero_grad();
      gradients_.Begin();
    }
    return finite_.Check();
  }

  /// The step after a window of batches.
  absl::Status Step(StepInfo& info) {
    RunProgress& progress = keeper_.progress();
    info.stepped = gradients_.Step();
    progress.step = ++info.step;
    ++progress.total_steps;
    info.skipped = progress.skipped += info.stepped ? 0 : 1;
    info.grad_norm = gradients_.grad_norm();
    const at::Tensor loss = gradients_.loss();
    LOCKSTEP_RETURN_IF_ERROR(finite_.AddStep(info.stepped, info.epoch, info.step, loss, info.grad_norm));
    if (loss.defined()) progress.loss = info.loss = loss;
    info.loss_value.reset();
    info.seconds = keeper_.progress().seconds = Seconds();
    info.learning_rate = LearningRate();
    info.scaler = pieces_.state.scaler;
    Tell([&](TrainObserver& o) { o.OnStepEnd(info); });
    if (options_.schedule_each_step && info.stepped && pieces_.scheduler != nullptr) pieces_.scheduler->step();
    if (info.stepped) progress.sums.Add(progress.step_sums);
    return absl::OkStatus();
  }

  /// The epoch's pass over the batches, or what is left of it.
  absl::Status StartPass(BatchStream<Batch>& batches) {
    RunProgress& progress = keeper_.progress();
    if (const auto resumed = keeper_.TakeResumed()) {
      LOCKSTEP_ASSIGN_OR_RETURN(const bool goes_on, ContinuePass(*pieces_.train, batches, *resumed, progress,
                                                                 options_.device, pieces_.group));
      if (goes_on) return absl::OkStatus();
      LogEpochAgain(progress.epoch, pieces_.group);
      pieces_.state.module->zero_grad();
      gradients_.Begin();
    }
    keeper_.BeginEpoch(progress.epoch);
    keeper_.BeginPass();
    pieces_.train->StartEpoch(progress.epoch - 1);
    return absl::OkStatus();
  }

  static void Count(const StepOutput& output, MetricSums& sums) {
    sums.Add("loss", output.loss.detach().to(at::kDouble) * output.samples);
    for (const auto& [name, sum] : output.sums) sums.Add(name, sum);
    sums.AddSamples(output.samples);
  }

  absl::Status Save(const std::string& path, size_t epoch) {
    if (path.empty()) return absl::OkStatus();
    const absl::Status saved = SaveOnRankZero(pieces_.state, epoch, path, *pieces_.writer, pieces_.group);
    LOCKSTEP_RETURN_IF_ERROR(ErrorOrWarning(saved, options_.best_failure_is_error, pieces_.group));
    if (!saved.ok()) return absl::OkStatus();
    Tell([&](TrainObserver& o) { o.OnSaved(path); });
    return absl::OkStatus();
  }

  std::unique_ptr<AutocastGuard> Autocast() const {
    return options_.autocast ? std::make_unique<AutocastGuard>(options_.device, options_.autocast) : nullptr;
  }

  double LearningRate() const { return pieces_.state.optimizer->param_groups().front().options().get_lr(); }

  /// Since the epoch's training began, without the time in which the run stood still.
  double Seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  /// What an observer throws now must not hide what it is told.
  void TellException(const std::string& what) {
    for (auto* observer : pieces_.observers) {
      try {
        observer->OnException(what);
      } catch (const std::exception&) {
      }
    }
  }

  template <typename F>
  void Tell(F&& what) {
    for (auto* observer : pieces_.observers) what(*observer);
  }

  Pieces pieces_;
  TrainerOptions options_;
  GradientStep gradients_;
  FiniteCheck finite_;
  RunKeeper keeper_;
  Clock::time_point start_ = Clock::now();
};

}  // namespace lockstep
