#include "lockstep/examples/cifar10/train.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/amp/no_scaler.h"
#include "lockstep/base/atomic_file.h"
#include "lockstep/base/prefixed.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/early_stopping.h"
#include "lockstep/checkpoint/pretrained.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/save_failure.h"
#include "lockstep/comm/agree.h"
#include "lockstep/data/device_source.h"
#include "lockstep/data/timed_source.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/examples/cifar10/best_model.h"
#include "lockstep/examples/cifar10/data.h"
#include "lockstep/examples/cifar10/resumed.h"
#include "lockstep/examples/cifar10/run_folder.h"
#include "lockstep/metrics/device_memory.h"
#include "lockstep/metrics/process_memory.h"
#include "lockstep/metrics/write_report.h"
#include "lockstep/models/resnet.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/channels_last.h"
#include "lockstep/optim/fused_sgd.h"
#include "lockstep/optim/make_schedule.h"
#include "lockstep/trainer/buffer_sync.h"
#include "lockstep/trainer/metrics_log.h"
#include "lockstep/trainer/progress.h"
#include "lockstep/trainer/resource_log.h"
#include "lockstep/trainer/tensor_board_log.h"
#include "lockstep/trainer/trainer.h"
#include "lockstep/trainer/weight_average.h"

#include "lockstep/base/logging.h"

namespace cifar10 {
namespace {

using lockstep::TensorBatch;
using Ddp = lockstep::DistributedDataParallel<lockstep::models::ResNetImpl>;

/// Loss, and which of the k best guesses are right. Targets are classes, or probabilities, of which the largest counts.
lockstep::StepOutput Judge(const at::Tensor& logits, const at::Tensor& target, double label_smoothing) {
  const auto options = torch::nn::functional::CrossEntropyFuncOptions().label_smoothing(label_smoothing);
  lockstep::StepOutput output;
  output.loss = torch::nn::functional::cross_entropy(logits.to(at::kFloat), target, options);
  output.samples = logits.size(0);
  const at::Tensor classes = (target.dim() == 2 ? target.argmax(1) : target).unsqueeze(1);
  const at::Tensor hits = std::get<1>(logits.detach().topk(std::min<int64_t>(5, logits.size(1)), 1)).eq(classes);
  output.sums["accuracy"] = hits.narrow(1, 0, 1).sum();
  if (logits.size(1) > 5) output.sums["top5"] = hits.sum();
  return output;
}

/// The most memory that a rank had in an epoch, as people read it. On every rank: the end of an epoch is collective.
class MemoryPrinter : public lockstep::TrainObserver {
 public:
  MemoryPrinter(at::Device device, lockstep::ProcessGroupPtr group) : device_(device), group_(std::move(group)) {}
  void OnEpochEnd(const lockstep::EpochInfo&) override {
    at::Tensor most = at::full({1}, Peak(), at::TensorOptions(at::kLong).device(device_));
    if (group_) lockstep::AllReduce(most, group_, c10d::ReduceOp::MAX);
    bytes_ = std::max(bytes_, most.item<int64_t>());
    if (lockstep::GetRank(group_) == 0) absl::PrintF("peak memory: %.2f GB\n", most.item<double>() / 1e9);
  }
  /// Of all epochs so far.
  double gigabytes() const { return static_cast<double>(bytes_) / 1e9; }

