#include "lockstep/examples/mnist/train.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/amp/no_scaler.h"
#include "lockstep/amp/static_scaler.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/early_stopping.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/save_failure.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/comm/agree.h"
#include "lockstep/data/mnist.h"
#include "lockstep/data/random_split.h"
#include "lockstep/data/tensor_loader.h"
#include "lockstep/data/timed_source.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/ddp/parameter_sync.h"
#include "lockstep/examples/mnist/resumed_config.h"
#include "lockstep/metrics/write_report.h"
#include "lockstep/models/conv_net.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/channels_last.h"
#include "lockstep/optim/learning_rate.h"
#include "lockstep/optim/parameter_groups.h"
#include "lockstep/samplers/distributed_sampler.h"
#include "lockstep/trainer/buffer_sync.h"
#include "lockstep/trainer/metrics_log.h"
#include "lockstep/trainer/progress.h"
#include "lockstep/trainer/resource_log.h"
#include "lockstep/trainer/trace_writer.h"
#include "lockstep/trainer/trainer.h"

#include "lockstep/base/logging.h"

namespace mnist {
namespace {

using lockstep::DistributedSampler;
using lockstep::TensorBatch;
using lockstep::TensorLoader;
using Ddp = lockstep::DistributedDataParallel<lockstep::models::ConvNetImpl>;

enum class Use { kTraining, kEvaluation };

/// This rank's batches of one part of the split, on the device, pixels scaled.
std::unique_ptr<TensorLoader> MakeLoader(const lockstep::MnistData& data, const at::Tensor& part, Use use,
                                         const Config& config, at::Device device,
                                         const lockstep::ProcessGroupPtr& group) {
  lockstep::DistributedSamplerOptions options;
  options.seed = config.seed;
  options.shuffle = options.pad = use == Use::kTraining;
  DistributedSampler sampler(part.numel(), lockstep::GetWorldSize(group), lockstep::GetRank(group), options);
  lockstep::LoaderOptions loader;
  loader.batch_size = config.batch_size;
  loader.samples = sampler.size();
  const double scale = config.pixel_scale;
  return std::make_unique<TensorLoader>(
      data.images.index_select(0, part), data.labels.index_select(0, part), std::move(sampler), loader,
      [scale, device](TensorBatch batch, const lockstep::BatchKeys&) {
        return TensorBatch{batch.data.to(device, at::kFloat).div_(scale), batch.target.to(device)};
      });
}

}  // namespace

std::optional<at::ScalarType> AutocastType(const Config& config, bool cuda) {
  if (config.amp == "bf16") return at::kBFloat16;
  if (config.amp == "fp16" || (config.amp == "auto" && cuda)) return at::kHalf;
  return std::nullopt;
}

absl::Status Train(const Config& given, const Plan& plan, const RunFolder& paths, const lockstep::StopSignals& signals,
                   const lockstep::ProcessGroupPtr& group) {
  const at::Device device =
      plan.cuda ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(plan.device_index)) : at::kCPU;
  const int rank = lockstep::GetRank(group), world_size = lockstep::GetWorldSize(group);

