#include "lockstep/data/transforms/resize.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "lockstep/data/transforms/check.h"
#include "lockstep/data/transforms/sample_random.h"

namespace lockstep::transforms {
namespace {

at::Tensor Resized(const at::Tensor& pictures, int64_t height, int64_t width, bool antialias) {
  if (pictures.size(2) == height && pictures.size(3) == width) return pictures;
  const bool direct = pictures.is_floating_point() || pictures.is_cpu();  // CUDA has no kernel for uint8
  const at::Tensor from = direct ? pictures : pictures.to(at::kFloat);
  const at::Tensor to = antialias ? at::_upsample_bilinear2d_aa(from, {height, width}, /*align_corners=*/false)
                                  : at::upsample_bilinear2d(from, {height, width}, /*align_corners=*/false);
  return direct ? to : to.round_().clamp_(0, 255).to(pictures.scalar_type());
}

/// (to, from): row i has the weights with which a resized line's pixel i is made of the line, as in ATen's
/// UpSampleKernel.cpp.
at::Tensor Weights(int64_t from, int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), reach = std::max(scale, 1.0);
  at::Tensor weights = at::zeros({to, from});
  auto* row = weights.data_ptr<float>();
  for (int64_t i = 0; i < to; ++i, row += from) {
    const double center = scale * (static_cast<double>(i) + 0.5);
    const auto begin = std::max<int64_t>(static_cast<int64_t>(center - reach + 0.5), 0);
    const auto end = std::min<int64_t>(static_cast<int64_t>(center + reach + 0.5), from);
    double sum = 0;
    for (int64_t j = begin; j < end; ++j) {
      const double weight = std::max(0.0, 1 - std::abs((static_cast<double>(j) - center + 0.5) / reach));
      row[j] = static_cast<float>(weight);
      sum += weight;
    }
    for (int64_t j = begin; j < end; ++j) row[j] = static_cast<float>(row[j] / sum);
  }
  return weights;
}

}  // namespace

Transform Resize(int64_t height, int64_t width, bool antialias) {
  TORCH_CHECK(height > 0 && width > 0, "Resize: to ", height, "×", width);
  return [=](TensorBatch batch, const BatchKeys&) {
    CheckPictures(batch.data, "Resize");
    batch.data = Resized(batch.data, height, width, antialias);
    return batch;
  };
}

Transform ResizeShorterSide(int64_t shorter_side, bool antialias) {
  TORCH_CHECK(shorter_side > 0, "ResizeShorterSide: to ", shorter_side);
  return [=](TensorBatch batch, const BatchKeys&) {
    CheckPictures(batch.data, "Resize");
    const int64_t height = batch.data.size(2), width = batch.data.size(3);
    TORCH_CHECK(height > 0 && width > 0, "ResizeShorterSide: pictures of ", height, "×", width);
    const bool tall = height > width;
    const int64_t longer = shorter_side * std::max(height, width) / std::min(height, width);
    batch.data = Resized(batch.data, tall ? longer : shorter_side, tall ? shorter_side : longer, antialias);
    return batch;
  };
}

Transform ResizeAndRandomCrop(int64_t height, int64_t width, int64_t crop_height, int64_t crop_width) {
  TORCH_CHECK(crop_height > 0 && crop_width > 0 && crop_height <= height && crop_width <= width,
              "ResizeAndRandomCrop: ", crop_height, "×", crop_width, " out of ", height, "×", width);
  return [=](TensorBatch batch, const BatchKeys& keys) {
    CheckFloatPictures(batch.data, "ResizeAndRandomCrop");
    const at::Tensor from = batch.data.contiguous();
    const at::Tensor rows = Weights(from.size(2), height).to(from.options());
    const at::Tensor columns = Weights(from.size(3), width).to(from.options()).t();
    at::Tensor to = at::empty({from.size(0), from.size(1), crop_height, crop_width}, from.options());
    for (int64_t i = 0; i < from.size(0); ++i) {
      SampleRandom random(keys, static_cast<size_t>(i));
      const int64_t top = random.Below(height - crop_height + 1), left = random.Below(width - crop_width + 1);
      const at::Tensor wide = at::matmul(from[i], columns.narrow(1, left, crop_width));  // (C, from, crop_width)
      at::Tensor out = to[i];
      at::matmul_out(out, rows.narrow(0, top, crop_height), wide);
    }
    batch.data = to;
    return batch;
  };
}

}  // namespace lockstep::transforms
