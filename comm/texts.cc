#include "lockstep/comm/texts.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace lockstep {
namespace {

at::Tensor Number(size_t value) { return at::full({1}, static_cast<int64_t>(value), at::kLong); }

/// `text` in a tensor of `size` bytes.
at::Tensor Padded(const std::string& text, int64_t size) {
  at::Tensor bytes = at::zeros({size}, at::kByte);
  if (!text.empty()) std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

std::string Text(const at::Tensor& bytes, const at::Tensor& size) {
  return std::string(static_cast<const char*>(bytes.data_ptr()), static_cast<size_t>(size.item<int64_t>()));
}

std::vector<std::string> Texts(const std::vector<at::Tensor>& bytes, const std::vector<at::Tensor>& sizes) {
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < bytes.size(); ++rank) texts.push_back(Text(bytes[rank], sizes[rank]));
  return texts;
}

/// The largest size of a text, at least 1.
int64_t Longest(const std::vector<at::Tensor>& sizes) {
  int64_t longest = 1;
  for (const at::Tensor& size : sizes) longest = std::max(longest, size.item<int64_t>());
  return longest;
}

}  // namespace

std::string BroadcastString(const std::string& text, const ProcessGroupPtr& group, int root) {
  at::Tensor size = Number(text.size());
  Broadcast(size, group, root);
  const bool mine = GetRank(group) == root;
  at::Tensor bytes = mine ? Padded(text, Longest({size})) : at::empty({Longest({size})}, at::kByte);
  Broadcast(bytes, group, root);
  return Text(bytes, size);
}

std::vector<std::string> AllGatherString(const std::string& text, const ProcessGroupPtr& group) {
  const auto sizes = AllGather(Number(text.size()), group);
  return Texts(AllGather(Padded(text, Longest(sizes)), group), sizes);
}

std::vector<std::string> GatherString(const std::string& text, const ProcessGroupPtr& group, int root) {
  const auto sizes = AllGather(Number(text.size()), group);
  const auto bytes = Gather(Padded(text, Longest(sizes)), group, root);
  return bytes.empty() ? std::vector<std::string>() : Texts(bytes, sizes);
}

std::string ScatterString(const std::vector<std::string>& texts, const ProcessGroupPtr& group, int root) {
  const int world = GetWorldSize(group);
  at::Tensor sizes = at::zeros({world}, at::kLong);
  if (GetRank(group) == root) {
    TORCH_CHECK(texts.size() == static_cast<size_t>(world), "scatter: ", texts.size(), " texts for ", world, " ranks");
    for (int rank = 0; rank < world; ++rank) sizes[rank] = static_cast<int64_t>(texts[rank].size());
  }
  Broadcast(sizes, group, root);
  const int64_t longest = std::max<int64_t>(1, sizes.max().item<int64_t>());
  std::vector<at::Tensor> bytes;
  if (GetRank(group) == root) {
    for (const std::string& text : texts) bytes.push_back(Padded(text, longest));
  }
  at::Tensor mine = at::empty({longest}, at::kByte);
  Scatter(mine, bytes, group, root);
  return Text(mine, sizes[GetRank(group)]);
}

}  // namespace lockstep