 private:
  int64_t Peak() const {
    const auto of_device = lockstep::PeakDeviceMemory(device_);
    return of_device ? of_device->peak_allocated : lockstep::PeakMemory();
  }
  const at::Device device_;
  const lockstep::ProcessGroupPtr group_;
  int64_t bytes_ = 0;
};

absl::Status CopyFile(const std::string& from, const std::string& to) {
  std::ifstream file(from, std::ios::binary);
  const std::string contents{std::istreambuf_iterator<char>(file), {}};
  if (!file) return absl::UnavailableError("file " + from + ": cannot be read");
  return lockstep::WriteFileAtomically(to, contents);
}

absl::Status LoadWeights(const Config& config, torch::nn::Module& model, const lockstep::ProcessGroupPtr& group) {
  if (config.pretrained.empty()) return absl::OkStatus();
  const auto path = lockstep::FindPretrained(config.pretrained == "auto" ? "" : config.pretrained, config.model);
  absl::Status status = path.status();
  if (status.ok()) status = lockstep::LoadPretrained(*path, model).status();
  return lockstep::AgreeOnStatus(lockstep::Prefixed("pretrained: ", status), group);
}

}  // namespace

absl::Status Train(const Config& config, const lockstep::ConfigFields& fields, const Plan& plan,
                   const lockstep::StopSignals& signals, const lockstep::ProcessGroupPtr& group) {
  const auto start = std::chrono::steady_clock::now();
  const int rank = lockstep::GetRank(group), world_size = lockstep::GetWorldSize(group);
  const at::Device device = plan.device_index >= 0
                                ? at::Device(at::kCUDA, static_cast<at::DeviceIndex>(plan.device_index))
                                : at::Device(at::kCPU);
  const bool dry = config.trainer.limits.fast_dev_run > 0;  // nothing is written
  std::string resume_path;
  if (!dry) {
    LOCKSTEP_ASSIGN_OR_RETURN(resume_path, OpenRunFolder(config, plan.environment, group));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(Data data, OpenData(config, plan, group));
  lockstep::DeviceSource train(*data.train, device), validation(*data.validation, device);
  lockstep::TimedSource<TensorBatch> timed(train);

  // The same weights on every rank; from then on each rank's generator goes its own way.
  torch::manual_seed(config.seed);
  const auto made = lockstep::models::MakeResNet(config.model, lockstep::models::ResNetOptions(config.num_classes)
                                                                   .small_images(config.small_images)
                                                                   .zero_init_residual(config.zero_init_residual));
  LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(lockstep::Prefixed("model: ", made.status()), group));
  lockstep::models::ResNet model = *made;
  LOCKSTEP_RETURN_IF_ERROR(LoadWeights(config, *model, group));
  torch::manual_seed(config.seed + static_cast<uint64_t>(rank));
  model->to(device);
  if (config.channels_last) lockstep::nn::ToChannelsLast(*model);
  if (config.sync_batch_norm) LOCKSTEP_RETURN_IF_ERROR(lockstep::nn::ConvertSyncBatchNorm(*model, group).status());
  lockstep::DistributedDataParallelOptions ddp_options;
  ddp_options.broadcast_buffers = false;  // once before each validation is enough: see BufferSync
  Ddp ddp(model, group, ddp_options);
  lockstep::FusedSGD optimizer(
      ddp.parameters(),
      torch::optim::SGDOptions(config.lr).momentum(config.momentum).weight_decay(config.weight_decay));

  lockstep::TrainerOptions options = config.trainer;
  const lockstep::RunLimits limits = options.limits.Effective();
  const size_t window = options.gradients.accumulate;
  size_t batches = data.train->num_batches();
  if (limits.train_batches > 0) batches = std::min(batches, limits.train_batches);
  lockstep::ScheduleOptions schedule_options = config.schedule;
  if (!schedule_options.total_steps && WantsTotalSteps(schedule_options)) {
    const size_t of_epoch = (batches + window - 1) / window;
    size_t total = of_epoch * options.epochs;
    if (limits.max_steps > 0) total = std::min(total, limits.max_steps);
    if (!options.schedule_each_step) total = (total + of_epoch - 1) / of_epoch;
    schedule_options.total_steps = static_cast<int64_t>(std::max<size_t>(total, 1));
  }
  const auto schedule = lockstep::MakeSchedule(schedule_options, optimizer);
  LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(schedule.status(), group));

  if (config.amp != "off") options.autocast = config.amp == "bf16" ? at::kBFloat16 : at::kHalf;
  if (options.autocast == at::kHalf && device.is_cpu() && rank == 0) {
    LOG(WARNING) << "rank 0: float16 on the CPU is many times slower than float32; amp: bf16 is not";
  }
  std::unique_ptr<lockstep::LossScaler> scaler = std::make_unique<lockstep::NoScaler>();
  if (options.autocast == at::kHalf) {
    lockstep::GradScalerOptions scaling;
    scaling.group = group;
    scaler = std::make_unique<lockstep::GradScaler>(scaling);
  }
  lockstep::EarlyStoppingOptions stopping;
  stopping.monitor = "val_accuracy";
  stopping.mode = lockstep::EarlyStoppingOptions::Mode::kMax;
  stopping.patience = config.patience == 0 ? std::numeric_limits<int>::max() : static_cast<int>(config.patience);
  lockstep::EarlyStopping early_stopping(stopping);
  std::optional<lockstep::WeightAverage> average;
  if (config.ema > 0) average.emplace(*model, config.ema);

  const std::string folder = config.run_folder();
  options.device = device.type();
  options.run.config = fields.ToYaml();
  options.run.seed = config.seed;
  lockstep::PthWriter writer;
  lockstep::CheckpointerOptions saving;
  saving.folder = folder + "/checkpoints";
  saving.keep_last = config.keep_last;
  saving.keep_best = 1;
  saving.monitor = stopping.monitor;
  saving.more_is_better = true;
  saving.failure_is_error = config.save_failure_is_error;
  std::optional<lockstep::Checkpointer> checkpointer;
  if (!dry) checkpointer.emplace(saving, writer, group);
  lockstep::MeanPrinter printer(group, config.log_every);
  lockstep::ProgressPrinter bar(rank, world_size);
  lockstep::MetricsLog log(folder, config.log_every, config.save_failure_is_error);
  lockstep::TensorBoardLog tensor_board(folder, config.log_every, config.save_failure_is_error);
  lockstep::ResourceLog resources({folder, device, [&] { return timed.seconds(); }, config.save_failure_is_error},
                                  group);
  BestModel best(folder, config.program, *model, config.save_failure_is_error);
  MemoryPrinter memory(device, group);
  lockstep::BufferSync buffer_sync(ddp);

