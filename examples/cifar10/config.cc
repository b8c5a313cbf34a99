#include "lockstep/examples/cifar10/config.h"

#include <absl/flags/flag.h>
#include <absl/flags/parse.h>
#include <absl/flags/reflection.h>
#include <absl/flags/usage.h>
#include <absl/flags/usage_config.h>
#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <ATen/Functions.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "lockstep/base/prefixed.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/base/user_path.h"
#include "lockstep/comm/backend_choice.h"
#include "lockstep/models/resnet.h"
#include "lockstep/trainer/trainer_fields.h"

constexpr char kDefaultConfig[] = "./config/classifier_cifar10.yaml";

ABSL_FLAG(std::string, cfg, kDefaultConfig,
          "the configuration, a YAML file; where the default isn't there, the one that comes with the program");
ABSL_FLAG(std::vector<std::string>, set, {}, "name=value: overrides the file; may be given many times");
ABSL_FLAG(std::string, weights, "", "the same as --set pretrained=…");
ABSL_FLAG(int64_t, synthetic, 0, "train on so many made-up pictures that can be learnt, in CIFAR-10's format");
ABSL_FLAG(std::string, resume, "", "go on with the run in save_dir: latest, best, or a checkpoint's file");
ABSL_FLAG(int, nproc_per_node, 0, "ranks to start without a launcher; 0: one for each device, or 2 on the CPU");
ABSL_FLAG(bool, print_config, false, "print the configuration with all its defaults, and end");

