#include "lockstep/examples/mnist/config.h"

#include <absl/flags/flag.h>
#include <absl/flags/parse.h>
#include <absl/flags/usage.h>
#include <absl/flags/usage_config.h>
#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lockstep/base/status_macros.h"
#include "lockstep/base/user_path.h"
#include "lockstep/comm/backend_choice.h"
#include "lockstep/launch/devices.h"
#include "lockstep/optim/learning_rate.h"
#include "lockstep/trainer/step_range.h"

// The flags of the job, with its defaults; only --epochs, --lr, --pt_path and the data differ, for a first run to be
// short and good on any machine.
ABSL_FLAG(std::string, gpu, "",
          "devices to train on, such as 0,1: indices into what CUDA_VISIBLE_DEVICES shows; "
          "empty: all, or the CPU");
ABSL_FLAG(int, epochs, 15, "epochs at most");
ABSL_FLAG(double, lr, 0.1, "learning rate");
ABSL_FLAG(double, weight_decay, 5e-5, "weight decay");
ABSL_FLAG(int, batch_size, 256, "batch size of each process");
ABSL_FLAG(std::string, mnist_file_path, "", "a CSV file with rows label,p0,...,p783, or a folder of IDX files");
ABSL_FLAG(std::string, data_dir, "",
          "a folder with the standard IDX files, plain or gzipped; "
          "default: /usr/share/datasets/fashion-mnist unless --mnist_file_path is given");
ABSL_FLAG(uint64_t, seed, 1206, "seed of the split, the initial weights, the order of samples and the generators");
ABSL_FLAG(std::string, master_addr, "localhost", "host of rank 0, for the ranks that this program starts itself");
ABSL_FLAG(int, port, 1206, "port of rank 0's store, likewise; 0: a free one");
ABSL_FLAG(std::string, pt_path, "",
          "where the best checkpoint goes: a folder (then cnn.pt in it) or a name ending in "
          ".pt; default: the run's folder");
ABSL_FLAG(int, patience, 5, "validations without a better accuracy until training stops");
ABSL_FLAG(int, nproc_per_node, 0, "processes to start; 0: one per device, or 2 on the CPU");
ABSL_FLAG(std::string, backend, "auto",
          "auto, shm, gloo, hierarchical, nccl, or one per device as in cpu:shm,cuda:nccl");
ABSL_FLAG(std::string, amp, "auto",
          "mixed precision: auto (fp16 on CUDA, off on the CPU), off, bf16 or fp16; fp16 comes with a loss scaler, and "
          "is slow "
          "on the CPU");
ABSL_FLAG(double, loss_scale, 0, "with fp16: a fixed loss scale; 0: it adapts itself");
ABSL_FLAG(double, max_grad_norm, 0, "gradients are scaled down to this norm; 0: they are not");
ABSL_FLAG(double, max_grad_value, 0, "each number of the gradients is clamped to this, up and down; 0: it is not");
ABSL_FLAG(bool, decay_biases_and_norms, true, "weight decay also for biases and batch norms");
ABSL_FLAG(std::string, scale_lr, "none",
          "none, linear or sqrt: multiply --lr by the number of ranks, or its root, since gradients are averaged over "
          "ranks and so the batch grows with them");
ABSL_FLAG(bool, deterministic, false,
          "operations that give the same bits in each run, or an error where there is none");
ABSL_FLAG(std::string, matmul_precision, "highest",
          "of float32 matrix products: highest, high (TF32) or medium (bf16), where the device can");
ABSL_FLAG(bool, sync_batch_norm, true, "batch norm over the batches of all ranks");
ABSL_FLAG(std::string, run_dir, "", "folder for metrics, configuration and checkpoints; default: runs/<time>");
ABSL_FLAG(std::string, resume, "",
          "go on from a checkpoint: a file, a run's folder (its latest), or latest or best: of --run_dir, or of the "
          "newest run below runs");
ABSL_FLAG(int, save_every_steps, 0, "steps between checkpoints; 0: not by steps");
ABSL_FLAG(int, save_every_epochs, 1, "epochs between checkpoints; 0: not by epochs");
ABSL_FLAG(double, save_every_minutes, 0, "minutes between checkpoints; 0: not by time");
ABSL_FLAG(int, keep_last, 3, "checkpoints that are kept, besides the best; 0: all");
ABSL_FLAG(std::string, save_failure, "error",
          "error or warning: whether training ends when a checkpoint can't be written, or goes on without it");
