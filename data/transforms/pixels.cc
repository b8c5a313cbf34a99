#include "lockstep/data/transforms/pixels.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <utility>

#include "lockstep/data/transforms/check.h"

namespace lockstep::transforms {

Transform ToFloat(double divisor) {
  TORCH_CHECK(divisor != 0, "ToFloat: the divisor is 0");
  return [divisor](TensorBatch batch, const BatchKeys&) {
    const bool own = batch.data.scalar_type() != at::kFloat;  // else the caller's numbers stay as they are
    batch.data = batch.data.to(at::kFloat);
    if (divisor != 1) batch.data = own ? batch.data.div_(divisor) : batch.data.div(divisor);
    return batch;
  };
}

Transform Normalize(std::vector<double> mean, std::vector<double> std) {
  TORCH_CHECK(!mean.empty() && mean.size() == std.size(), "Normalize: ", mean.size(), " means and ", std.size(),
              " standard deviations");
  for (const double s : std) TORCH_CHECK(s > 0, "Normalize: a standard deviation of ", s);
  const auto channels = static_cast<int64_t>(mean.size());
  const at::Tensor scale = at::tensor(std, at::kDouble).reciprocal().view({channels, 1, 1});
  const at::Tensor shift = at::tensor(mean, at::kDouble).view({channels, 1, 1}).mul(scale).neg_();
  return [scale, shift, channels](TensorBatch batch, const BatchKeys&) {
    CheckFloatPictures(batch.data, "Normalize");
    TORCH_CHECK(channels == 1 || batch.data.size(1) == channels, "Normalize: ", channels, " means for pictures of ",
                batch.data.size(1), " channels");
    batch.data = at::addcmul(shift.to(batch.data.options()), batch.data, scale.to(batch.data.options()));
    return batch;
  };
}

}  // namespace lockstep::transforms
