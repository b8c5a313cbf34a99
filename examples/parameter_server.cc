// The MNIST ConvNet with a parameter server, synchronous and asynchronous, beside DistributedDataParallel with as many
// workers; starts its ranks itself:
//   ./bazelw run //examples:parameter_server -- --workers=2 --servers=1 --epochs=2 --staleness=4

#include <absl/flags/flag.h>
#include <absl/flags/parse.h>
#include <absl/flags/usage.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/malloc.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/data/mnist.h"
#include "lockstep/data/random_split.h"
#include "lockstep/data/tensor_loader.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/launch/member_main.h"
#include "lockstep/launch/port.h"
#include "lockstep/launch/rank_main.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/models/conv_net.h"
#include "lockstep/nn/channels_last.h"
#include "lockstep/parallel/parameter_server.h"
#include "lockstep/parallel/parameter_server_optimizer.h"
#include "lockstep/samplers/distributed_sampler.h"

ABSL_FLAG(int, workers, 2, "Ranks that train.");
ABSL_FLAG(int, servers, 1, "Ranks that serve, of the parameter server's runs.");
ABSL_FLAG(bool, replicated, false, "Synchronous servers all have all parameters.");
ABSL_FLAG(int, staleness, -1, "How many steps an asynchronous worker may be ahead of the slowest; -1: any.");
ABSL_FLAG(int, epochs, 2, "Passes over the training part.");
ABSL_FLAG(int, batch_size, 64, "Of each worker.");
ABSL_FLAG(double, lr, 0.05, "Learning rate of SGD.");
ABSL_FLAG(std::string, data, "/usr/share/datasets/fashion-mnist", "A folder of IDX files or a CSV file.");
ABSL_FLAG(std::string, ways, "ddp,sync,async", "What to run, in this order.");
ABSL_FLAG(std::string, way, "", "Set by the program for the ranks that it starts: the run that they are of.");
ABSL_FLAG(std::string, report, "", "Likewise: the file for what came of it.");

using namespace lockstep;  // NOLINT: an example

namespace {

constexpr uint64_t kSeed = 1206;

struct Data {
  std::unique_ptr<TensorLoader> train;
  int64_t train_images;  ///< Of all workers.
  at::Tensor test_images, test_labels;
};

absl::StatusOr<Data> LoadData(int worker, int workers) {
  LOCKSTEP_ASSIGN_OR_RETURN(const MnistData data, LoadMnist(absl::GetFlag(FLAGS_data)));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto parts, RandomSplit(data.labels.numel(), {0.9, 0.1}, kSeed));
  DistributedSamplerOptions options;
  options.seed = kSeed;
  DistributedSampler sampler(parts[0].numel(), workers, worker, options);
  LoaderOptions loading;
  loading.batch_size = absl::GetFlag(FLAGS_batch_size);
  return Data{std::make_unique<TensorLoader>(data.images.index_select(0, parts[0]),
                                             data.labels.index_select(0, parts[0]), sampler, loading,
                                             [](TensorBatch batch, const BatchKeys&) {
                                               return TensorBatch{batch.data.to(at::kFloat).div_(255), batch.target};
                                             }),
              parts[0].numel(), data.images.index_select(0, parts[1]), data.labels.index_select(0, parts[1])};
}

models::ConvNet MakeModel() {
  torch::manual_seed(kSeed);  // the same weights everywhere
  models::ConvNet model;
  nn::ToChannelsLast(*model);
  return model;
}

/// The training loop, the same for all ways.
template <typename Module>
void Train(Module& module, torch::optim::Optimizer& optimizer, TensorLoader& batches) {
  module.train();
  for (int epoch = 0; epoch < absl::GetFlag(FLAGS_epochs); ++epoch) {
    batches.StartEpoch(epoch);
    while (auto batch = batches.Next()) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(module.forward(batch->data), batch->target).backward();
      optimizer.step();
    }
  }
}

/// What came of a run, for the table: images of all workers per second, accuracy on the test part.
absl::Status Report(models::ConvNetImpl& model, const Data& data, double seconds, const std::string& more) {
  model.eval();
  const at::NoGradGuard no_grad;
  const at::Tensor logits = model.forward(data.test_images.to(at::kFloat).div_(255));
  const double accuracy = logits.argmax(1).eq(data.test_labels).to(at::kDouble).mean().item<double>();
  const double images = static_cast<double>(data.train_images) * absl::GetFlag(FLAGS_epochs);
  std::ofstream file(absl::GetFlag(FLAGS_report));
  file << absl::StrFormat("%10.0f %10.4f   %s\n", images / seconds, accuracy, more);
  return file.flush() ? absl::OkStatus() : absl::UnavailableError("the report can't be written");
}

class Stopwatch {
 public:
  double Seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

absl::Status RunDdp(const ProcessGroupPtr& group) {
  LOCKSTEP_ASSIGN_OR_RETURN(Data data, LoadData(GetRank(group), GetWorldSize(group)));
  models::ConvNet model = MakeModel();
  DistributedDataParallelOptions options;
  options.broadcast_buffers = false;
  DistributedDataParallel<models::ConvNetImpl> ddp(model, group, options);
  torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(absl::GetFlag(FLAGS_lr)));
  Barrier(group);
  const Stopwatch watch;
  Train(ddp, optimizer, *data.train);
  Barrier(group);
  return GetRank(group) == 0 ? Report(*model, data, watch.Seconds(), "") : absl::OkStatus();
}

