#include "lockstep/data/transforms/random_erasing.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <cmath>

#include "lockstep/data/transforms/check.h"
#include "lockstep/data/transforms/sample_random.h"

namespace lockstep::transforms {

Transform RandomErasing(const RandomErasingOptions& options) {
  const auto ordered = [](const std::pair<double, double>& range, double top) {
    return range.first > 0 && range.first <= range.second && range.second <= top;
  };
  TORCH_CHECK(options.p >= 0 && options.p <= 1, "RandomErasing: a probability of ", options.p);
  TORCH_CHECK(ordered(options.scale, 1), "RandomErasing: the scale must be a range in (0, 1]");
  TORCH_CHECK(ordered(options.ratio, HUGE_VAL), "RandomErasing: the ratio must be a range above 0");
  return [options](TensorBatch batch, const BatchKeys& keys) {
    CheckPictures(batch.data, "RandomErasing");
    if (options.noise) CheckFloatPictures(batch.data, "RandomErasing with noise");
    batch.data = batch.data.clone();
    const int64_t height = batch.data.size(2), width = batch.data.size(3);
    for (int64_t i = 0; i < batch.data.size(0); ++i) {
      SampleRandom random(keys, static_cast<size_t>(i));
      if (random.Uniform() >= options.p) continue;
      for (int attempt = 0; attempt < 10; ++attempt) {
        const double area =
            static_cast<double>(height * width) * random.Uniform(options.scale.first, options.scale.second);
        const double ratio = std::exp(random.Uniform(std::log(options.ratio.first), std::log(options.ratio.second)));
        const auto h = static_cast<int64_t>(std::nearbyint(std::sqrt(area * ratio)));
        const auto w = static_cast<int64_t>(std::nearbyint(std::sqrt(area / ratio)));
        if (h >= height || w >= width || h == 0 || w == 0) continue;
        const int64_t top = random.Below(height - h + 1), left = random.Below(width - w + 1);
        at::Tensor rectangle = batch.data[i].narrow(1, top, h).narrow(2, left, w);
        if (options.noise) {
          rectangle.copy_(at::randn(rectangle.sizes(), at::make_generator<at::CPUGeneratorImpl>(random())));
        } else {
          rectangle.fill_(options.value);
        }
        break;
      }
    }
    return batch;
  };
}

}  // namespace lockstep::transforms
