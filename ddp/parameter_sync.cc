#include "lockstep/ddp/parameter_sync.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <sstream>

#include "lockstep/comm/texts.h"
#include "lockstep/ddp/internal/buckets.h"
#include "lockstep/ddp/internal/rank_list.h"

namespace lockstep {

void CheckParametersAgree(const std::vector<NamedParameter>& parameters, const ProcessGroupPtr& group,
                          const std::vector<NamedParameter>& buffers, const std::string& options) {
  if (!group) return;
  std::ostringstream mine;
  if (!options.empty()) mine << options << "\n";
  const auto describe = [&](const NamedParameter& named, const char* kind) {
    const at::Tensor& tensor = named.parameter;
    mine << kind << named.name << " " << c10::toString(tensor.scalar_type()) << tensor.sizes() << " strides "
         << tensor.strides() << (tensor.requires_grad() || *kind != '\0' ? "" : " frozen") << "\n";
  };
  for (const auto& named : parameters) describe(named, "");
  for (const auto& named : buffers) describe(named, "buffer ");
  const std::vector<std::string> all = AllGatherString(mine.str(), group);
  // Line by line: the first on which a rank differs from rank 0, and all ranks that differ from it there alike.
  std::vector<std::istringstream> texts(all.begin(), all.end());
  std::vector<std::string> lines(all.size());
  while (texts[0]) {
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (!std::getline(texts[rank], lines[rank])) lines[rank] = "nothing more";
    }
    const auto other = std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line != lines[0]; });
    if (other == lines.end()) continue;
    std::vector<size_t> alike;
    for (size_t rank = 0; rank < all.size(); ++rank) {
      if (lines[rank] == *other) alike.push_back(rank);
    }
    TORCH_CHECK(false, "DistributedDataParallel: the model differs between ranks: rank 0 has ", lines[0], ", ",
                internal::RankList(alike), alike.size() == 1 ? " has " : " have ", *other);
  }
}

namespace {

/// A number over all bits of a tensor, on its device.
at::Tensor BitSum(const at::Tensor& parameter) {
  at::Tensor bits = internal::AsReal(parameter.detach()).contiguous();
  switch (bits.element_size()) {
    case 1: bits = bits.view(at::kByte); break;
    case 2: bits = bits.view(at::kShort); break;
    case 4: bits = bits.view(at::kInt); break;
    default: bits = bits.view(at::kLong);
  }
  bits = bits.reshape({-1}).to(at::kLong);
  // Each is mixed with its place as in SplitMix64 (Steele, Lea, Flood, 2014), so that differences don't cancel.
  bits = bits + at::arange(1, bits.numel() + 1, bits.options()).mul_(static_cast<int64_t>(0x9E3779B97F4A7C15));
  for (const uint64_t factor : {0xBF58476D1CE4E5B9, 0x94D049BB133111EB}) {
    bits = bits.bitwise_xor(bits.bitwise_right_shift(at::Scalar(29))).mul_(static_cast<int64_t>(factor));
  }
  return bits.bitwise_xor(bits.bitwise_right_shift(at::Scalar(31))).sum();
}

}  // namespace

void CheckParametersEqual(const std::vector<NamedParameter>& parameters, const ProcessGroupPtr& group) {
  if (!group || parameters.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sums;
  for (const auto& named : parameters) sums.push_back(BitSum(named.parameter).cpu());
  const at::Tensor all = at::stack(AllGather(at::stack(sums), group));  // [ranks, parameters]
  const at::Tensor differs = all.ne(all[0]);
  if (!differs.any().item<bool>()) return;
  const auto first = differs.any(0).to(at::kByte).argmax().item<int64_t>();
  std::vector<size_t> ranks;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    if (differs[rank][first].item<bool>()) ranks.push_back(rank);
  }
  TORCH_CHECK(false, "the ranks' parameters are no longer equal: ", parameters[first].name, " on ",
              internal::RankList(ranks), " is not what it is on rank 0");
}

void BroadcastTensors(const std::vector<at::Tensor>& tensors, const ProcessGroupPtr& group, int root) {
  if (!group) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> some;
  std::vector<size_t> order;
  for (const auto& tensor : tensors) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    order.push_back(some.size());
    some.push_back(tensor);
  }
  constexpr size_t kChunkBytes = 250 << 20;
  for (const auto& chunk : internal::AssignBuckets(some, order, kChunkBytes, kChunkBytes)) {
    std::vector<at::Tensor> members;
    for (size_t i : chunk) members.push_back(some[i]);
    std::vector<at::Tensor> flat;
    for (const auto& tensor : members) flat.push_back(tensor.detach().reshape({-1}));
    at::Tensor all = at::cat(flat);
    Broadcast(all, group, root);
    if (GetRank(group) == root) continue;
    int64_t offset = 0;
    for (auto& tensor : members) {
      tensor.detach().copy_(all.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  }
}

}  // namespace lockstep
