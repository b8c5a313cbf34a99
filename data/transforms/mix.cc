#include "lockstep/data/transforms/mix.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "lockstep/data/transforms/check.h"
#include "lockstep/data/transforms/sample_random.h"

namespace lockstep::transforms {
namespace {

void CheckOptions(double alpha, int64_t num_classes, const char* transform) {
  TORCH_CHECK(alpha > 0 && std::isfinite(alpha), transform, ": alpha must be above 0, got ", alpha);
  TORCH_CHECK(num_classes > 0, transform, ": ", num_classes, " classes");
}

double Beta(double alpha, SampleRandom& random) {
  std::gamma_distribution<double> gamma(alpha, 1);
  const double a = gamma(random), b = gamma(random);
  return a + b > 0 ? a / (a + b) : static_cast<double>(random.Below(2));  // a tiny alpha: one of both ends
}

at::Tensor Probabilities(const at::Tensor& target, int64_t num_classes, const char* transform) {
  if (target.dim() == 2 && target.is_floating_point() && target.size(1) == num_classes) return target;
  TORCH_CHECK(target.dim() == 1 && target.scalar_type() == at::kLong, transform,
              ": expected class indices (N) or probabilities (N, ", num_classes, "), got ", target.sizes());
  return at::one_hot(target, num_classes).to(at::kFloat);
}

/// (N) numbers, shaped to multiply something of `dim` dimensions.
at::Tensor Parts(const std::vector<double>& own, int64_t dim, const at::Tensor& like) {
  std::vector<int64_t> shape(static_cast<size_t>(dim), 1);
  shape[0] = static_cast<int64_t>(own.size());
  return at::tensor(own, at::kDouble).view(shape).to(like.options());
}

/// Each sample's `own` part of it, and the rest of the one before it.
at::Tensor Mixed(const at::Tensor& samples, const std::vector<double>& own) {
  const at::Tensor parts = Parts(own, samples.dim(), samples);
  return samples * parts + samples.roll(1, 0) * (1 - parts);
}

}  // namespace

Transform MixUp(double alpha, int64_t num_classes) {
  CheckOptions(alpha, num_classes, "MixUp");
  return [=](TensorBatch batch, const BatchKeys& keys) {
    TORCH_CHECK(batch.data.dim() > 0 && batch.data.is_floating_point(),
                "MixUp: expected floats; put ToFloat before it");
    std::vector<double> own;
    for (size_t i = 0; i < keys.samples.size(); ++i) {
      SampleRandom random(keys, i);
      own.push_back(Beta(alpha, random));
    }
    return TensorBatch{Mixed(batch.data, own), Mixed(Probabilities(batch.target, num_classes, "MixUp"), own)};
  };
}

Transform CutMix(double alpha, int64_t num_classes) {
  CheckOptions(alpha, num_classes, "CutMix");
  return [=](TensorBatch batch, const BatchKeys& keys) {
    CheckPictures(batch.data, "CutMix");
    const at::Tensor other = batch.data.roll(1, 0);
    const int64_t height = batch.data.size(2), width = batch.data.size(3);
    at::Tensor data = batch.data.clone();
    std::vector<double> own;
    for (size_t i = 0; i < keys.samples.size(); ++i) {
      SampleRandom random(keys, i);
      const double side = std::sqrt(1 - Beta(alpha, random)) / 2;  // half of the rectangle's, of the picture's
      const int64_t x = random.Below(width), y = random.Below(height);
      const auto half_w = static_cast<int64_t>(side * static_cast<double>(width));
      const auto half_h = static_cast<int64_t>(side * static_cast<double>(height));
      const int64_t left = std::max<int64_t>(x - half_w, 0), right = std::min(x + half_w, width);
      const int64_t top = std::max<int64_t>(y - half_h, 0), bottom = std::min(y + half_h, height);
      const auto n = static_cast<int64_t>(i);
      data[n]
          .narrow(1, top, bottom - top)
          .narrow(2, left, right - left)
          .copy_(other[n].narrow(1, top, bottom - top).narrow(2, left, right - left));
      own.push_back(1 - static_cast<double>((bottom - top) * (right - left)) / static_cast<double>(height * width));
    }
    return TensorBatch{data, Mixed(Probabilities(batch.target, num_classes, "CutMix"), own)};
  };
}

}  // namespace lockstep::transforms