  Config config = given;
  if (paths.best_path != paths.folder + "/cnn.pt") config.pt_path = paths.best_path;
  std::optional<lockstep::Value> checkpoint;
  if (!paths.resume_path.empty()) {
    auto loaded = lockstep::LoadPth(paths.resume_path);
    absl::Status status = loaded.status();
    if (status.ok()) status = KeepConfig(ResumedConfig(*loaded, paths), paths.resume_path, plan, rank == 0, config);
    LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(status, group));
    checkpoint = *std::move(loaded);
  }

  // Data, the same on all ranks; each takes its share of each part.
  auto data = lockstep::LoadMnist(config.data);
  LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(data.status(), group));
  const auto split = lockstep::RandomSplit(data->labels.numel(), {0.8, 0.1, 0.1}, config.seed);
  LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(split.status(), group));
  const auto& parts = *split;
  const auto train = MakeLoader(*data, parts[0], Use::kTraining, config, device, group);
  const auto validation = MakeLoader(*data, parts[1], Use::kEvaluation, config, device, group);
  const auto test = MakeLoader(*data, parts[2], Use::kEvaluation, config, device, group);
  if (train->num_batches() == 1 && rank == 0) {
    LOG(WARNING) << "rank 0: the batch size " << config.batch_size << " is no less than a rank's share of "
                 << parts[0].numel() << " samples over " << world_size << " ranks: each epoch is one short batch";
  }

  // The same weights on every rank; from then on each rank's generator goes its own way, for dropout and augmentation.
  torch::manual_seed(config.seed);
  lockstep::models::ConvNet model;
  torch::manual_seed(config.seed + rank);
  model->to(device);
  lockstep::nn::ToChannelsLast(*model);
  if (config.sync_batch_norm) LOCKSTEP_RETURN_IF_ERROR(lockstep::nn::ConvertSyncBatchNorm(*model, group).status());
  lockstep::DistributedDataParallelOptions ddp_options;
  ddp_options.broadcast_buffers = false;  // once before each validation is enough: see BufferSync
  Ddp ddp(model, group, ddp_options);
  const double lr_factor =
      lockstep::ScaleLearningRate(1, world_size, *lockstep::ParseLearningRateScaling(config.scale_lr));
  const auto sgd = torch::optim::SGDOptions(config.lr * lr_factor).weight_decay(config.weight_decay);
  LOCKSTEP_ASSIGN_OR_RETURN(auto groups, lockstep::OptimizerGroups(*model, sgd, {config.decay_biases_and_norms, {}}));
  torch::optim::SGD optimizer(groups, sgd);

  const auto autocast = AutocastType(config, plan.cuda);
  if (autocast == at::kHalf && !plan.cuda && rank == 0) {
    LOG(WARNING) << "rank 0: float16 on the CPU is many times slower than float32; --amp=bf16 is not";
  }
  std::unique_ptr<lockstep::LossScaler> scaler = std::make_unique<lockstep::NoScaler>();
  if (autocast == at::kHalf && config.loss_scale > 0) {
    scaler = std::make_unique<lockstep::StaticScaler>(config.loss_scale);
  } else if (autocast == at::kHalf) {
    lockstep::GradScalerOptions options;
    options.group = group;
    scaler = std::make_unique<lockstep::GradScaler>(options);
  }
  lockstep::EarlyStoppingOptions stopping;
  stopping.monitor = "val_accuracy";
  stopping.mode = lockstep::EarlyStoppingOptions::Mode::kMax;
  stopping.patience = config.patience;
  lockstep::EarlyStopping early_stopping(stopping);
  const lockstep::TrainingParts state{model.get(), &optimizer, scaler.get(), &early_stopping};

  lockstep::TrainerOptions options;
  options.epochs = config.epochs;
  options.gradients.accumulate = config.accumulate;
  options.gradients.max_grad_norm = config.max_grad_norm;
  options.gradients.max_grad_value = config.max_grad_value;
  options.gradients.check_parameters_every = config.check_parameters_every;
  options.gradients.detect_anomaly = config.detect_anomaly;
  options.device = device.type();
  options.autocast = autocast;
  options.best_path = paths.best_path;
  options.best_failure_is_error = config.save_failure_is_error;
  options.run.checkpoints.steps = config.save_every_steps;
  options.run.checkpoints.epochs = config.save_every_epochs;
  options.run.checkpoints.minutes = config.save_every_minutes;
  options.run.config = ConfigJson(config, plan);
  options.run.seed = config.seed;
  options.run.stop_exit_code = config.stop_exit_code;

  const auto step = [](auto& module, TensorBatch& batch) {
    const at::Tensor logits = module.forward(batch.data);
    return lockstep::StepOutput{torch::nn::functional::cross_entropy(logits, batch.target),
                                batch.target.size(0),
                                {{"accuracy", logits.argmax(1).eq(batch.target).sum()}}};
  };
  lockstep::PthWriter writer;
  lockstep::ProgressPrinter progress(rank, world_size);
  lockstep::LinePrinter lines(rank, std::max(config.log_every, 1));
  lockstep::MetricsLog log(paths.folder, config.log_every > 0 ? config.log_every : 50, config.save_failure_is_error);
  lockstep::CheckpointerOptions saving;
  saving.folder = paths.checkpoints;
  saving.keep_last = config.keep_last;
  saving.keep_best = 1;
  saving.monitor = stopping.monitor;
  saving.more_is_better = true;
  saving.failure_is_error = config.save_failure_is_error;
  lockstep::Checkpointer checkpointer(saving, writer, group);
  lockstep::TimedSource<TensorBatch> timed(*train);
  lockstep::ResourceLog resources({paths.folder, device, [&] { return timed.seconds(); }, config.save_failure_is_error},
                                  group);
  lockstep::DdpStrategy strategy(ddp);
  lockstep::Trainer<TensorBatch>::Pieces pieces;
  pieces.state = state;
  pieces.strategy = &strategy;
  pieces.train_step = [&](TensorBatch& batch) { return step(ddp, batch); };
  pieces.eval_step = pieces.train_step;
  pieces.train = &timed;
  pieces.validation = validation.get();
  pieces.writer = &writer;
  pieces.checkpointer = &checkpointer;
  pieces.signals = &signals;
  pieces.observers = {config.log_every > 0 ? static_cast<lockstep::TrainObserver*>(&lines) : &progress};
  lockstep::BufferSync buffer_sync(ddp);
  if (!config.sync_batch_norm) pieces.observers.push_back(&buffer_sync);
  pieces.observers.push_back(&resources);
  if (rank == 0) pieces.observers.push_back(&log);
  std::optional<lockstep::TraceWriter> trace;
  if (!config.profile.empty()) {
    trace.emplace(*lockstep::ParseStepRange(config.profile), paths.folder, rank, &ddp);
    pieces.observers.push_back(&*trace);
  }
  lockstep::Trainer<TensorBatch> trainer(std::move(pieces), options);
  if (checkpoint) {
    if (absl::Status status = trainer.Resume(*checkpoint); !status.ok()) {
      return lockstep::AgreeOnStatus(absl::InvalidArgumentError(absl::StrCat("checkpoint ", paths.resume_path, ": ",
                                                                             std::string(status.message()))),
                                     group);
    }
    if (trainer.epoch() > static_cast<size_t>(config.epochs) && rank == 0) {
      absl::PrintF("nothing left to train: %d of %d epochs are done\n", trainer.epoch() - 1, config.epochs);
    }
    for (size_t i = 0; i < groups.size(); ++i) {
      const auto& wanted = static_cast<const torch::optim::SGDOptions&>(groups[i].options());
      auto& of_run = static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[i].options());
      if (config.lr_given) of_run.lr(wanted.lr());
      if (config.weight_decay_given) of_run.weight_decay(wanted.weight_decay());
    }
  }
  absl::Status begun;
  if (rank == 0) begun = lockstep::WriteFileAtomically(paths.folder + "/config.json", options.run.config);
  if (rank == 0 && begun.ok()) begun = log.Open(trainer.epoch(), trainer.step());
  // A new folder begins with the best of the old one, in case there is no better one.
  if (rank == 0 && begun.ok() && checkpoint && !std::filesystem::exists(paths.best_path)) {
    const auto old = lockstep::LoadPth(paths.resumed_best);
    begun = lockstep::SavePth(old.ok() ? *old : *checkpoint, paths.best_path);
  }
  LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(begun, group));
  LOCKSTEP_RETURN_IF_ERROR(
      lockstep::ErrorOrWarning(resources.Open(trainer.epoch()), config.save_failure_is_error, group));
  checkpoint.reset();
  LOCKSTEP_RETURN_IF_ERROR(trainer.Fit());

  // The test part, once, with the best weights, which rank 0 has written.
  absl::Status loaded;
  if (rank == 0) {
    const auto best = lockstep::LoadPth(paths.best_path);
    loaded = best.status();
    if (loaded.ok()) {
      const lockstep::Value* saved = best->find("model");
      loaded = saved == nullptr ? absl::InvalidArgumentError("it has no 'model'")
                                : lockstep::LoadModuleState(*saved, *model);
      if (!loaded.ok()) {
        loaded = absl::InvalidArgumentError(
            absl::StrCat("checkpoint ", paths.best_path, ": ", std::string(loaded.message())));
      }
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(loaded, group));
  lockstep::BroadcastTensors(ddp.parameters(), group);
  lockstep::BroadcastTensors(ddp.buffers(), group);
  LOCKSTEP_ASSIGN_OR_RETURN(const auto metrics, trainer.Evaluate(*test, "test_"));
  if (rank == 0) absl::PrintF("test accuracy: %.4f\n", metrics.at("test_accuracy"));
  absl::Status drawn;
  if (rank == 0) drawn = lockstep::WriteReport({paths.folder}, paths.folder + "/report");
  return lockstep::ErrorOrWarning(lockstep::AgreeOnStatus(drawn, group), config.save_failure_is_error, group);
}

}  // namespace mnist