ABSL_FLAG(int, stop_exit_code, 75,
          "exit code after SIGTERM, SIGUSR1 or SIGINT, when all is saved and the run can be resumed");
ABSL_FLAG(int, max_restarts, 0,
          "starts of all ranks after a failure, from the latest checkpoint; for the ranks that this program starts "
          "itself");
ABSL_FLAG(int, log_every, 0, "print a line every N steps from every rank, instead of the progress bar; 0: the bar");
ABSL_FLAG(double, pixel_scale, 255, "pixels are divided by this");
ABSL_FLAG(int, threads, 0, "threads per rank; 0: OMP_NUM_THREADS, or cores / ranks of this host");
ABSL_FLAG(double, timeout, 1800, "seconds that the start and any collective may take");
ABSL_FLAG(int, accumulate, 1, "batches whose gradients one step takes together");
ABSL_FLAG(
    std::string, profile, "",
    "FIRST:LAST: write a Chrome trace of these steps, counted from 1, to trace_rank<rank>.json in the run's folder");
ABSL_FLAG(int, check_parameters_every, 0, "steps between checks that all ranks' parameters are still equal; 0: none");
ABSL_FLAG(bool, detect_anomaly, false,
          "say which operation and parameter first gave a number that is not finite; slow");
ABSL_FLAG(bool, check_collectives, false, "compare, before each collective, what the ranks are about to do");
ABSL_FLAG(std::string, flight_recorder, "",
          "folder where each rank writes its last collectives when one fails, or on SIGUSR2; read them with "
          "//comm:flight_report");

