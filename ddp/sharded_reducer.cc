#include "lockstep/ddp/sharded_reducer.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "lockstep/ddp/internal/buckets.h"

namespace lockstep {

ShardedReducer::ShardedReducer(std::vector<NamedParameter> given, ProcessGroupPtr over)
    : ReduceAtEnd(std::move(given), std::move(over)) {
  std::vector<at::Tensor> tensors;
  std::vector<size_t> order;
  for (const auto& named : parameters()) {
    order.push_back(tensors.size());
    tensors.push_back(named.parameter);
  }
  if (!group()) {  // the shard is all of it, and gradients stay where they are
    for (size_t i : order) shard_.push_back({tensors[i], i, 0, tensors[i].numel()});
    return;
  }
  const at::NoGradGuard no_grad;
  const int64_t world_size = GetWorldSize(group()), rank = GetRank(group());
  constexpr size_t kNoCap = static_cast<size_t>(-1);
  for (auto& members : internal::AssignBuckets(tensors, order, kNoCap, kNoCap)) {
    Block block;
    int64_t total = 0;
    for (size_t i : members) {
      block.offsets.push_back(total);
      total += tensors[i].numel();
    }
    const int64_t part = (total + world_size - 1) / world_size, begin = rank * part;
    const at::TensorOptions options = tensors[members[0]].options().requires_grad(false);
    block.parameters = internal::NewFlat(part * world_size, options, group());
    block.gradients = at::zeros({part}, options.memory_format(std::nullopt));
    for (size_t m = 0; m < members.size(); ++m) {
      at::Tensor& parameter = tensors[members[m]];
      const at::Tensor alias = internal::Alias(block.parameters, block.offsets[m], parameter);
      alias.copy_(parameter);
      parameter.set_data(alias);
      const int64_t from = std::max(block.offsets[m], begin);
      const int64_t to = std::min(block.offsets[m] + parameter.numel(), begin + part);
      if (from >= to) continue;
      const at::Tensor like = at::empty({to - from}, options.memory_format(std::nullopt));
      Piece piece{internal::Alias(block.parameters, from, like), members[m], from - block.offsets[m], to - from};
      piece.tensor.requires_grad_();
      shard_.push_back(std::move(piece));
    }
    block.members = std::move(members);
    blocks_.push_back(std::move(block));
  }
}

void ShardedReducer::Reduce(const std::string& problem) {
  const at::NoGradGuard no_grad;
  const double weight = this->weight();
  if (AnyRank(!problem.empty(), group())) ThrowProblems(problem);
  size_t next_piece = 0;
  for (Block& block : blocks_) {
    // Only for as long as it takes: between steps a rank holds gradients of its own part.
    const at::Tensor all = at::zeros_like(block.parameters);
    for (size_t m = 0; m < block.members.size(); ++m) {
      at::Tensor& grad = parameters()[block.members[m]].parameter.mutable_grad();
      if (!grad.defined()) continue;
      at::Tensor to = internal::Alias(all, block.offsets[m], parameters()[block.members[m]].parameter);
      if (weight != 0) at::mul_out(to, grad, at::scalar_tensor(weight, at::kDouble));
      grad.reset();
    }
    const at::Tensor mine = at::empty_like(block.gradients);
    ReduceScatter(internal::AsReal(mine).view({-1}), internal::AsReal(all).view({-1}), group());
    // What an earlier averaged backward has left there is added to, as it would be in grad().
    const int64_t begin = GetRank(group()) * block.gradients.numel();
    for (; next_piece < shard_.size(); ++next_piece) {
      Piece& piece = shard_[next_piece];
      const auto member = std::find(block.members.begin(), block.members.end(), piece.parameter);
      if (member == block.members.end()) break;
      const int64_t offset = block.offsets[member - block.members.begin()] + piece.begin - begin;
      const at::Tensor gradient = internal::Alias(block.gradients, offset, piece.tensor);
      const at::Tensor fresh = mine.narrow(0, offset, piece.length);
      at::Tensor& grad = piece.tensor.mutable_grad();
      if (grad.defined()) {
        grad.add_(fresh);
      } else {
        gradient.copy_(fresh);
        grad = gradient;
      }
    }
  }
}

void ShardedReducer::GatherParameters() {
  if (!group()) return;
  const at::NoGradGuard no_grad;
  for (Block& block : blocks_) {
    const int64_t part = block.gradients.numel();
    const at::Tensor mine = block.parameters.narrow(0, GetRank(group()) * part, part).clone();
    AllGatherInto(internal::AsReal(block.parameters).view({-1}), internal::AsReal(mine).view({-1}), group());
  }
}

}  // namespace lockstep