namespace cifar10 {
namespace {

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

/// The index of a CUDA device such as `1` or `cuda:1`; -1 for what is none.
int DeviceIndex(const std::string& device) {
  int index = -1;
  const std::string number = absl::StartsWith(device, "cuda:") ? device.substr(5) : device == "cuda" ? "0" : device;
  return absl::SimpleAtoi(number, &index) && index >= 0 ? index : -1;
}

/// A setting that was taken for a flag.
absl::Status CheckFlags(const std::vector<char*>& arguments, const lockstep::ConfigFields& fields) {
  for (const std::string argument : arguments) {
    if (argument == "--") break;
    const size_t dashes = argument.find_first_not_of('-');
    if (argument[0] != '-' || dashes == std::string::npos) continue;
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(dashes, equals == std::string::npos ? equals : equals - dashes);
    if (absl::FindCommandLineFlag(name) != nullptr || !fields.Has(name)) continue;
    return Invalid(absl::StrCat(argument, ": ", name, " is a setting; give it as --set ", name,
                                equals == std::string::npos ? "=…" : argument.substr(equals)));
  }
  return absl::OkStatus();
}

/// Takes `--set`, which may be given many times, out of argv.
absl::Status TakeSets(int argc, char** argv, std::vector<std::string>& sets, std::vector<char*>& rest) {
  for (int i = 0; i < argc; ++i) {
    const std::string argument = argv[i];
    if (absl::StartsWith(argument, "--set=")) {
      sets.push_back(argument.substr(6));
    } else if (argument == "--set") {
      if (++i == argc) return Invalid("--set: say what, as in --set lr=0.05");
      sets.emplace_back(argv[i]);
    } else {
      rest.push_back(argv[i]);
    }
  }
  return absl::OkStatus();
}

void AddScheduleFields(lockstep::ScheduleOptions& s, lockstep::ConfigFields& fields) {
  fields.Add("schedule.kind", &s.kind,
             "constant, linear, cosine, step, multi_step, exponential, polynomial, cosine_annealing, one_cycle, "
             "reduce_on_plateau");
  fields.Add("schedule.warmup_steps", &s.warmup_steps, "steps until the whole learning rate");
  fields.Add("schedule.total_steps", &s.total_steps,
             "null: those of all epochs, or max_steps, where the kind wants it");
  fields.Add("schedule.num_cycles", &s.num_cycles, "of cosine");
  fields.Add("schedule.step_size", &s.step_size, "of step");
  fields.Add("schedule.gamma", &s.gamma, "of step, multi_step and exponential");
  fields.Add("schedule.milestones", &s.milestones, "of multi_step");
  fields.Add("schedule.power", &s.power, "of polynomial");
  fields.Add("schedule.min_lr", &s.min_lr, "of cosine_annealing and reduce_on_plateau");
  fields.Add("schedule.max_lr", &s.max_lr, "of one_cycle");
  fields.Add("schedule.pct_start", &s.pct_start, "of one_cycle");
  fields.Add("schedule.anneal", &s.anneal, "of one_cycle: cos or linear");
  fields.Add("schedule.cycle_momentum", &s.cycle_momentum, "of one_cycle");
  fields.Add("schedule.base_momentum", &s.base_momentum, "of one_cycle");
  fields.Add("schedule.max_momentum", &s.max_momentum, "of one_cycle");
  fields.Add("schedule.div_factor", &s.div_factor, "of one_cycle");
  fields.Add("schedule.final_div_factor", &s.final_div_factor, "of one_cycle");
  fields.Add("schedule.three_phase", &s.three_phase, "of one_cycle");
  fields.Add("schedule.monitor", &s.monitor, "of reduce_on_plateau, and so the following");
  fields.Check("schedule.monitor", [&s] {
    const std::vector<std::string> known{"train_loss", "train_accuracy", "val_loss", "val_accuracy"};
    return !s.monitor || std::count(known.begin(), known.end(), *s.monitor) > 0
               ? absl::OkStatus()
               : Invalid(absl::StrCat("'", *s.monitor, "' is no metric; there are ", absl::StrJoin(known, ", ")));
  });
  fields.Add("schedule.mode", &s.mode, "min or max");
  fields.Add("schedule.factor", &s.factor, "by which the rate is reduced");
  fields.Add("schedule.patience", &s.patience, "epochs without improvement before that");
  fields.Add("schedule.threshold", &s.threshold, "what is an improvement");
  fields.Add("schedule.threshold_mode", &s.threshold_mode, "rel or abs");
  fields.Add("schedule.cooldown", &s.cooldown, "epochs to wait after a reduction");
  fields.Add("schedule.eps", &s.eps, "reductions by less are left out");
}

/// Whether it can be made; better known before the ranks start.
absl::Status CheckSchedule(lockstep::ScheduleOptions schedule) {
  if (!schedule.total_steps && WantsTotalSteps(schedule)) schedule.total_steps = 1 << 30;
  torch::optim::SGD optimizer({at::zeros({1})}, torch::optim::SGDOptions(1).momentum(0.5));
  return lockstep::Prefixed("schedule: ", lockstep::MakeSchedule(schedule, optimizer).status());
}

/// The configuration that the run which is to be resumed has left.
std::string ConfigOfRun(const Config& config) {
  std::filesystem::path folder = config.run_folder();
  if (config.resume != "latest" && config.resume != "best") {
    folder = std::filesystem::path(config.resume).parent_path().parent_path();
  }
  return (folder / "config.yaml").string();
}

}  // namespace

bool WantsTotalSteps(const lockstep::ScheduleOptions& schedule) {
  const auto kinds = {"linear", "cosine", "polynomial", "cosine_annealing", "one_cycle"};
  return std::count(kinds.begin(), kinds.end(), schedule.kind) > 0;
}

void AddFields(Config& c, lockstep::ConfigFields& fields) {
  const auto range = [&](const char* name, double* value, double low, double high, const char* doc) {
    fields.Add(name, value, doc);
    fields.Check(name, [=] {
      return *value >= low && *value <= high
                 ? absl::OkStatus()
                 : Invalid(absl::StrCat("must be from ", low, " to ", high, ", got ", *value));
    });
  };
  const auto count = [&](const char* name, auto* value, int64_t low, int64_t high, const char* doc) {
    fields.Add(name, value, doc);
    fields.Check(name, [=] {
      const auto number = static_cast<int64_t>(*value);
      return number >= low && number <= high
                 ? absl::OkStatus()
                 : Invalid(absl::StrCat("must be from ", low, " to ", high, ", got ", number));
    });
  };
  constexpr double kMost = 3e38;  // floats hold no more
  c.schedule.kind = "cosine";
  c.schedule.warmup_steps = 10;
  c.trainer.epochs = 5;
  c.trainer.schedule_each_step = true;
  // What the job's files have.
  fields.Add("device", &c.device,
             "one for each rank of a host, such as [cuda:0, cuda:1]; [cpu]: for any number of ranks");
  count("batch_size", &c.batch_size, 1, 1 << 30, "of all ranks together");
  count("num_workers", &c.num_workers, 0, 1024,
        "threads of each rank that make batches; 0: none, it makes them itself");
  count("epoch", &c.trainer.epochs, 1, 1 << 30, "epochs at most");
  range("lr", &c.lr, 0, kMost, "learning rate");
  range("weight_decay", &c.weight_decay, 0, kMost, "weight decay");
  fields.Add("save_dir", &c.save_dir, "the run's files come into <save_dir>/<program>");
  fields.Add(
      "pretrained", &c.pretrained,
      "weights to begin with: a .pth file of torchvision's, a folder with one, or auto for torch.hub's; empty: none");
  count("num_classes", &c.num_classes, 2, 1 << 20, "classes");
  // What else there is.
  fields.Add("data", &c.data, "the folder or archive of CIFAR-10");
  fields.Add("shared_folder", &c.shared_folder, "all hosts see the same data folder: rank 0 alone prepares it");
  fields.Add("model", &c.model, "resnet18, resnet34, resnet50, resnet101 or resnet152");
  fields.Check("model", [&c] { return lockstep::models::CheckResNetName(c.model); });
  fields.Add("small_images", &c.small_images, "a first layer for pictures of 32 × 32, without stride and pooling");
  fields.Add("zero_init_residual", &c.zero_init_residual, "blocks begin as the identity");
  fields.Add("channels_last", &c.channels_last, "the layout that convolutions are fastest in");
  fields.Add("sync_batch_norm", &c.sync_batch_norm, "batch norm over the batches of all ranks");
  count("picture_size", &c.picture_size, 32, 1024, "height and width that the model sees; 32: as they are");
  count("resize", &c.resize, 32, 2048, "height and width before the random crop; unless picture_size is 32");
  count("crop_padding", &c.crop_padding, 0, 32, "pixels around pictures of 32 × 32 before the random crop");
  range("flip", &c.flip, 0, 1, "probability of a horizontal flip");
  range("color_jitter", &c.color_jitter, 0, 1,
        "most change of brightness, contrast and saturation, and a quarter of the hue");
  range("random_erasing", &c.random_erasing, 0, 1, "probability of an erased rectangle");
  range("mixup", &c.mixup, 0, 1e6, "alpha of MixUp; 0: none");
  range("cutmix", &c.cutmix, 0, 1e6, "alpha of CutMix; 0: none");
  range("momentum", &c.momentum, 0, 1, "SGD's momentum");
  range("label_smoothing", &c.label_smoothing, 0, 1, "label smoothing");
  range("ema", &c.ema, 0, 0.999999, "decay of the averaged weights that are validated and saved; 0: none");
  fields.Add("amp", &c.amp, "off, bf16, or fp16, which comes with a loss scaler");
  fields.Check("amp", [&c] {
    return c.amp == "off" || c.amp == "bf16" || c.amp == "fp16" ? absl::OkStatus()
                                                                : Invalid("known are off, bf16 and fp16");
  });
  AddScheduleFields(c.schedule, fields);
  AddTrainerFields("trainer.", c.trainer, fields);
  count("patience", &c.patience, 0, 1 << 30,
        "validations without a better accuracy until the training stops; 0: it doesn't");
  fields.Add("seed", &c.seed, "of weights, order of samples, and all that is drawn");
  count("log_every", &c.log_every, 0, 1 << 30, "steps between lines; 0: a progress bar");
  count("keep_last", &c.keep_last, 0, 1 << 30, "checkpoints that are kept besides the best; 0: all");
  fields.Add("save_failure_is_error", &c.save_failure_is_error, "else a checkpoint that can't be written is a warning");
  fields.Add("tensorboard", &c.tensorboard, "event files for TensorBoard in the run's folder");
  fields.Add("deterministic", &c.deterministic, "the same bits in each run, or an error where an operation can't");
  count("threads", &c.threads, 0, 1024, "of each rank; 0: OMP_NUM_THREADS, or cores / ranks of the host");
  fields.Add("backend", &c.backend, "auto, shm, gloo, hierarchical or nccl");
  range("timeout", &c.timeout, 0.001, 1e7, "seconds that the start and any collective may take");
}

absl::Status ParseConfig(int argc, char** argv, Config& config, lockstep::ConfigFields& fields) {
  AddFields(config, fields);
  std::vector<std::string> sets;
  std::vector<char*> rest;
  LOCKSTEP_RETURN_IF_ERROR(TakeSets(argc, argv, sets, rest));
  absl::SetProgramUsageMessage(absl::StrCat(
      "trains a ResNet on CIFAR-10, one process per device.\n\nThe configuration (--cfg, --set):\n", fields.Help()));
  absl::FlagsUsageConfig usage;
  usage.contains_helpshort_flags = [](absl::string_view file) { return absl::StrContains(file, "cifar10/config.cc"); };
  usage.contains_help_flags = usage.contains_helpshort_flags;
  absl::SetFlagsUsageConfig(usage);
  LOCKSTEP_RETURN_IF_ERROR(CheckFlags(rest, fields));
  rest.push_back(nullptr);
  const auto positional = absl::ParseCommandLine(static_cast<int>(rest.size()) - 1, rest.data());
  if (positional.size() > 1) return Invalid(absl::StrCat("unexpected argument '", positional[1], "'"));

  std::string file = lockstep::UserPath(absl::GetFlag(FLAGS_cfg));
  if (absl::GetFlag(FLAGS_cfg) == kDefaultConfig && !std::filesystem::exists(file)) {
    const std::filesystem::path program(argv[0]);
    for (const auto& folder :
         {std::filesystem::path("examples/cifar10"),
          program.parent_path() / (program.filename().string() + ".runfiles/lockstep/examples/cifar10")}) {
      if (std::filesystem::exists(folder / kDefaultConfig)) {
        file = (folder / kDefaultConfig).lexically_normal().string();
        break;
      }
    }
  }
  config.program = std::filesystem::path(argv[0]).filename().string();
  config.resume = absl::GetFlag(FLAGS_resume);
  const auto read = [&](const std::string& from) {
    absl::Status status = fields.Load(from);
    for (const auto& set : sets) {
      if (status.ok()) status = fields.Set(set);
    }
    config.save_dir = lockstep::UserPath(config.save_dir);
    return status;
  };
  LOCKSTEP_RETURN_IF_ERROR(read(file));
  if (config.resume != "latest" && config.resume != "best") config.resume = lockstep::UserPath(config.resume);
  const bool cfg_given = std::any_of(rest.begin(), rest.end() - 1, [](const std::string& argument) {
    return absl::StartsWith(argument.substr(std::min(argument.find_first_not_of('-'), argument.size())), "cfg");
  });
  if (!config.resume.empty() && !cfg_given) {
    const std::string before = ConfigOfRun(config);
    if (std::filesystem::exists(before)) LOCKSTEP_RETURN_IF_ERROR(read(before));
  }
  // What the defaults are for is the cosine.
  const std::string& kind = config.schedule.kind;
  if (kind != "cosine" && kind != "linear" && kind != "constant" && !fields.Given("schedule.warmup_steps")) {
    config.schedule.warmup_steps.reset();
  }
  if (kind == "reduce_on_plateau" && config.trainer.schedule_each_step) {
    if (fields.Given("trainer.schedule_each_step")) {
      return Invalid("trainer.schedule_each_step: reduce_on_plateau goes by an epoch's metric, not by steps");
    }
    config.trainer.schedule_each_step = false;
  }
  LOCKSTEP_RETURN_IF_ERROR(CheckSchedule(config.schedule));
  if (!absl::GetFlag(FLAGS_weights).empty()) config.pretrained = absl::GetFlag(FLAGS_weights);
  if (absl::GetFlag(FLAGS_print_config)) {
    std::printf("%s", fields.ToYaml().c_str());
    std::exit(std::fflush(stdout) == 0 ? 0 : 1);
  }
  config.synthetic = absl::GetFlag(FLAGS_synthetic);
  if (config.synthetic != 0 && (config.synthetic < 50 || config.synthetic > 1'000'000)) {
    return Invalid(absl::StrCat("--synthetic=", config.synthetic, ": must be from 50 to 1000000 pictures"));
  }
  config.nproc_per_node = absl::GetFlag(FLAGS_nproc_per_node);
  if (config.nproc_per_node < 0 || config.nproc_per_node > 1024) {
    return Invalid(absl::StrCat("--nproc_per_node=", config.nproc_per_node, ": must be from 0 to 1024"));
  }
  config.data = lockstep::UserPath(config.data);
  if (config.pretrained != "auto") config.pretrained = lockstep::UserPath(config.pretrained);
  if (config.save_dir.empty()) return Invalid("save_dir: must name a folder");
  if (config.picture_size != 32 && config.resize < config.picture_size) {
    return Invalid(absl::StrCat("resize: ", config.resize, " is less than picture_size, ", config.picture_size));
  }
  return absl::OkStatus();
}

absl::StatusOr<Plan> MakePlan(const Config& config, int gpu_count) {
  Plan plan;
  LOCKSTEP_ASSIGN_OR_RETURN(plan.environment, lockstep::ReadEnvironment());
  auto& env = plan.environment;
  if (config.device.empty()) return Invalid("device: name a device for each rank of a host, or [cpu]");
  const bool cuda = config.device[0] != "cpu";
  for (const auto& device : config.device) {
    if ((device == "cpu") == cuda) return Invalid("device: either [cpu], or CUDA devices such as [cuda:0, cuda:1]");
    if (!cuda) continue;
    const int index = DeviceIndex(device);
    if (index < 0) return Invalid(absl::StrCat("device: '", device, "' is none; give cpu, or cuda:0 and so on"));
    if (index >= gpu_count) {
      return Invalid(absl::StrCat("device: ", device, ": there ",
                                  gpu_count == 0 ? "is no GPU here, or the program was built without --config=cuda; "
                                                   "--set device=[cpu] trains on the CPU"
                                                 : absl::StrCat("are only ", gpu_count, " GPUs here")));
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(lockstep::ValidateBackend(config.backend, cuda));
  const int devices = static_cast<int>(config.device.size());
  int ranks = env.world_size;
  if (env.launched) {
    if (config.nproc_per_node != 0 && config.nproc_per_node != env.local_world_size) {
      return Invalid(absl::StrCat("--nproc_per_node=", config.nproc_per_node, " but the launcher started ",
                                  env.local_world_size, " ranks on this host; leave the flag out"));
    }
    if ((cuda || devices > 1) && devices != env.local_world_size) {
      return Invalid(absl::StrCat("device: ", devices, " devices, but the launcher started ", env.local_world_size,
                                  " ranks on this host"));
    }
  } else {
    ranks = config.nproc_per_node > 0 ? config.nproc_per_node : cuda || devices > 1 ? devices : 2;
    if ((cuda || devices > 1) && ranks != devices) {
      return Invalid(absl::StrCat("--nproc_per_node=", ranks, " but there are ", devices, " devices"));
    }
    plan.ranks_to_spawn = ranks > 1 ? ranks : 0;
  }
  if (config.batch_size % static_cast<size_t>(ranks) != 0) {
    return Invalid(absl::StrCat("batch_size: ", config.batch_size, " pictures can't be shared by ", ranks,
                                " ranks; give a multiple"));
  }
  plan.batch_size = config.batch_size / static_cast<size_t>(ranks);
  if (cuda && plan.ranks_to_spawn == 0)
    plan.device_index = DeviceIndex(config.device[static_cast<size_t>(env.local_rank)]);
  return plan;
}

}  // namespace cifar10