namespace mnist {
namespace {

using lockstep::DistributedEnvironment;

constexpr char kFashionMnist[] = "/usr/share/datasets/fashion-mnist";

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

template <typename T>
absl::Status AtLeast(const char* flag, T value, T least) {
  if (value >= least) return absl::OkStatus();  // false for NaN
  return Invalid(absl::StrCat("--", flag, "=", value, ": must be at least ", least));
}

template <typename T>
absl::Status AtMost(const char* flag, T value, T most) {
  if (value <= most) return absl::OkStatus();
  return Invalid(absl::StrCat("--", flag, "=", value, ": must be at most ", most));
}

}  // namespace

absl::StatusOr<Config> ParseConfig(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "trains a ConvNet on MNIST-like pictures, one process per device.\n"
      "Without arguments: Fashion-MNIST, 2 processes on the CPU.");
  const auto given = [&](const std::string& flag) {
    return std::any_of(argv + 1, argv + argc, [&](const std::string& argument) {
      return argument == "--" + flag || argument.rfind("--" + flag + "=", 0) == 0;
    });
  };
  absl::FlagsUsageConfig usage;
  usage.contains_helpshort_flags = [](absl::string_view file) { return absl::StrContains(file, "mnist/config.cc"); };
  usage.contains_help_flags = usage.contains_helpshort_flags;
  absl::SetFlagsUsageConfig(usage);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) return Invalid(absl::StrCat("unexpected argument '", rest[1], "'; flags begin with --"));

  Config c;
  LOCKSTEP_ASSIGN_OR_RETURN(c.gpus, lockstep::ParseDeviceList("--gpu", absl::GetFlag(FLAGS_gpu)));
  c.epochs = absl::GetFlag(FLAGS_epochs);
  c.lr = absl::GetFlag(FLAGS_lr);
  c.weight_decay = absl::GetFlag(FLAGS_weight_decay);
  c.lr_given = given("lr");
  if (given("scale_lr") && given("resume") && !c.lr_given) {
    return Invalid("--scale_lr: a resumed run keeps its learning rate; give --lr too, which is then scaled");
  }
  c.weight_decay_given = given("weight_decay");
  c.batch_size_given = given("batch_size");
  c.accumulate_given = given("accumulate");
  c.batch_size = absl::GetFlag(FLAGS_batch_size);
  c.seed = absl::GetFlag(FLAGS_seed);
  c.master_addr = absl::GetFlag(FLAGS_master_addr);
  c.port = absl::GetFlag(FLAGS_port);
  c.pt_path = lockstep::UserPath(absl::GetFlag(FLAGS_pt_path));
  c.patience = absl::GetFlag(FLAGS_patience);
  c.nproc_per_node = absl::GetFlag(FLAGS_nproc_per_node);
  c.backend = absl::GetFlag(FLAGS_backend);
  c.amp = absl::GetFlag(FLAGS_amp);
  c.sync_batch_norm = absl::GetFlag(FLAGS_sync_batch_norm);
  c.run_dir = lockstep::UserPath(absl::GetFlag(FLAGS_run_dir));
  c.resume = absl::GetFlag(FLAGS_resume);
  if (c.resume.empty() && given("resume")) return Invalid("--resume=: say what to go on from");
  if (c.resume != "latest" && c.resume != "best") c.resume = lockstep::UserPath(c.resume);
  c.log_every = absl::GetFlag(FLAGS_log_every);
  c.pixel_scale = absl::GetFlag(FLAGS_pixel_scale);
  c.threads = absl::GetFlag(FLAGS_threads);
  c.timeout_seconds = absl::GetFlag(FLAGS_timeout);
  c.check_collectives = absl::GetFlag(FLAGS_check_collectives);
  c.accumulate = absl::GetFlag(FLAGS_accumulate);
  c.check_parameters_every = absl::GetFlag(FLAGS_check_parameters_every);
  c.detect_anomaly = absl::GetFlag(FLAGS_detect_anomaly);
  c.profile = absl::GetFlag(FLAGS_profile);
  c.save_every_steps = absl::GetFlag(FLAGS_save_every_steps);
  c.save_every_epochs = absl::GetFlag(FLAGS_save_every_epochs);
  c.save_every_minutes = absl::GetFlag(FLAGS_save_every_minutes);
  c.keep_last = absl::GetFlag(FLAGS_keep_last);
  c.stop_exit_code = absl::GetFlag(FLAGS_stop_exit_code);
  c.max_restarts = absl::GetFlag(FLAGS_max_restarts);
  const std::string save_failure = absl::GetFlag(FLAGS_save_failure);
  if (save_failure != "error" && save_failure != "warning") {
    return Invalid(absl::StrCat("--save_failure=", save_failure, ": unknown; known: error, warning"));
  }
  c.save_failure_is_error = save_failure == "error";
  for (const auto& [flag, value] : {std::pair{"save_every_steps", c.save_every_steps},
                                    {"save_every_epochs", c.save_every_epochs},
                                    {"keep_last", c.keep_last},
                                    {"max_restarts", c.max_restarts}}) {
    LOCKSTEP_RETURN_IF_ERROR(AtLeast(flag, value, 0));
  }
  LOCKSTEP_RETURN_IF_ERROR(AtLeast("stop_exit_code", c.stop_exit_code, 1));
  LOCKSTEP_RETURN_IF_ERROR(AtMost("stop_exit_code", c.stop_exit_code, 255));
  LOCKSTEP_RETURN_IF_ERROR(AtLeast("save_every_minutes", c.save_every_minutes, 0.));
  LOCKSTEP_RETURN_IF_ERROR(AtMost("save_every_minutes", c.save_every_minutes, 1e9));
  c.loss_scale = absl::GetFlag(FLAGS_loss_scale);
  c.max_grad_norm = absl::GetFlag(FLAGS_max_grad_norm);
  c.max_grad_value = absl::GetFlag(FLAGS_max_grad_value);
  c.decay_biases_and_norms = absl::GetFlag(FLAGS_decay_biases_and_norms);
  c.deterministic = absl::GetFlag(FLAGS_deterministic);
  c.matmul_precision = absl::GetFlag(FLAGS_matmul_precision);
  c.scale_lr = absl::GetFlag(FLAGS_scale_lr);
  if (const auto scaling = lockstep::ParseLearningRateScaling(c.scale_lr); !scaling.ok()) {
    return Invalid(absl::StrCat("--scale_lr: ", std::string(scaling.status().message())));
  }
  for (const auto& [flag, value] : {std::pair{"loss_scale", c.loss_scale},
                                    {"max_grad_norm", c.max_grad_norm},
                                    {"max_grad_value", c.max_grad_value}}) {
    LOCKSTEP_RETURN_IF_ERROR(AtLeast(flag, value, 0.));
    LOCKSTEP_RETURN_IF_ERROR(AtMost(flag, value, 3e38));
  }
  LOCKSTEP_RETURN_IF_ERROR(AtLeast("accumulate", c.accumulate, 1));
  LOCKSTEP_RETURN_IF_ERROR(AtLeast("check_parameters_every", c.check_parameters_every, 0));
  if (!c.profile.empty()) {
    if (const auto range = lockstep::ParseStepRange(c.profile); !range.ok()) {
      return Invalid(absl::StrCat("--profile: ", std::string(range.status().message())));
    }
  }
  c.flight_recorder = lockstep::UserPath(absl::GetFlag(FLAGS_flight_recorder));
  if (!c.flight_recorder.empty() && access((c.flight_recorder + "/.").c_str(), W_OK) != 0) {
    return Invalid(absl::StrCat("--flight_recorder=", c.flight_recorder, ": no folder that can be written to"));
  }

  const std::string file = absl::GetFlag(FLAGS_mnist_file_path), folder = absl::GetFlag(FLAGS_data_dir);
  if (!file.empty() && !folder.empty()) return Invalid("--mnist_file_path and --data_dir: give one of them, not both");
  c.data = lockstep::UserPath(!file.empty() ? file : !folder.empty() ? folder : kFashionMnist);
  std::error_code error;
  if (!std::filesystem::exists(c.data, error)) {
    if (error) return Invalid(absl::StrCat("no access to ", c.data, ": ", error.message()));
    return absl::NotFoundError(file.empty() && folder.empty()
                                   ? absl::StrCat("no data in ", c.data,
                                                  ": install Debian's package dataset-fashion-mnist, "
                                                  "or give --mnist_file_path or --data_dir")
                                   : absl::StrCat(!file.empty() ? "--mnist_file_path" : "--data_dir", "=", c.data,
                                                  ": no such file or folder"));
  }
  c.data = std::filesystem::canonical(c.data, error).string();  // one name, for a resumed run to compare
  if (!folder.empty() && !std::filesystem::is_directory(c.data, error)) {
    return Invalid(absl::StrCat("--data_dir=", c.data, ": not a folder; a CSV file is --mnist_file_path"));
  }

  LOCKSTEP_RETURN_IF_ERROR(AtLeast("epochs", c.epochs, 1));
  LOCKSTEP_RETURN_IF_ERROR(AtLeast("batch_size", c.batch_size, 1));
  LOCKSTEP_RETURN_IF_ERROR(AtLeast("patience", c.patience, 1));
  LOCKSTEP_RETURN_IF_ERROR(AtLeast("nproc_per_node", c.nproc_per_node, 0));
  LOCKSTEP_RETURN_IF_ERROR(AtLeast("log_every", c.log_every, 0));
  LOCKSTEP_RETURN_IF_ERROR(AtLeast("threads", c.threads, 0));
  LOCKSTEP_RETURN_IF_ERROR(AtLeast("lr", c.lr, 0.));
  LOCKSTEP_RETURN_IF_ERROR(AtLeast("weight_decay", c.weight_decay, 0.));
  LOCKSTEP_RETURN_IF_ERROR(AtLeast("port", c.port, 0));
  LOCKSTEP_RETURN_IF_ERROR(AtMost("threads", c.threads, 1024));
  LOCKSTEP_RETURN_IF_ERROR(AtMost("nproc_per_node", c.nproc_per_node, 1024));
  LOCKSTEP_RETURN_IF_ERROR(AtMost("lr", c.lr, 3e38));  // floats hold no more
  LOCKSTEP_RETURN_IF_ERROR(AtMost("weight_decay", c.weight_decay, 3e38));
  if (c.master_addr.empty()) return Invalid("--master_addr: must name a host");
  if (c.port > 65535) return Invalid(absl::StrCat("--port=", c.port, ": must be at most 65535"));
  if (!(c.pixel_scale > 0) || !std::isfinite(c.pixel_scale)) {
    return Invalid(absl::StrCat("--pixel_scale=", c.pixel_scale, ": must be over 0"));
  }
  if (!(c.timeout_seconds > 0) || c.timeout_seconds > 1e7) {
    return Invalid(absl::StrCat("--timeout=", c.timeout_seconds, ": must be over 0 and at most 1e7 seconds"));
  }
  if (c.amp != "auto" && c.amp != "off" && c.amp != "bf16" && c.amp != "fp16") {
    return Invalid(absl::StrCat("--amp=", c.amp, ": unknown; known: auto, off, bf16, fp16"));
  }
  return c;
}

