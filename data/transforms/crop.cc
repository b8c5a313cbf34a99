#include "lockstep/data/transforms/crop.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "lockstep/data/transforms/check.h"
#include "lockstep/data/transforms/sample_random.h"

namespace lockstep::transforms {

Transform RandomCrop(int64_t height, int64_t width, int64_t padding, double fill) {
  TORCH_CHECK(height > 0 && width > 0 && padding >= 0, "RandomCrop: ", height, "×", width, " with a padding of ",
              padding);
  return [=](TensorBatch batch, const BatchKeys& keys) {
    CheckPictures(batch.data, "RandomCrop");
    const at::Tensor from =
        padding == 0 ? batch.data : at::constant_pad_nd(batch.data, {padding, padding, padding, padding}, fill);
    const int64_t down = from.size(2) - height, right = from.size(3) - width;
    TORCH_CHECK(down >= 0 && right >= 0, "RandomCrop: ", height, "×", width, " out of pictures of ", from.size(2), "×",
                from.size(3), " with their padding");
    at::Tensor to = at::empty({from.size(0), from.size(1), height, width}, from.options());
    for (int64_t i = 0; i < from.size(0); ++i) {
      SampleRandom random(keys, static_cast<size_t>(i));
      const int64_t top = random.Below(down + 1), left = random.Below(right + 1);
      to[i].copy_(from[i].narrow(1, top, height).narrow(2, left, width));
    }
    batch.data = to;
    return batch;
  };
}

Transform CenterCrop(int64_t height, int64_t width) {
  TORCH_CHECK(height > 0 && width > 0, "CenterCrop: ", height, "×", width);
  return [=](TensorBatch batch, const BatchKeys&) {
    CheckPictures(batch.data, "CenterCrop");
    at::Tensor from = batch.data;
    const int64_t missing_h = std::max<int64_t>(height - from.size(2), 0);
    const int64_t missing_w = std::max<int64_t>(width - from.size(3), 0);
    if (missing_h > 0 || missing_w > 0) {
      from = at::constant_pad_nd(from, {missing_w / 2, (missing_w + 1) / 2, missing_h / 2, (missing_h + 1) / 2});
    }
    // As Python rounds: halves to the even number.
    const auto middle = [](int64_t free) {
      return static_cast<int64_t>(std::nearbyint(static_cast<double>(free) / 2));
    };
    batch.data = from.narrow(2, middle(from.size(2) - height), height)
                     .narrow(3, middle(from.size(3) - width), width)
                     .contiguous();
    return batch;
  };
}

Transform RandomHorizontalFlip(double p) {
  TORCH_CHECK(p >= 0 && p <= 1, "RandomHorizontalFlip: a probability of ", p);
  return [p](TensorBatch batch, const BatchKeys& keys) {
    CheckPictures(batch.data, "RandomHorizontalFlip");
    at::Tensor to = at::empty_like(batch.data);
    for (int64_t i = 0; i < to.size(0); ++i) {
      SampleRandom random(keys, static_cast<size_t>(i));
      to[i].copy_(random.Uniform() < p ? batch.data[i].flip(2) : batch.data[i]);
    }
    batch.data = to;
    return batch;
  };
}

}  // namespace lockstep::transforms
