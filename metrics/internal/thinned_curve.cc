#include "lockstep/metrics/internal/thinned_curve.h"

#include <cmath>

namespace lockstep::internal {

/// Larger numbers are no measurement, and their differences are not finite.
constexpr double kLargest = 1e100;

void ThinnedCurve::Merge(Stretch& into, const Stretch& from) {
  if (from.low.y < into.low.y) into.low = from.low;
  if (from.high.y > into.high.y) into.high = from.high;
  into.points += from.points;
  into.after_gap |= from.after_gap;
}

void ThinnedCurve::Add(double x, double y) {
  if (!(std::abs(x) < kLargest && std::abs(y) < kLargest)) {  // also NaN
    ++gaps_;
    gap_ = true;
    return;
  }
  ++count_;
  last_ = {x, y};
  const Stretch one{last_, last_, 1, gap_};
  gap_ = false;
  if (!stretches_.empty() && stretches_.back().points < points_each_) {
    Merge(stretches_.back(), one);
    return;
  }
  if (stretches_.size() == most_) {
    for (size_t i = 0; i < most_ / 2; ++i) {
      Stretch both = stretches_[2 * i];
      Merge(both, stretches_[2 * i + 1]);
      stretches_[i] = both;
    }
    stretches_.resize(most_ / 2);
    points_each_ *= 2;
  }
  stretches_.push_back(one);
}

std::vector<std::vector<Point>> ThinnedCurve::Parts() const {
  std::vector<std::vector<Point>> parts;
  for (const Stretch& stretch : stretches_) {
    if (parts.empty() || stretch.after_gap) parts.emplace_back();
    const bool low_first = stretch.low.x <= stretch.high.x;
    parts.back().push_back(low_first ? stretch.low : stretch.high);
    if (stretch.low.x != stretch.high.x) parts.back().push_back(low_first ? stretch.high : stretch.low);
  }
  return parts;
}

}  // namespace lockstep::internal