absl::StatusOr<Plan> MakePlan(const Config& config, int gpu_count) {
  Plan plan;
  LOCKSTEP_ASSIGN_OR_RETURN(plan.environment, lockstep::ReadEnvironment());
  DistributedEnvironment& env = plan.environment;

  std::vector<int> devices = config.gpus;
  for (int device : devices) {
    if (device >= gpu_count) {
      return Invalid(absl::StrCat("--gpu=", device, ": there ",
                                  gpu_count == 0   ? "is no GPU here"
                                  : gpu_count == 1 ? "is 1 GPU here, number 0"
                                                   : absl::StrCat("are only ", gpu_count, " GPUs here"),
                                  gpu_count == 0 ? "; leave --gpu out to train on the CPU" : ""));
    }
  }
  if (devices.empty()) {
    for (int i = 0; i < gpu_count; ++i) devices.push_back(i);
  }
  plan.cuda = !devices.empty();
  LOCKSTEP_RETURN_IF_ERROR(lockstep::ValidateBackend(config.backend, plan.cuda));
  if (config.loss_scale != 0 && !(config.amp == "fp16" || (config.amp == "auto" && plan.cuda))) {
    return Invalid(absl::StrCat("--loss_scale=", config.loss_scale, ": there is no loss scaling with --amp=",
                                config.amp, config.amp == "auto" ? " on the CPU" : ""));
  }

  const int available = static_cast<int>(devices.size());
  if (env.launched) {
    if (config.nproc_per_node != 0 && config.nproc_per_node != env.local_world_size) {
      return Invalid(absl::StrCat("--nproc_per_node=", config.nproc_per_node, " but the launcher started ",
                                  env.local_world_size, " ranks on this host; leave the flag out"));
    }
    if (plan.cuda) {
      LOCKSTEP_ASSIGN_OR_RETURN(const int device, LocalDevice(env, available));
      plan.device_index = devices[static_cast<size_t>(device)];
    }
    if (!config.gpus.empty() && env.local_world_size != available) {
      return Invalid(absl::StrCat("--gpu names ", available, " devices but the launcher started ", env.local_world_size,
                                  " ranks on this host"));
    }
  } else {
    int ranks = config.nproc_per_node;
    if (ranks == 0) ranks = plan.cuda ? available : 2;
    if (!config.gpus.empty() && ranks != available) {
      return Invalid(absl::StrCat("--nproc_per_node=", ranks, " but --gpu names ", available,
                                  " devices; give one process per device"));
    }
    if (plan.cuda && ranks > available) {
      return Invalid(absl::StrCat("--nproc_per_node=", ranks, " but there are ", available, " devices"));
    }
    plan.ranks_to_spawn = ranks > 1 ? ranks : 0;
  }
  if (plan.cuda && !env.launched) plan.device_index = devices[0];
  return plan;
}

