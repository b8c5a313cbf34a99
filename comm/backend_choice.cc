#include "lockstep/comm/backend_choice.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include <vector>

#include "lockstep/base/status_macros.h"
#include "lockstep/comm/nccl/nccl.h"

namespace lockstep {
namespace {

constexpr char kKnown[] = "auto, shm, gloo, hierarchical, nccl, or one per device as in cpu:shm,cuda:nccl";

absl::Status CheckName(const std::string& text, const std::string& name, bool for_cpu, bool for_cuda) {
  if (name == "mpi") {
    return absl::InvalidArgumentError(
        "backend mpi: not offered; mpirun may start the ranks, which then find each other by themselves and move "
        "tensors "
        "by shm, gloo or nccl: mpirun -n 2 ./trainer (across hosts with -x MASTER_ADDR=HOST -x MASTER_PORT=PORT)");
  }
  if (name != "auto" && name != "shm" && name != "hierarchical" && name != "gloo" && name != "nccl") {
    return absl::InvalidArgumentError(absl::StrCat("backend ", text, ": unknown; known: ", kKnown));
  }
  if (name == "nccl" && !HasNccl()) {
    return absl::FailedPreconditionError(
        absl::StrCat("backend ", text, ": this program was built without CUDA; build it with --config=cuda"));
  }
  if (name == "nccl" && for_cpu) {
    return absl::InvalidArgumentError(
        absl::StrCat("backend ", text,
                     ": NCCL moves CUDA tensors only, and these are on the CPU; use auto, shm, gloo or hierarchical"));
  }
  if ((name == "shm" || name == "hierarchical") && for_cuda) {
    return absl::InvalidArgumentError(
        absl::StrCat("backend ", text, ": ", name, " moves CPU tensors only, and these are on CUDA; use nccl or gloo"));
  }
  return absl::OkStatus();
}

std::string CudaBackend(const std::string& name) { return name == "auto" ? (HasNccl() ? "nccl" : "gloo") : name; }

}  // namespace

absl::StatusOr<BackendChoice> ParseBackend(const std::string& text, bool cuda) {
  BackendChoice choice;
  if (text.find(':') == std::string::npos) {
    LOCKSTEP_RETURN_IF_ERROR(CheckName(text, text, /*for_cpu=*/!cuda, /*for_cuda=*/cuda));
    if (text != "nccl") choice.cpu = text;
    if (cuda) choice.cuda = CudaBackend(text);
    return choice;
  }
  if (cuda) choice.cuda = CudaBackend("auto");
  std::vector<std::string> seen;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::vector<std::string> pair = absl::StrSplit(part, ':');
    if (pair.size() != 2 || (pair[0] != "cpu" && pair[0] != "cuda")) {
      return absl::InvalidArgumentError(absl::StrCat("backend ", text, ": '", part,
                                                     "' is not DEVICE:BACKEND, with cpu "
                                                     "or cuda for the device; known: ",
                                                     kKnown));
    }
    for (const std::string& device : seen) {
      if (device == pair[0]) {
        return absl::InvalidArgumentError(absl::StrCat("backend ", text, ": two backends for ", device));
      }
    }
    seen.push_back(pair[0]);
    LOCKSTEP_RETURN_IF_ERROR(CheckName(text, pair[1], pair[0] == "cpu", pair[0] == "cuda"));
    if (pair[0] == "cpu") choice.cpu = pair[1];
    if (pair[0] == "cuda" && cuda) choice.cuda = CudaBackend(pair[1]);
  }
  return choice;
}

absl::Status ValidateBackend(const std::string& text, bool cuda) { return ParseBackend(text, cuda).status(); }

}  // namespace lockstep
