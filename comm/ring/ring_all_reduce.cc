#include "lockstep/comm/ring/ring_all_reduce.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

namespace lockstep {
namespace {

int Mod(int a, int n) { return ((a % n) + n) % n; }

/// Sends and receives at once; empty tensors stay at home, on both sides.
void Exchange(const at::Tensor& out, int to, at::Tensor in, int from, const ProcessGroupPtr& group, Traffic& traffic) {
  std::vector<at::Tensor> outgoing = {out}, incoming = {in};
  c10::intrusive_ptr<c10d::Work> sending;
  if (out.numel() > 0) sending = group->send(outgoing, to, /*tag=*/0);
  if (in.numel() > 0) group->recv(incoming, from, /*tag=*/0)->wait();
  if (sending) sending->wait();
  traffic.bytes_sent += static_cast<int64_t>(out.nbytes());
  traffic.bytes_received += static_cast<int64_t>(in.nbytes());
}

}  // namespace

at::Tensor RingBlock(const at::Tensor& flat, int block, int num_blocks) {
  const int64_t n = flat.numel();
  const int64_t begin = n * block / num_blocks, end = n * (block + 1) / num_blocks;
  return flat.narrow(0, begin, end - begin);
}

Traffic RingAllReduce(at::Tensor tensor, const ProcessGroupPtr& group,
                      const std::function<void(const RingStep&)>& watch) {
  Traffic traffic;
  const int n = GetWorldSize(group), r = GetRank(group);
  if (n == 1) return traffic;
  const at::NoGradGuard no_grad;
  const at::Tensor flat = tensor.detach().contiguous().view({-1});
  const auto block = [&](int index) { return RingBlock(flat, Mod(index, n), n); };
  const int next = Mod(r + 1, n), previous = Mod(r - 1, n);

  for (int s = 0; s < n - 1; ++s) {
    at::Tensor received = at::empty_like(block(r - 2 - s));
    Exchange(block(r - 1 - s), next, received, previous, group, traffic);
    block(r - 2 - s).add_(received);
    if (watch) watch({RingStep::Phase::kReduceScatter, s, Mod(r - 1 - s, n), Mod(r - 2 - s, n)});
  }
  for (int s = 0; s < n - 1; ++s) {
    Exchange(block(r - s), next, block(r - 1 - s), previous, group, traffic);
    if (watch) watch({RingStep::Phase::kAllGather, s, Mod(r - s, n), Mod(r - 1 - s, n)});
  }
  if (!tensor.is_contiguous()) tensor.detach().copy_(flat.view(tensor.sizes()));
  return traffic;
}

Traffic NaiveAllReduce(at::Tensor tensor, const ProcessGroupPtr& group) {
  Traffic traffic;
  const int n = GetWorldSize(group);
  if (n == 1 || tensor.numel() == 0) return traffic;
  const at::NoGradGuard no_grad;
  at::Tensor flat = tensor.detach().contiguous();
  const auto bytes = static_cast<int64_t>(flat.nbytes());
  std::vector<at::Tensor> all = {flat};
  if (GetRank(group) == 0) {
    std::vector<at::Tensor> other = {at::empty_like(flat)};
    for (int rank = 1; rank < n; ++rank) {
      group->recv(other, rank, /*tag=*/0)->wait();
      flat.add_(other[0]);
      traffic.bytes_received += bytes;
    }
    for (int rank = 1; rank < n; ++rank) {
      group->send(all, rank, /*tag=*/0)->wait();
      traffic.bytes_sent += bytes;
    }
  } else {
    group->send(all, 0, /*tag=*/0)->wait();
    group->recv(all, 0, /*tag=*/0)->wait();
    traffic = {bytes, bytes};
  }
  if (!tensor.is_contiguous()) tensor.detach().copy_(flat);
  return traffic;
}

}  // namespace lockstep