std::string ConfigJson(const Config& c, const Plan& plan) {
  nlohmann::ordered_json json;
  json["data"] = c.data;
  json["epochs"] = c.epochs;
  json["lr"] = c.lr;
  json["weight_decay"] = c.weight_decay;
  json["batch_size"] = c.batch_size;
  json["global_batch_size"] =
      c.global_batch_size > 0 ? c.global_batch_size : int64_t{c.batch_size} * plan.environment.world_size;
  json["patience"] = c.patience;
  json["seed"] = c.seed;
  json["pixel_scale"] = c.pixel_scale;
  json["gpu"] = c.gpus;
  json["world_size"] = plan.environment.world_size;
  json["backend"] = c.backend;
  json["amp"] = c.amp;
  json["loss_scale"] = c.loss_scale;
  json["max_grad_norm"] = c.max_grad_norm;
  json["max_grad_value"] = c.max_grad_value;
  json["decay_biases_and_norms"] = c.decay_biases_and_norms;
  json["scale_lr"] = c.scale_lr;
  json["deterministic"] = c.deterministic;
  json["matmul_precision"] = c.matmul_precision;
  json["sync_batch_norm"] = c.sync_batch_norm;
  json["pt_path"] = c.pt_path;
  json["resume"] = c.resume;
  json["log_every"] = c.log_every;
  json["threads"] = c.threads;
  json["timeout"] = c.timeout_seconds;
  json["check_collectives"] = c.check_collectives;
  json["accumulate"] = c.accumulate;
  json["check_parameters_every"] = c.check_parameters_every;
  json["detect_anomaly"] = c.detect_anomaly;
  json["profile"] = c.profile;
  json["flight_recorder"] = c.flight_recorder;
  json["save_every_steps"] = c.save_every_steps;
  json["save_every_epochs"] = c.save_every_epochs;
  json["save_every_minutes"] = c.save_every_minutes;
  json["keep_last"] = c.keep_last;
  json["save_failure"] = c.save_failure_is_error ? "error" : "warning";
  json["stop_exit_code"] = c.stop_exit_code;
  json["max_restarts"] = c.max_restarts;
  json["launch_id"] = plan.environment.launch_id;
  return json.dump(2) + "\n";
}

}  // namespace mnist
