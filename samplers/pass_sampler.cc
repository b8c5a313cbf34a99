#include "lockstep/samplers/pass_sampler.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <algorithm>

namespace lockstep {

void PassSampler::reset(std::optional<size_t> new_size) {
  TORCH_CHECK(!new_size, "this sampler can't be given another size: make a new one");
  if (state_->made_of != state_->epoch) state_->made_of.reset();
  state_->position = 0;
  Current();
}

const PassSampler::Pass& PassSampler::Current() const {
  if (!state_->made_of) {
    state_->pass = MakePass(state_->epoch);
    state_->made_of = state_->epoch;
  }
  return state_->pass;
}

std::optional<std::vector<size_t>> PassSampler::next(size_t batch_size) {
  const Pass& pass = Current();
  const size_t begin = state_->position;
  if (begin >= pass.indices.size()) return std::nullopt;
  const auto own = std::upper_bound(pass.batch_ends.begin(), pass.batch_ends.end(), begin);
  const size_t end = own != pass.batch_ends.end() ? *own : begin + std::min(batch_size, pass.indices.size() - begin);
  state_->position = end;
  return std::vector<size_t>(pass.indices.begin() + begin, pass.indices.begin() + end);
}

void PassSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", at::scalar_tensor(static_cast<int64_t>(state_->epoch), at::kLong), /*is_buffer=*/true);
  archive.write("position", at::scalar_tensor(static_cast<int64_t>(state_->position), at::kLong), true);
}

void PassSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch, position;
  archive.read("epoch", epoch, /*is_buffer=*/true);
  archive.read("position", position, true);
  state_->epoch = static_cast<size_t>(epoch.item<int64_t>());
  reset();
  state_->position = std::min(static_cast<size_t>(position.item<int64_t>()), size());
}

}  // namespace lockstep
