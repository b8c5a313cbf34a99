#include "lockstep/comm/join.h"

#include <ATen/Functions.h>

namespace lockstep {

Join::Join(std::vector<Joinable*> joinables, ProcessGroupPtr group, JoinOptions options)
    : joinables_(std::move(joinables)), group_(std::move(group)), options_(options) {}

Join::~Join() {
  for (Joinable* joinable : joinables_) joinable->SetJoinState(nullptr);
}

Join::Step Join::Next(bool has_batch) {
  JoinState state{has_batch, has_batch, 0, options_.divide_by_initial_world_size};
  if (group_) {
    at::Tensor with_batch = at::zeros({GetWorldSize(group_)}, at::kInt);
    with_batch[GetRank(group_)] = static_cast<int>(has_batch);
    AllReduce(with_batch, group_);
    state.ranks_with_batch = with_batch.sum().item<int>();
    state.first_rank_with_batch = static_cast<int>(with_batch.argmax().item<int64_t>());
  }
  if (state.ranks_with_batch == 0 || (options_.stop_with_first && state.ranks_with_batch < GetWorldSize(group_))) {
    for (Joinable* joinable : joinables_) joinable->SetJoinState(nullptr);
    for (Joinable* joinable : joinables_) joinable->OnJoinEnd(state_);
    return Step::kEnd;
  }
  state_ = state;
  for (Joinable* joinable : joinables_) joinable->SetJoinState(&state_);
  return has_batch ? Step::kBatch : Step::kShadow;
}

}  // namespace lockstep
