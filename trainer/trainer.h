#pragma once

#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <torch/optim/schedulers/lr_scheduler.h>

#include <chrono>
#include <functional>
#include <map>
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
#include "lockstep/checkpoint/stop_criterion.h"
#include "lockstep/comm/agree.h"
#include "lockstep/comm/join.h"
#include "lockstep/data/batch_source.h"
#include "lockstep/data/limited_source.h"
#include "lockstep/metrics/metric_sums.h"
#include "lockstep/optim/schedule_state.h"
#include "lockstep/trainer/batch_stream.h"
#include "lockstep/trainer/continue_pass.h"
#include "lockstep/trainer/count_output.h"
#include "lockstep/trainer/evaluation.h"
#include "lockstep/trainer/finite_check.h"
#include "lockstep/trainer/gradient_step.h"
#include "lockstep/trainer/observer.h"
#include "lockstep/trainer/observer_list.h"
#include "lockstep/trainer/run_keeper.h"
#include "lockstep/trainer/run_progress.h"
#include "lockstep/trainer/run_state.h"
#include "lockstep/trainer/step.h"
#include "lockstep/trainer/stop_signals.h"
#include "lockstep/trainer/strategy.h"
#include "lockstep/trainer/trainer_options.h"
#include "lockstep/trainer/training_state.h"

namespace lockstep {

/// A training loop over swappable pieces, and nothing more: whatever it does can be done by hand with the same pieces
/// (see examples/by_hand.cc). Nothing is owned; every piece outlives the trainer. Every rank runs the same calls.
template <typename Batch>
class Trainer {
 public:
  struct Pieces {
    TrainingParts state;           ///< Module (not its wrapper), optimizer, scaler, stop criterion.
    Strategy* strategy = nullptr;  ///< How it is trained on several devices or ranks.
    TrainStep<Batch> train_step;
    EvalStep<Batch> eval_step;
    BatchSource<Batch>* train = nullptr;
    BatchSource<Batch>* validation = nullptr;
    CheckpointWriter* writer = nullptr;              ///< Needed for best_path.
    torch::optim::LRScheduler* scheduler = nullptr;  ///< May be null. A Schedule may go by the epoch's metrics.
    Checkpointer* checkpointer = nullptr;            ///< Saves everything that Resume needs; may be null.
    const StopSignals* signals = nullptr;            ///< Save and stop a batch later; may be null.
    /// What takes part in a Join of ranks with different numbers of batches, DDP and batch norms; empty: all ranks have
    /// as many.
    std::vector<Joinable*> joinables;
    std::vector<TrainObserver*> observers;
  };

  Trainer(Pieces pieces, TrainerOptions options)
      : pieces_(std::move(pieces)),
        options_(Effective(std::move(options), pieces_)),
        observers_(pieces_.observers),
        evaluation_(strategy(), pieces_.eval_step, observers_, options_.device, options_.autocast),
        train_(*pieces_.train, options_.limits.train_batches, options_.limits.overfit_batches > 0),
        group_(strategy().group()),
        gradients_(pieces_.state.optimizer, pieces_.state.scaler, strategy().ddp(), options_.gradients,
                   strategy().shard_group()),
        finite_(options_.finite, group_),
        keeper_(options_.run, {pieces_.state, pieces_.scheduler, strategy().ddp(), &gradients_}, &finite_,
                pieces_.checkpointer, pieces_.signals, options_.limits.max_minutes > 0, options_.device, group_) {}

  /// Before Fit, to go on from a checkpoint of the checkpointer, the batches of whose epoch that are done are left out,
  /// or of best_path, with the epoch after it. In a world of another size the rest of the epoch is shared
  /// out anew; what can't be kept is said in the log. Every rank has the whole checkpoint. Errors, on all ranks: a part
  /// that doesn't fit. Collective.
  absl::Status Resume(const Value& checkpoint) { return keeper_.Resume(checkpoint); }

