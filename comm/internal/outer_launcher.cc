#include "lockstep/comm/internal/outer_launcher.h"

#include <absl/status/status.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <cstdint>

#include "lockstep/base/status_macros.h"
#include "lockstep/comm/internal/process_tree.h"
#include "lockstep/comm/internal/slurm_lists.h"
#include "lockstep/comm/internal/variables.h"

namespace lockstep {
namespace {

constexpr int kMaxWorld = 1 << 20;

/// Slurm's numbers are unsigned. From this one on they are no steps that srun has started but batch scripts, shells of
/// salloc and the like.
constexpr uint32_t kFirstSpecialStep = 0xfffffff0;

/// A job's or a step's number.
absl::StatusOr<uint32_t> SlurmNumber(const char* name) {
  const std::string text = Variable(name);
  uint32_t number = 0;
  if (absl::SimpleAtoi(text, &number)) return number;
  return absl::InvalidArgumentError(absl::StrCat("environment: ", name, "=", text, " is no number of Slurm's"));
}

/// Below the ports that systems give out by themselves (from 32768 on).
int PortFrom(uint64_t number) { return 20000 + static_cast<int>(number % 12000); }

uint64_t Hash(const std::string& text) {  // FNV-1a
  uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

/// The four numbers, by the variables' names.
absl::StatusOr<OuterPlacement> ReadNumbers(const std::string& launcher, const char* rank, const char* size,
                                           const char* local_rank, const char* local_size) {
  OuterPlacement found;
  found.launcher = launcher;
  found.rank_variable = rank;
  found.size_variable = size;
  LOCKSTEP_ASSIGN_OR_RETURN(found.world_size, NumberVariable(size, 1, kMaxWorld));
  LOCKSTEP_ASSIGN_OR_RETURN(found.rank, NumberVariable(rank, 0, found.world_size - 1));
  LOCKSTEP_ASSIGN_OR_RETURN(found.local_world_size, NumberVariable(local_size, 1, found.world_size));
  LOCKSTEP_ASSIGN_OR_RETURN(found.local_rank, NumberVariable(local_rank, 0, found.local_world_size - 1));
  return found;
}

/// On one host the ranks need not be told where to meet.
void MeetOnThisHost(OuterPlacement& found) {
  if (found.local_world_size != found.world_size) return;
  found.master_addr = "localhost";
  found.master_port = PortFrom(Hash(found.run));
}

absl::StatusOr<OuterPlacement> ReadOpenMpi() {
  LOCKSTEP_ASSIGN_OR_RETURN(OuterPlacement found,
                            ReadNumbers("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"));
  found.run = Variable("PMIX_NAMESPACE");
  if (found.run.empty()) found.run = AncestorWithout(found.rank_variable);
  MeetOnThisHost(found);
  return found;
}

absl::StatusOr<OuterPlacement> ReadHydra() {
  LOCKSTEP_ASSIGN_OR_RETURN(OuterPlacement found,
                            ReadNumbers("mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"));
  found.run = AncestorWithout(found.rank_variable);
  MeetOnThisHost(found);
  return found;
}

/// Steps are what srun starts: a batch script itself, which has SLURM_PROCID too, is none.
std::string StepVariable(const char* of_step, const char* of_job) {
  const std::string value = Variable(of_step);
  return value.empty() ? Variable(of_job) : value;
}

absl::StatusOr<OuterPlacement> ReadSlurm() {
  OuterPlacement found;
  found.launcher = "srun";
  found.rank_variable = "SLURM_PROCID";
  found.size_variable = Variable("SLURM_STEP_NUM_TASKS").empty() ? "SLURM_NTASKS" : "SLURM_STEP_NUM_TASKS";
  LOCKSTEP_ASSIGN_OR_RETURN(found.world_size, NumberVariable(found.size_variable.c_str(), 1, kMaxWorld));
  LOCKSTEP_ASSIGN_OR_RETURN(found.rank, NumberVariable("SLURM_PROCID", 0, found.world_size - 1));
  LOCKSTEP_ASSIGN_OR_RETURN(found.local_rank, NumberVariable("SLURM_LOCALID", 0, found.world_size - 1));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto hosts,
                            ExpandHostList(StepVariable("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto tasks,
                            ExpandTaskCounts(StepVariable("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")));
  int node = 0;
  if (hosts.size() > 1) {
    LOCKSTEP_ASSIGN_OR_RETURN(node, NumberVariable("SLURM_NODEID", 0, static_cast<int>(hosts.size()) - 1));
  }
  if (static_cast<size_t>(node) >= tasks.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment: SLURM_NODEID=", node, " but SLURM_TASKS_PER_NODE has ", tasks.size(), " hosts"));
  }
  found.local_world_size = tasks[static_cast<size_t>(node)];
  if (found.local_rank >= found.local_world_size) {
    return absl::InvalidArgumentError(absl::StrCat("environment: SLURM_LOCALID=", found.local_rank, " on a host with ",
                                                   found.local_world_size, " tasks"));
  }
  if (found.rank == 0 && node != 0 && Variable("MASTER_ADDR").empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "environment: srun has started rank 0 on host number ", node, " (SLURM_NODEID), and the others look for it on ",
        hosts.front(), ", the first; set MASTER_ADDR to the host of rank 0 for all of them"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const uint32_t job, SlurmNumber("SLURM_JOB_ID"));
  LOCKSTEP_ASSIGN_OR_RETURN(const uint32_t step, SlurmNumber("SLURM_STEP_ID"));
  found.run = absl::StrCat("slurm-", job, ".", step);
  found.master_addr = hosts.size() == 1 ? "localhost" : hosts.front();
  // Jobs and steps that run at the same time have numbers close to each other.
  found.master_port = PortFrom(uint64_t{16} * job + step);
  return found;
}

/// A step of one task may be a shell, in which programs are started by hand.
bool IsSlurmStep() {
  if (Variable("SLURM_PROCID").empty() || Variable("SLURM_STEP_ID").empty()) return false;
  const auto step = SlurmNumber("SLURM_STEP_ID");
  if (step.ok() && *step >= kFirstSpecialStep) return false;
  int tasks = 0;
  const std::string text = StepVariable("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
  return !absl::SimpleAtoi(text, &tasks) || tasks != 1;
}

}  // namespace

absl::StatusOr<std::optional<OuterPlacement>> ReadOuterLauncher() {
  std::optional<OuterPlacement> found;
  if (!Variable("OMPI_COMM_WORLD_RANK").empty() || !Variable("OMPI_COMM_WORLD_SIZE").empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(found, ReadOpenMpi());
  } else if (!Variable("PMI_RANK").empty() && !(Variable("MPI_LOCALRANKID").empty() && IsSlurmStep())) {
    LOCKSTEP_ASSIGN_OR_RETURN(found, ReadHydra());  // Slurm may set PMI_RANK too
  } else if (IsSlurmStep()) {
    LOCKSTEP_ASSIGN_OR_RETURN(found, ReadSlurm());
  }
  return found;
}

}  // namespace lockstep
