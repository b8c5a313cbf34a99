// One rank of a run with a parameter server, in which one rank may be killed.
//
//   parameter_server_program MODE BACKEND SERVERS STEPS VICTIM FOLDER    (in each of several ranks)
//
// MODE: sync, async, or bounded (async with a staleness of at most 2). VICTIM: a rank that is killed when the first
// worker has made three steps, or, if it is a worker, by itself when it has; -1: none. FOLDER: where server 0 saves; -:
// nowhere. Workers that have finished say "done", servers "served" with the steps; server 0 also the sum of each
// tensor.

#include <ATen/Functions.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_writer.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/launch/member_main.h"
#include "lockstep/parallel/parameter_server.h"
#include "lockstep/parallel/parameter_server_optimizer.h"
#include "parameter_server_net.h"

using namespace lockstep;  // NOLINT: a program

namespace {

std::string ProcessKey(int rank) { return "process/" + std::to_string(rank); }

absl::Status Serve(const ProcessGroupPtr& world, const ParameterServerLayout& layout, NetImpl& net,
                   const OptimizerFactory& factory, const ProcessGroupOptions& connection, const std::string& folder) {
  PthWriter writer;
  std::unique_ptr<Checkpointer> checkpointer;
  ParameterServerOptions options;
  options.connection = connection;
  if (folder != "-" && GetRank(world) == 0) {
    CheckpointerOptions saving;
    saving.folder = folder;
    checkpointer = std::make_unique<Checkpointer>(saving, writer, nullptr);
    options.checkpointer = checkpointer.get();
  }
  auto server = ParameterServer::Connect(world, layout, net, factory, options);
  if (!server.ok()) return server.status();
  if (const absl::Status served = (*server)->Serve(); !served.ok()) return served;
  std::printf("served %lld\n", static_cast<long long>((*server)->steps()));
  if (GetRank(world) != 0) return absl::OkStatus();
  const Value state = ModuleState(net);
  for (const auto& [name, value] : state.dict()->items) {
    std::printf("%s %.6f\n", name.string()->c_str(), value.tensor()->sum().item<double>());
  }
  return absl::OkStatus();
}

absl::Status Work(const ProcessGroupPtr& world, const ParameterServerLayout& layout, NetImpl& net,
                  const OptimizerFactory& factory, const ProcessGroupOptions& connection, int steps, int victim) {
  auto connected = ParameterServerOptimizer::Connect(world, layout, net, factory, connection);
  if (!connected.ok()) return connected.status();
  ParameterServerOptimizer& optimizer = **connected;
  const int rank = GetRank(world);
  torch::manual_seed(rank);
  for (int step = 0; step < steps; ++step) {
    if (step == 3 && rank == victim) kill(getpid(), SIGKILL);
    if (step == 3 && victim >= 0 && victim < layout.servers && layout.worker_index(rank) == 0) {
      kill(std::atoi(world->getStore()->get_to_str(ProcessKey(victim)).c_str()), SIGKILL);
    }
    optimizer.zero_grad();
    net.forward(at::randn({4, 6})).square().mean().backward();
    optimizer.step();
  }
  optimizer.Finish();
  std::printf("done\n");
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const std::string mode = argv[1];
  ProcessGroupOptions connection;
  connection.backend = argv[2];
  ParameterServerLayout layout;
  layout.servers = std::atoi(argv[3]);
  if (mode != "sync") layout.mode = ParameterServerLayout::Mode::kAsynchronous;
  if (mode == "bounded") layout.max_staleness = 2;
  return MemberMain({}, [&](const ProcessGroupPtr& world) {
    const std::string process = std::to_string(getpid());
    world->getStore()->set(ProcessKey(GetRank(world)), std::vector<uint8_t>(process.begin(), process.end()));
    Net net = MakeNet();
    const auto factory = MakesOptimizer<torch::optim::SGD>(torch::optim::SGDOptions(0.05).momentum(0.9));
    return layout.is_server(GetRank(world))
               ? Serve(world, layout, *net, factory, connection, argv[6])
               : Work(world, layout, *net, factory, connection, std::atoi(argv[4]), std::atoi(argv[5]));
  });
}
