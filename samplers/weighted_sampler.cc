#include "lockstep/samplers/weighted_sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <cmath>

namespace lockstep {

WeightedSampler::WeightedSampler(const std::vector<double>& weights, WeightedSamplerOptions options)
    : options_(options) {
  TORCH_CHECK(!weights.empty() && weights.size() <= size_t{1} << 24, "WeightedSampler: there are ", weights.size(),
              " weights, not from 1 to 2^24");
  size_t positive = 0;
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    TORCH_CHECK(std::isfinite(weights[i]) && weights[i] >= 0, "WeightedSampler: weight ", i, " is ", weights[i],
                ", not a finite number from 0 on");
    positive += weights[i] > 0 ? 1 : 0;
    sum += weights[i];
  }
  TORCH_CHECK(positive > 0 && std::isfinite(sum), "WeightedSampler: the weights add up to ", sum);
  if (options_.num_samples == 0) options_.num_samples = weights.size();
  TORCH_CHECK(options_.replacement || options_.num_samples <= positive, "WeightedSampler: num_samples is ",
              options_.num_samples, ", but without replacement there are only ", positive, " with a weight above 0");
  weights_ = at::tensor(weights, at::kDouble);
}

PassSampler::Pass WeightedSampler::MakePass(size_t epoch) const {
  auto generator = at::detail::createCPUGenerator(options_.seed + epoch);
  const at::Tensor drawn =
      at::multinomial(weights_, static_cast<int64_t>(options_.num_samples), options_.replacement, generator);
  const auto* const values = drawn.const_data_ptr<int64_t>();
  return {{values, values + drawn.numel()}, {}};
}

}  // namespace lockstep
