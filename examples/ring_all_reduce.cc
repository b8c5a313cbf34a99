// Ring all-reduce, step by step:
//   ./bazelw run //examples:ring_all_reduce -- --world_size=4
// Each rank is a process. Block A of rank 0 begins as A0; A0+A1 means that rank 1's block A has been added.

#include <ATen/Functions.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "lockstep/comm/ring/ring_all_reduce.h"
#include "lockstep/launch/port.h"
#include "lockstep/launch/rank_main.h"
#include "lockstep/launch/spawn.h"

namespace {

using lockstep::ProcessGroupPtr;
using lockstep::RingStep;

constexpr int kMaxWorldSize = 26;  // one letter a block

/// Rank r's contribution is bit r of each element, so that a sum shows who is in it.
std::string Symbols(int block, int64_t bits) {
  std::string text;
  for (int rank = 0; rank < kMaxWorldSize; ++rank) {
    if ((bits >> rank & 1) == 0) continue;
    text += (text.empty() ? "" : "+") + std::string(1, static_cast<char>('A' + block)) + std::to_string(rank);
  }
  return text;
}

void PrintBlocks(const std::string& title, const at::Tensor& blocks, const ProcessGroupPtr& group) {
  const auto all = lockstep::AllGather(blocks, group);
  if (lockstep::GetRank(group) != 0) return;
  std::printf("%s\n", title.c_str());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::printf("  rank %zu:", rank);
    for (int64_t block = 0; block < all[rank].numel(); ++block) {
      std::printf("  %s", Symbols(static_cast<int>(block), all[rank][block].item<int64_t>()).c_str());
    }
    std::printf("\n");
  }
}

/// The most that any rank has sent and received.
int64_t Busiest(const lockstep::Traffic& traffic, const ProcessGroupPtr& group) {
  at::Tensor bytes = at::scalar_tensor(traffic.bytes_sent + traffic.bytes_received, at::kLong);
  lockstep::AllReduce(bytes, group, c10d::ReduceOp::MAX);
  return bytes.item<int64_t>();
}

absl::Status Show(const ProcessGroupPtr& group) {
  const int n = lockstep::GetWorldSize(group), rank = lockstep::GetRank(group);
  at::Tensor blocks = at::full({n}, int64_t{1} << rank, at::kLong);
  PrintBlocks("at the start", blocks, group);
  const lockstep::Traffic ring = lockstep::RingAllReduce(blocks, group, [&](const RingStep& step) {
    const bool first = step.phase == RingStep::Phase::kReduceScatter;
    PrintBlocks((first ? "reduce-scatter, step " : "all-gather, step ") + std::to_string(step.step), blocks, group);
  });
  const bool right = blocks.eq((int64_t{1} << n) - 1).all().item<bool>();
  if (lockstep::AnyRank(!right, group)) return absl::InternalError("a rank does not hold every sum at the end");

  at::Tensor again = at::full({n}, int64_t{1} << rank, at::kLong);
  const lockstep::Traffic naive = lockstep::NaiveAllReduce(again, group);
  const int64_t busiest_ring = Busiest(ring, group), busiest_naive = Busiest(naive, group);
  if (rank == 0) {
    std::printf("every rank holds every sum\n");
    std::printf(
        "busiest rank, sent and received: %lld bytes in the ring, %lld bytes the naive way (all to rank 0 and back)\n",
        static_cast<long long>(busiest_ring), static_cast<long long>(busiest_naive));
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  int world_size = 4;
  for (int i = 1; i < argc; ++i) {
    constexpr char kFlag[] = "--world_size=";
    char* end = nullptr;
    const bool known = std::strncmp(argv[i], kFlag, sizeof(kFlag) - 1) == 0;
    if (known) world_size = static_cast<int>(std::strtol(argv[i] + sizeof(kFlag) - 1, &end, 10));
    if (!known || end == argv[i] + sizeof(kFlag) - 1 || *end != '\0' || world_size < 1 || world_size > kMaxWorldSize) {
      std::fprintf(stderr, "error: %s: want --world_size=N with N from 1 to %d\n", argv[i], kMaxWorldSize);
      return 1;
    }
  }
  if (std::getenv("RANK") != nullptr) return lockstep::RankMain({}, Show);
  const auto port = lockstep::ReservedPort::Reserve(0);
  if (!port.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(port.status().message()).c_str());
    return 1;
  }
  lockstep::SpawnOptions options;
  options.argv = {lockstep::ThisProgram(), "--world_size=" + std::to_string(world_size)};
  options.num_ranks = world_size;
  options.master_port = port->port();
  options.report_exit_codes = false;
  return lockstep::SpawnRanks(options);
}