  lockstep::DdpStrategy strategy(ddp);
  lockstep::Trainer<TensorBatch>::Pieces pieces;
  pieces.state = {model.get(), &optimizer, scaler.get(), &early_stopping};
  if (average) pieces.state.others["weight_average"] = &*average;
  pieces.strategy = &strategy;
  const double smoothing = config.label_smoothing;
  pieces.train_step = [&](TensorBatch& batch) { return Judge(ddp.forward(batch.data), batch.target, smoothing); };
  pieces.eval_step = [&](TensorBatch& batch) { return Judge(ddp.forward(batch.data), batch.target, 0); };
  pieces.train = &timed;
  pieces.validation = &validation;
  pieces.writer = &writer;
  pieces.scheduler = schedule->get();
  if (checkpointer) pieces.checkpointer = &*checkpointer;
  pieces.signals = &signals;
  if (average) pieces.observers.push_back(&*average);
  if (!config.sync_batch_norm) pieces.observers.push_back(&buffer_sync);
  pieces.observers.push_back(config.log_every > 0 ? static_cast<lockstep::TrainObserver*>(&printer) : &bar);
  if (!dry) pieces.observers.push_back(&resources);
  if (rank == 0) {
    if (!dry) pieces.observers.insert(pieces.observers.end(), {&log, &best});
    if (!dry && config.tensorboard) pieces.observers.push_back(&tensor_board);
  }
  pieces.observers.push_back(&memory);
  lockstep::Trainer<TensorBatch> trainer(std::move(pieces), options);
  if (!resume_path.empty()) {
    const auto checkpoint = lockstep::LoadPth(resume_path);
    LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(checkpoint.status(), group));
    const lockstep::Value configured = (*schedule)->SaveState();
    absl::Status status = CheckResumed(*checkpoint, fields, rank == 0);
    if (status.ok()) status = trainer.Resume(*checkpoint);  // the same on all ranks so far
    if (status.ok()) status = TakeSettings(*checkpoint, config, configured, optimizer, **schedule);
    LOCKSTEP_RETURN_IF_ERROR(
        lockstep::AgreeOnStatus(lockstep::Prefixed("checkpoint " + resume_path + ": ", status), group));
  }

  absl::Status begun;
  if (rank == 0) {
    absl::PrintF("%s", options.run.config);
    const size_t in_step = std::min(window, std::max<size_t>(batches, 1));
    absl::PrintF("%d rank%s, %d pictures each and %d together in a step, %d steps in an epoch; run folder: %s\n",
                 world_size, world_size == 1 ? "" : "s", plan.batch_size * in_step, config.batch_size * in_step,
                 (batches + window - 1) / window, folder);
    std::fflush(stdout);
  }
  if (rank == 0 && !dry) {
    begun = lockstep::WriteFileAtomically(folder + "/config.yaml", options.run.config);
    if (begun.ok()) begun = lockstep::WriteFileAtomically(folder + "/config.json", fields.ToJson());
    if (begun.ok()) begun = log.Open(trainer.epoch(), trainer.step());
    if (begun.ok() && config.tensorboard) begun = tensor_board.Open(trainer.total_steps(), fields.ToJson());
  }
  LOCKSTEP_RETURN_IF_ERROR(lockstep::AgreeOnStatus(begun, group));
  if (!dry) LOCKSTEP_RETURN_IF_ERROR(resources.Open(trainer.epoch()));
  LOCKSTEP_RETURN_IF_ERROR(trainer.Fit());

  absl::Status reported;
  if (rank == 0) {
    const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - start;
    if (!dry && !best.path().empty()) absl::PrintF("best model: %s\n", best.path());
    const std::string title =
        absl::StrFormat("%s: %s, %.2f GB, %.1f s", config.program, config.model, memory.gigabytes(), duration.count());
    if (!dry) {
      lockstep::ReportOptions report;
      report.title = title;
      reported = lockstep::WriteReport({folder}, folder + "/report", report);
      for (const char* kind : {".html", ".svg", ".png"}) {
        if (reported.ok())
          reported = CopyFile(folder + "/report" + kind, config.save_dir + "/" + config.program + kind);
      }
      if (reported.ok()) absl::PrintF("report: %s/%s.html\n", config.save_dir, config.program);
    }
    absl::PrintF("duration: %.1f s\n", duration.count());
    std::fflush(stdout);
  }
  return lockstep::ErrorOrWarning(lockstep::AgreeOnStatus(reported, group), config.save_failure_is_error, group);
}

}  // namespace cifar10