absl::Status RunParameterServer(const ProcessGroupPtr& group, bool synchronous) {
  ParameterServerLayout layout;
  layout.servers = absl::GetFlag(FLAGS_servers);
  if (synchronous && absl::GetFlag(FLAGS_replicated)) {
    layout.placement = ParameterServerLayout::Placement::kReplicated;
  }
  if (!synchronous) {
    layout.mode = ParameterServerLayout::Mode::kAsynchronous;
    if (absl::GetFlag(FLAGS_staleness) >= 0) layout.max_staleness = absl::GetFlag(FLAGS_staleness);
  }
  const auto factory = MakesOptimizer<torch::optim::SGD>(torch::optim::SGDOptions(absl::GetFlag(FLAGS_lr)));
  models::ConvNet model = MakeModel();
  const int rank = GetRank(group), workers = layout.num_workers(GetWorldSize(group));
  const bool serves = layout.is_server(rank);
  LOCKSTEP_ASSIGN_OR_RETURN(Data data, LoadData(serves ? 0 : layout.worker_index(rank), workers));
  if (!serves) {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto optimizer, ParameterServerOptimizer::Connect(group, layout, *model, factory));
    Train(*model, *optimizer, *data.train);
    optimizer->Finish();
    return absl::OkStatus();
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const auto server, ParameterServer::Connect(group, layout, *model, factory));
  const Stopwatch watch;
  LOCKSTEP_RETURN_IF_ERROR(server->Serve());
  return rank == 0 ? Report(*model, data, watch.Seconds(), server->staleness().ToString()) : absl::OkStatus();
}

int RunRank(const std::string& way) {
  if (way == "ddp") return RankMain({}, RunDdp);
  return MemberMain({}, [&](const ProcessGroupPtr& group) { return RunParameterServer(group, way == "sync"); });
}

/// Starts the ranks of one run, and reads what came of it.
int RunWay(const std::string& way, char* const* argv, int argc, const std::string& report) {
  const auto port = ReservedPort::Reserve(0);
  if (!port.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(port.status().message()).c_str());
    return 1;
  }
  const int workers = absl::GetFlag(FLAGS_workers), servers = way == "ddp" ? 0 : absl::GetFlag(FLAGS_servers);
  SpawnOptions options;
  options.argv.assign(argv, argv + argc);
  options.argv[0] = ThisProgram();
  options.argv.push_back("--way=" + way);
  options.argv.push_back("--report=" + report);
  options.num_ranks = servers + workers;
  options.master_port = port->port();
  options.report_exit_codes = false;  // a rank that fails has said why
  if (way == "async") options.expendable_from = servers;
  if (const int code = SpawnRanks(options); code != 0) return code;
  std::ifstream file(report);
  std::stringstream line;
  line << file.rdbuf();
  std::printf("%-6s %8d %8d %s", way.c_str(), workers, servers, line.str().c_str());
  std::fflush(stdout);
  return 0;
}

int Fail(const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  KeepFreedMemory();
  absl::SetProgramUsageMessage("trains the MNIST ConvNet with a parameter server and with DistributedDataParallel");
  absl::ParseCommandLine(argc, argv);
  for (const auto& [name, value] : {std::pair("workers", absl::GetFlag(FLAGS_workers)),
                                    {"servers", absl::GetFlag(FLAGS_servers)},
                                    {"epochs", absl::GetFlag(FLAGS_epochs)},
                                    {"batch_size", absl::GetFlag(FLAGS_batch_size)}}) {
    if (value < 1) return Fail(absl::StrCat("--", name, " must be at least 1, not ", value));
  }
  if (!absl::GetFlag(FLAGS_way).empty()) return RunRank(absl::GetFlag(FLAGS_way));
  std::vector<std::string> ways;
  std::istringstream list(absl::GetFlag(FLAGS_ways));
  for (std::string way; std::getline(list, way, ',');) {
    if (way != "ddp" && way != "sync" && way != "async") {
      return Fail("--ways: '" + way + "' is none of ddp, sync and async");
    }
    ways.push_back(way);
  }
  char report[] = "/tmp/parameter_server_XXXXXX";
  const int file = mkstemp(report);
  if (file < 0) return Fail("no temporary file can be made");
  close(file);
  if (ways.empty()) return Fail("--ways: name some of ddp, sync and async");
  if (absl::GetFlag(FLAGS_staleness) < -1) return Fail("--staleness: must be from 0 on, or -1 for any");
  std::printf("way     workers  servers   images/s   accuracy   staleness\n");
  int code = 0;
  for (size_t i = 0; i < ways.size() && code == 0; ++i) {
    std::fprintf(stderr, "training: %s\n", ways[i].c_str());
    code = RunWay(ways[i], argv, argc, report);
  }
  unlink(report);
  return code;
}
