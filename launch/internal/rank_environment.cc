#include "lockstep/launch/internal/rank_environment.h"

#include <unistd.h>

#include <absl/strings/ascii.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <map>

#include "lockstep/base/cores.h"

namespace lockstep {
namespace {

using Variables = std::map<std::string, std::string>;

Variables Ours() {
  Variables variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('=');
    if (equals != std::string::npos) variables[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return variables;
}

/// The device that the local rank stands for, among those that we may see.
std::string Device(const Variables& variables, int local_rank) {
  const auto visible = variables.find("CUDA_VISIBLE_DEVICES");
  if (visible == variables.end()) return std::to_string(local_rank);
  const std::vector<std::string> devices = absl::StrSplit(visible->second, ',');
  // One that doesn't exist, as a rank too many would see without us.
  if (static_cast<size_t>(local_rank) >= devices.size()) return "-1";
  return std::string(absl::StripAsciiWhitespace(devices[static_cast<size_t>(local_rank)]));
}

}  // namespace

std::vector<std::string> RankEnvironment(const LaunchPlan& plan, const Placement& placement, int local_rank,
                                         const std::string& error_file) {
  const SpawnOptions& spawn = plan.spawn;
  const int rank = placement.first_rank + local_rank;
  Variables variables = Ours();
  if (rank != 0) {
    for (const auto& name : spawn.rank_zero_variables) variables.erase(name);
  }
  const auto number = [&](const char* name, int value) { variables[name] = std::to_string(value); };
  if (plan.virtual_local_rank) variables["CUDA_VISIBLE_DEVICES"] = Device(variables, local_rank);
  number("LOCAL_RANK", plan.virtual_local_rank ? 0 : local_rank);
  number("RANK", rank);
  number("WORLD_SIZE", placement.world_size);
  number("LOCAL_WORLD_SIZE", spawn.num_ranks);
  number("GROUP_RANK", placement.node_rank);
  number("GROUP_WORLD_SIZE", placement.num_nodes);
  number("ROLE_RANK", placement.first_role_rank + local_rank);
  number("ROLE_WORLD_SIZE", placement.role_world_size);
  variables["ROLE_NAME"] = plan.role;
  variables["MASTER_ADDR"] = placement.master_addr;
  number("MASTER_PORT", placement.master_port);
  number("TORCHELASTIC_RESTART_COUNT", placement.restarts);
  number("LOCKSTEP_RESTART_COUNT", placement.restarts + placement.regroups);
  number("TORCHELASTIC_MAX_RESTARTS", spawn.max_restarts);
  variables["TORCHELASTIC_RUN_ID"] = spawn.launch_id;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";  // rank 0 holds the store
  variables["TORCHELASTIC_SIGNALS_TO_HANDLE"] = plan.signals_text;
  variables.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  variables.erase("TORCHELASTIC_ERROR_FILE");  // of a launcher around us
  if (!error_file.empty()) variables["TORCHELASTIC_ERROR_FILE"] = error_file;
  // To a pipe Python writes when its buffer is full; torchrun gives it -u.
  if (plan.output.Relayed()) variables.emplace("PYTHONUNBUFFERED", "1");
  if (spawn.threads > 0) {
    number("OMP_NUM_THREADS", spawn.threads);
  } else if (variables["OMP_NUM_THREADS"].empty()) {
    number("OMP_NUM_THREADS", std::max(1, AvailableCores() / spawn.num_ranks));
  }
  std::vector<std::string> environment;
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  return environment;
}

}  // namespace lockstep
