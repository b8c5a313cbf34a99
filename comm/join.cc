#include "lockstep/comm/join.h"

#include <ATen/Functions.h>

namespace lockstep {

Join::Join(std::vector<Joinable*> joinables, ProcessGroupPtr group, JoinOptions options)
    : joinables_(std::move(joinables)), group_(std::move(group)), options_(options) {}

Join::~Join() {
  for (Joinable* joinable : joinables_) joinable->SetJoinState(nullptr);
}

Join::Step Join::Next(bool has_batch, bool has_next) {
  const int world_size = GetWorldSize(group_);
  at::Tensor with = at::zeros({2, world_size}, at::kInt);  // a batch, and one after it
  with[0][GetRank(group_)] = static_cast<int>(has_batch);
  with[1][GetRank(group_)] = static_cast<int>(has_batch && has_next);
  AllReduce(with, group_);
  const auto is_end = [&](int ranks) { return ranks == 0 || (options_.stop_with_first && ranks < world_size); };
  JoinState state;
  state.has_batch = has_batch;
  state.ranks_with_batch = with[0].sum().item<int>();
  state.first_rank_with_batch = static_cast<int>(with[0].argmax().item<int64_t>());
  state.divide_by_initial_world_size = options_.divide_by_initial_world_size;
  state.is_last = is_end(with[1].sum().item<int>());
  if (is_end(state.ranks_with_batch)) {
    for (Joinable* joinable : joinables_) joinable->SetJoinState(nullptr);
    for (Joinable* joinable : joinables_) joinable->OnJoinEnd(state_);
    return Step::kEnd;
  }
  state_ = state;
  for (Joinable* joinable : joinables_) joinable->SetJoinState(&state_);
  return has_batch ? Step::kBatch : Step::kShadow;
}

}  // namespace lockstep