  /// The epoch that Fit begins or goes on with, and the steps of it that are done.
  size_t epoch() const { return keeper_.progress().epoch; }
  size_t step() const { return keeper_.progress().step; }
  /// Steps of the whole run that are done.
  size_t total_steps() const { return keeper_.progress().total_steps; }

  /// Trains and validates until the epochs are over or the stop criterion says so, on all ranks together. Errors, on
  /// all ranks: a loss, norm or metric that is not finite, but for steps that the scaler skipped; too many skipped
  /// steps; a checkpoint that can't be written; the criterion's. After a signal, when all is saved: EndWithCode.
  absl::Status Fit() {
    const GradientStepOptions& wanted = options_.gradients;
    if (group_ && strategy().ddp() == nullptr && (wanted.weight_by_samples || wanted.check_parameters_every > 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight_by_samples and check_parameters_every need DistributedDataParallel; the strategy is ",
                       strategy().name()));
    }
    const LossScaler& scaler = *pieces_.state.scaler;
    if (scaler.dynamic() && GetWorldSize(scaler.group()) != GetWorldSize(group_)) {
      return absl::InvalidArgumentError(
          "the loss scaler doesn't decide with all ranks, so that they would drift apart; give it their group "
          "(GradScalerOptions::group)");
    }
    try {
      Tell([](TrainObserver& o) { o.OnFitStart(); });
      fit_start_ = Clock::now();
      const bool is_new = epoch() == 1 && step() == 0;
      absl::StatusOr<bool> stop = keeper_.Start();
      // Where a run stopped inside an epoch, that one is still the current one.
      const size_t epochs = epoch() - (keeper_.progress().in_epoch ? 0 : 1);
      if (stop.ok()) stop = *stop && epochs >= options_.limits.min_epochs;
      if (stop.ok() && is_new && options_.limits.sanity_batches > 0) {
        const auto sane = Evaluate(*pieces_.validation, "sanity_", options_.limits.sanity_batches);
        if (!sane.ok()) stop = sane.status();
      }
      while (stop.ok() && !*stop && epoch() <= options_.epochs && !StepsAreOver()) stop = Epoch(epoch());
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

  /// Means over the validation data, as after an epoch: val_loss, … Collective.
  absl::StatusOr<std::map<std::string, double>> Validate() {
    return Evaluate(*pieces_.validation, "val_", options_.limits.validation_batches);
  }

  /// Means over other data: test_loss, … Collective.
  absl::StatusOr<std::map<std::string, double>> Test(BatchSource<Batch>& source) {
    return Evaluate(source, "test_", options_.limits.test_batches);
  }

  /// Means over every sample of `source` on all ranks, each counted once, under `prefix`; over the first `limit`
  /// batches of each rank, unless it is 0. Collective.
  absl::StatusOr<std::map<std::string, double>> Evaluate(BatchSource<Batch>& source, const std::string& prefix,
                                                         size_t limit = 0) {
    EvaluationScope scope(evaluation_);
    auto means = evaluation_.Means(source, prefix, limit);
    scope.End();
    return means;
  }

  /// What `step` makes of each batch of this rank, without gradients and with the module in evaluation mode.
  /// GatherForMetrics brings the ranks' shares into the data set's order.
  template <typename Output>
  std::vector<Output> Predict(BatchSource<Batch>& source, const std::function<Output(Batch&)>& step) {
    EvaluationScope scope(evaluation_);
    std::vector<Output> outputs;
    evaluation_.ForEachBatch(source, options_.limits.test_batches,
                             [&](Batch& batch) { outputs.push_back(step(batch)); });
    scope.End();
    return outputs;
  }

 private:
  using Clock = std::chrono::steady_clock;
  using EvaluationScope = typename Evaluation<Batch>::Scope;

  Strategy& strategy() const { return *pieces_.strategy; }

  static TrainerOptions Effective(TrainerOptions options, Pieces& pieces) {
    TORCH_CHECK(pieces.strategy != nullptr, "trainer: Pieces::strategy is missing");
    pieces.state.split = pieces.strategy->split_state();
    options.limits = options.limits.Effective();
    if (options.limits.fast_dev_run > 0) {
      options.epochs = 1;
      options.best_path.clear();
      pieces.checkpointer = nullptr;
    }
    return options;
  }

  bool StepsAreOver() const {
    return options_.limits.max_steps > 0 && keeper_.progress().total_steps >= options_.limits.max_steps;
  }

  /// Why this rank wishes the training to end; empty: it doesn't.
  std::string Wish() const {
    const std::chrono::duration<double> passed = Clock::now() - fit_start_;
    if (options_.limits.max_minutes > 0 && GetRank(group_) == 0 && passed.count() >= options_.limits.max_minutes * 60) {
      return "max_minutes have passed";
    }
    return observers_.stop_wish();
  }

  /// One epoch, or what the limits leave of it; whether training ends after it.
  absl::StatusOr<bool> Epoch(size_t epoch) {
    Tell([&](TrainObserver& o) { o.OnEpochStart(epoch); });
    LOCKSTEP_ASSIGN_OR_RETURN(const bool whole, TrainEpoch());
    bool stop = stopped_in_epoch_;
    const size_t step = keeper_.progress().step;
    if (whole || info_.epoch != epoch || info_.step != step) {  // else it was judged in this very place
      const size_t every = options_.limits.validate_every_epochs;
      const bool over = !whole || stop || epoch == options_.epochs || StepsAreOver();
      LOCKSTEP_ASSIGN_OR_RETURN(
          const bool wanted, Judge(whole ? 0 : step, over || (every > 0 && epoch % every == 0), /*ends_epoch=*/whole));
      stop |= wanted;
    }
    Tell([&](TrainObserver& o) { o.OnEpochEnd(info_); });
    // What ends inside an epoch has been saved there.
    if (whole) {
      LOCKSTEP_RETURN_IF_ERROR(keeper_.AfterEpoch(info_.metrics, stop || epoch == options_.epochs || StepsAreOver()));
    }
    if (stop) {
      const std::string criterion = pieces_.state.stop->reason(), wish = Wish();
      const std::string& why = !criterion.empty() ? criterion : !wish.empty() ? wish : "another rank wished it";
      Tell([&](TrainObserver& o) { o.OnStopped(why); });
    }
    return stop || !whole;
  }

  /// After an epoch or, with a `step`, inside of it: metrics, the stop criterion, the best state. Whether to stop.
  absl::StatusOr<bool> Judge(size_t step, bool validate, bool ends_epoch) {
    const RunProgress& progress = keeper_.progress();
    info_ = {progress.epoch, options_.epochs, {}, false, step};
    // When the scaler skipped every step of a short epoch there is no training mean, and that is no error.
    LOCKSTEP_ASSIGN_OR_RETURN(info_.metrics,
                              progress.sums.FiniteMeans("train_", group_,
                                                        /*may_be_empty=*/progress.skipped > 0 || progress.step == 0));
    const double train_seconds = Seconds();
    const double samples = info_.metrics["train_samples"];
    info_.metrics.erase("train_samples");
    std::optional<EvaluationScope> scope;
    if (validate) {
      scope.emplace(evaluation_);
      LOCKSTEP_ASSIGN_OR_RETURN(auto validated,
                                evaluation_.Means(*pieces_.validation, "val_", options_.limits.validation_batches));
      validated.erase("val_samples");
      info_.metrics.merge(validated);
    }
    info_.metrics["learning_rate"] = LearningRate();
    const LossScaler& scaler = *pieces_.state.scaler;
    if (const double scale = scaler.scale(); scaler.dynamic() || scale != 1) {
      info_.metrics["loss_scale"] = scale;
      info_.metrics["skipped_steps"] = static_cast<double>(progress.skipped);
    }
    if (ends_epoch && pieces_.scheduler != nullptr && !options_.schedule_each_step) {
      LOCKSTEP_RETURN_IF_ERROR(StepSchedule(*pieces_.scheduler, info_.metrics, /*may_lack_it=*/!validate));
    }

    // One decision for all: they stop after the same step, also with a criterion that differs between ranks.
    StopCriterion::Verdict mine;
    if (validate) {
      const absl::StatusOr<StopCriterion::Verdict> verdict = pieces_.state.stop->Check(info_.metrics);
      LOCKSTEP_RETURN_IF_ERROR(AgreeOnStatus(verdict.status(), group_));
      mine = *verdict;
    }
    if (progress.epoch < options_.limits.min_epochs) mine.stop = false;
    const bool stop = AnyRank(mine.stop || !Wish().empty(), group_);
    info_.improved = AnyRank(mine.improved, group_);
    info_.metrics["stop_counter"] = pieces_.state.stop->counter();
    info_.metrics["images_per_second"] = samples / train_seconds;
    info_.metrics["seconds"] = Seconds();
    Tell([&](TrainObserver& o) { o.OnValidated(info_); });
    if (info_.improved) LOCKSTEP_RETURN_IF_ERROR(Save(options_.best_path, progress.epoch));
    if (scope) scope->End();
    return stop;
  }

  /// Whether the epoch is done, and not left for a limit or a wish.
  absl::StatusOr<bool> TrainEpoch() {
    strategy().wrapper().train();
    stopped_in_epoch_ = false;
    BatchStream<Batch> batches(train_, pieces_.joinables, group_, options_.join);
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
    info.steps = progress.steps_before_pass + (train_.num_batches() + window - 1) / window;
    bool starts = true;  // also a step that a run goes on with
    while (Batch* batch = batches.Next(device)) {
      if (std::exchange(starts, false)) Tell([](TrainObserver& o) { o.OnStepStart(); });
      if (gradients_.between_steps()) {
        gradients_.Begin();
        progress.step_sums = {};
        samples_before_step_ = info.samples;
      }
      const bool last = gradients_.is_next_last() || batches.is_last();
      StepOutput output;
      {
        const auto no_sync = gradients_.ForwardGuard(last);
        std::optional<AutocastGuard> autocast;
        if (options_.autocast) autocast.emplace(options_.device, options_.autocast);
        output = pieces_.train_step(*batch);
      }
      gradients_.Backward(output, last, batches.counts());
      if (batches.counts()) {
        progress.samples = info.samples += output.samples;
        ++progress.batches;
        CountOutput(output, strategy(), progress.step_sums);
      }
      if (last) LOCKSTEP_RETURN_IF_ERROR(Step(info, batches.is_last()));
      starts = last;
      // A join is left between steps, and while all ranks have batches: what it does for those that have none no
      // checkpoint knows.
      if (pieces_.joinables.empty() || (last && batches.all_count())) {
        RunKeeper::Moment moment;
        moment.ends_step = last;
        // The last batch ends the epoch as always.
        moment.ends_run = !batches.is_last() && (StepsAreOver() || stopped_in_epoch_);
        moment.wish = !Wish().empty();
        moment.generators_before_next = &batches.generators_before_next();
        moment.taken = train_.SamplesIn(progress.batches);
        LOCKSTEP_ASSIGN_OR_RETURN(const bool ends, keeper_.AfterBatch(moment));
        if (ends && !batches.is_last()) {
          LOCKSTEP_RETURN_IF_ERROR(finite_.Check());
          return false;
        }
      }
    }
    if (!gradients_.between_steps()) {  // only where a run goes on with other batches
      LogUnfinishedStep(progress.epoch, group_);
      pieces_.state.module->zero_grad();
      gradients_.Begin();
    }
    LOCKSTEP_RETURN_IF_ERROR(finite_.Check());
    return true;
  }

  /// The step after a window of batches; `is_last` of the epoch, whose end validates.
  absl::Status Step(StepInfo& info, bool is_last) {
    RunProgress& progress = keeper_.progress();
    info.stepped = gradients_.Step();
    progress.step = ++info.step;
    ++progress.total_steps;
    if (!std::exchange(batch_is_logged_, true)) LogBatch(strategy(), info.samples - samples_before_step_);
    info.skipped = progress.skipped += info.stepped ? 0 : 1;
    info.grad_norm = gradients_.grad_norm();
    const at::Tensor loss = gradients_.loss();
    LOCKSTEP_RETURN_IF_ERROR(finite_.AddStep(info.stepped, info.epoch, info.step, loss, info.grad_norm));
    if (loss.defined()) progress.loss = info.loss = loss;
    info.loss_value.reset();
    info.seconds = keeper_.progress().seconds = Seconds();
    info.learning_rate = LearningRate();
    info.scaler = pieces_.state.scaler;
    info.sums = &progress.step_sums;
    Tell([&](TrainObserver& o) { o.OnStepEnd(info); });
    if (options_.schedule_each_step && info.stepped && pieces_.scheduler != nullptr) pieces_.scheduler->step();
    if (info.stepped) progress.sums.Add(progress.step_sums);
    const size_t every = options_.limits.validate_every_steps;
    if (every == 0 || progress.total_steps % every != 0 || is_last) return absl::OkStatus();
    LOCKSTEP_RETURN_IF_ERROR(finite_.Check());
    const auto before = Clock::now();
    LOCKSTEP_ASSIGN_OR_RETURN(stopped_in_epoch_, Judge(progress.step, /*validate=*/true, /*ends_epoch=*/false));
    strategy().wrapper().train();
    start_ += Clock::now() - before;
    return absl::OkStatus();
  }

  /// The epoch's pass over the batches, or what is left of it.
  absl::Status StartPass(BatchStream<Batch>& batches) {
    RunProgress& progress = keeper_.progress();
    if (const auto resumed = keeper_.TakeResumed()) {
      LOCKSTEP_ASSIGN_OR_RETURN(const bool goes_on,
                                ContinuePass<Batch>(train_, batches, *resumed, progress, options_.device, group_));
      if (goes_on) return absl::OkStatus();
      LogEpochAgain(progress.epoch, group_);
      pieces_.state.module->zero_grad();
      gradients_.Begin();
    }
    keeper_.BeginEpoch(progress.epoch);
    keeper_.BeginPass();
    train_.StartEpoch(progress.epoch - 1);
    return absl::OkStatus();
  }

  absl::Status Save(const std::string& path, size_t epoch) {
    if (path.empty()) return absl::OkStatus();
    const absl::Status saved = SaveOnRankZero(pieces_.state, epoch, path, *pieces_.writer, group_);
    LOCKSTEP_RETURN_IF_ERROR(ErrorOrWarning(saved, options_.best_failure_is_error, group_));
    if (!saved.ok()) return absl::OkStatus();
    Tell([&](TrainObserver& o) { o.OnSaved(path); });
    return absl::OkStatus();
  }

  double LearningRate() const { return pieces_.state.optimizer->param_groups().front().options().get_lr(); }

  /// Since the epoch's training began, without the time in which the run stood still.
  double Seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  void TellException(const std::string& what) {
    observers_.TellInTrouble([&](TrainObserver& o) { o.OnException(what); });
  }

  template <typename F>
  void Tell(const F& what) const {
    observers_.Tell(what);
  }

  Pieces pieces_;
  TrainerOptions options_;
  const ObserverList observers_;
  const Evaluation<Batch> evaluation_;
  LimitedSource<Batch> train_;
  const ProcessGroupPtr group_;
  GradientStep gradients_;
  FiniteCheck finite_;
  RunKeeper keeper_;
  EpochInfo info_;                 // of the last judgement
  bool stopped_in_epoch_ = false;  // by one inside the epoch
  bool batch_is_logged_ = false;
  int64_t samples_before_step_ = 0;
  Clock::time_point start_ = Clock::now(), fit_start_ = start_;
};

}  // namespace lockstep
