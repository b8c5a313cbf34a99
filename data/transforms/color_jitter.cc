#include "lockstep/data/transforms/color_jitter.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <array>
#include <utility>

#include "lockstep/data/transforms/check.h"
#include "lockstep/data/transforms/sample_random.h"

namespace lockstep::transforms {
namespace {

/// One picture (3, H, W) mixed with another, or with one number for all pixels.
at::Tensor Blend(const at::Tensor& picture, const at::Tensor& other, double factor) {
  return picture.mul(factor).add_(other, 1 - factor).clamp_(0, 1);
}

at::Tensor Grey(const at::Tensor& rgb) {
  return rgb[0].mul(0.2989).add_(rgb[1], 0.587).add_(rgb[2], 0.114).unsqueeze(0);
}

/// Through HSV and back (Foley and van Dam), as torchvision's tensor functions.
at::Tensor TurnHue(const at::Tensor& rgb, double turn) {
  const at::Tensor r = rgb[0], g = rgb[1], b = rgb[2];
  const at::Tensor highest = rgb.amax(0), range = highest - rgb.amin(0);
  const at::Tensor grey = range == 0;
  const at::Tensor saturation = range / at::where(grey, at::ones_like(highest), highest);
  const at::Tensor divisor = at::where(grey, at::ones_like(range), range);
  const at::Tensor from_r = (highest - r) / divisor, from_g = (highest - g) / divisor, from_b = (highest - b) / divisor;
  const at::Tensor is_r = highest == r, is_g = (highest == g) & ~is_r, is_b = ~is_r & ~is_g;
  at::Tensor hue = (from_b - from_g) * is_r + (from_r - from_b + 2) * is_g + (from_g - from_r + 4) * is_b;
  hue = (hue / 6 + 1).fmod(1).add(turn).remainder(1);

  const at::Tensor sector = (hue * 6).floor(), part = hue * 6 - sector;
  const at::Tensor p = (highest * (1 - saturation)).clamp(0, 1);
  const at::Tensor q = (highest * (1 - saturation * part)).clamp(0, 1);
  const at::Tensor t = (highest * (1 - saturation * (1 - part))).clamp(0, 1);
  const at::Tensor index = sector.to(at::kLong).remainder(6).unsqueeze(0);
  const auto pick = [&](std::array<at::Tensor, 6> of) { return at::stack(at::TensorList(of)).gather(0, index)[0]; };
  return at::stack({pick({highest, q, p, p, t, highest}), pick({t, highest, highest, q, p, p}),
                    pick({p, p, t, highest, highest, q})});
}

void CheckRange(const std::pair<double, double>& range, double low, double high, const char* what) {
  TORCH_CHECK(range.first >= low && range.first <= range.second && range.second <= high, "ColorJitter: the ", what,
              "'s range from ", range.first, " to ", range.second, " is none in ", low, " to ", high);
}

}  // namespace

Transform ColorJitter(const ColorJitterOptions& options) {
  CheckRange(options.brightness, 0, 1e6, "brightness");
  CheckRange(options.contrast, 0, 1e6, "contrast");
  CheckRange(options.saturation, 0, 1e6, "saturation");
  CheckRange(options.hue, -0.5, 0.5, "hue");
  return [options](TensorBatch batch, const BatchKeys& keys) {
    CheckFloatPictures(batch.data, "ColorJitter");
    TORCH_CHECK(batch.data.size(1) == 3, "ColorJitter: expected RGB pictures, got ", batch.data.sizes());
    at::Tensor to = at::empty_like(batch.data);
    for (int64_t i = 0; i < to.size(0); ++i) {
      SampleRandom random(keys, static_cast<size_t>(i));
      std::array<int, 4> order{0, 1, 2, 3};
      for (int64_t k = 3; k > 0; --k)
        std::swap(order[static_cast<size_t>(k)], order[static_cast<size_t>(random.Below(k + 1))]);
      at::Tensor picture = batch.data[i];
      for (const int what : order) {
        const std::array<const std::pair<double, double>*, 4> ranges{&options.brightness, &options.contrast,
                                                                     &options.saturation, &options.hue};
        const auto& range = *ranges[static_cast<size_t>(what)];
        const double factor = random.Uniform(range.first, range.second);
        if (factor == (what == 3 ? 0 : 1)) continue;
        if (what == 0) picture = picture.mul(factor).clamp_(0, 1);
        if (what == 1) picture = Blend(picture, Grey(picture).mean(), factor);
        if (what == 2) picture = Blend(picture, Grey(picture), factor);
        if (what == 3) picture = TurnHue(picture, factor);
      }
      to[i].copy_(picture);
    }
    batch.data = to;
    return batch;
  };
}

}  // namespace lockstep::transforms
