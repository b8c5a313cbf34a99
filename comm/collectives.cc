#include "lockstep/comm/collectives.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cstring>

namespace lockstep {

int GetRank(const ProcessGroupPtr& group) { return group ? group->getRank() : 0; }

int GetWorldSize(const ProcessGroupPtr& group) { return group ? group->getSize() : 1; }

void AllReduce(at::Tensor tensor, const ProcessGroupPtr& group, const c10d::ReduceOp& op) {
  if (!group) return;
  std::vector<at::Tensor> tensors = {std::move(tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  group->allreduce(tensors, options)->wait();
}

void Broadcast(at::Tensor tensor, const ProcessGroupPtr& group, int root) {
  if (!group) return;
  std::vector<at::Tensor> tensors = {std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  group->broadcast(tensors, options)->wait();
}

std::vector<at::Tensor> AllGather(const at::Tensor& tensor, const ProcessGroupPtr& group) {
  if (!group) return {tensor};
  std::vector<std::vector<at::Tensor>> outputs(1);
  for (int rank = 0; rank < group->getSize(); ++rank) outputs[0].push_back(at::empty_like(tensor));
  std::vector<at::Tensor> inputs = {tensor};
  group->allgather(outputs, inputs)->wait();
  return std::move(outputs[0]);
}

std::vector<std::string> AllGatherString(const std::string& text, const ProcessGroupPtr& group) {
  if (!group) return {text};
  const auto sizes = AllGather(at::scalar_tensor(static_cast<int64_t>(text.size()), at::kLong), group);
  int64_t longest = 1;
  for (const auto& size : sizes) longest = std::max(longest, size.item<int64_t>());
  at::Tensor bytes = at::zeros({longest}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  const auto all = AllGather(bytes, group);
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    texts.emplace_back(static_cast<const char*>(all[rank].data_ptr()), sizes[rank].item<int64_t>());
  }
  return texts;
}

bool AnyRank(bool mine, const ProcessGroupPtr& group) {
  if (!group) return mine;
  at::Tensor flag = at::scalar_tensor(mine ? 1 : 0, at::kInt);
  AllReduce(flag, group, c10d::ReduceOp(c10d::ReduceOp::MAX));
  return flag.item<int>() != 0;
}

void Barrier(const ProcessGroupPtr& group) {
  if (!group) return;
  // On the CPU, where every group has a backend: a barrier on CUDA would have to guess the device.
  c10d::BarrierOptions options;
  options.device = at::kCPU;
  group->barrier(options)->wait();
}

}  // namespace lockstep
