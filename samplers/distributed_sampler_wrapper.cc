#include "lockstep/samplers/distributed_sampler_wrapper.h"

#include <c10/util/Exception.h>
#include <torch/serialize/archive.h>

#include <utility>

namespace lockstep {
namespace {

DistributedSamplerOptions SharingOptions(const DistributedSamplerWrapperOptions& options) {
  DistributedSamplerOptions sharing;
  sharing.shuffle = false;
  sharing.drop_last = options.drop_last;
  sharing.pad = options.pad;
  return sharing;
}

}  // namespace

DistributedSamplerWrapper::DistributedSamplerWrapper(EpochSampler inner, size_t num_replicas, size_t rank,
                                                     DistributedSamplerWrapperOptions options)
    : inner_(std::move(inner)), share_(inner_.size().value_or(0), num_replicas, rank, SharingOptions(options)) {}

void DistributedSamplerWrapper::set_epoch(size_t epoch, std::vector<EpochPart> done) {
  share_.set_epoch(epoch, std::move(done));
}

void DistributedSamplerWrapper::DrawOrder() {
  constexpr size_t kAtOnce = 4096;
  inner_.StartEpoch(share_.epoch());
  order_->clear();
  while (const auto some = inner_.Next(kAtOnce)) {
    if (some->empty()) break;
    order_->insert(order_->end(), some->begin(), some->end());
  }
}

void DistributedSamplerWrapper::reset(std::optional<size_t> new_size) {
  TORCH_CHECK(!new_size, "this sampler can't be given another size: make a new one");
  DrawOrder();
  share_.reset(order_->size());
}

std::optional<std::vector<size_t>> DistributedSamplerWrapper::next(size_t batch_size) {
  auto indices = share_.next(batch_size);
  if (indices) {
    for (size_t& index : *indices) index = order_->at(index);
  }
  return indices;
}

void DistributedSamplerWrapper::save(torch::serialize::OutputArchive& archive) const { share_.save(archive); }

void DistributedSamplerWrapper::load(torch::serialize::InputArchive& archive) {
  share_.load(archive);  // the epoch, for which the order is drawn
  DrawOrder();
  share_.reset(order_->size());
  share_.load(archive);
}

}  // namespace lockstep
