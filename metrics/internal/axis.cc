#include "lockstep/metrics/internal/axis.h"

#include <absl/strings/str_format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::internal {
namespace {

/// 1, 2 or 5 times a power of 10, about a `ticks`th of the range.
double RoundStep(double range, int ticks) {
  const double rough = range / ticks, power = std::pow(10, std::floor(std::log10(rough))), digit = rough / power;
  return power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
}

/// `high` > `low`, by enough for numbers between them.
void Widen(double& low, double& high) {
  const double least = std::max(1e-12, 1e-6 * std::max(std::abs(low), std::abs(high)));
  if (high - low >= least) return;
  const double margin = low == 0 ? 0.5 : std::abs(low) / 10;
  low -= margin;
  high += margin;
}

}  // namespace

std::string ShortNumber(double value) { return absl::StrFormat("%.4g", value); }

Axis::Axis(double low, double high, int ticks, bool logarithmic, double most) : logarithmic_(logarithmic) {
  if (logarithmic) {
    low_ = std::floor(std::log10(low) * 10) / 10;
    high_ = std::ceil(std::log10(high) * 10) / 10;
    Widen(low_, high_);
    const double decades = high_ - low_, every = std::max(1., std::ceil(decades / ticks));
    for (double power = std::floor(low_); power <= high_; power += every) {
      for (const int digit : {1, 2, 5}) {
        const double value = digit * std::pow(10, power), position = Position(value);
        if ((digit > 1 && decades > 3) || position < 0 || position > 1) continue;
        ticks_.push_back({position, ShortNumber(value)});
      }
    }
    return;
  }
  Widen(low, high);
  const double step = RoundStep(high - low, ticks);
  low_ = std::floor(low / step) * step;
  high_ = std::ceil(high / step) * step;
  if (high_ - high < step / 10 && high < most) high_ += step;  // no curve along the edge
  if (high <= most) high_ = std::min(high_, most);
  AddTicks(step);
}

Axis Axis::Exact(double low, double high, int ticks) {
  Axis axis;
  Widen(low, high);
  axis.low_ = low;
  axis.high_ = high;
  axis.AddTicks(RoundStep(high - low, ticks));
  return axis;
}

void Axis::AddTicks(double step) {
  const double first = std::ceil(low_ / step - 1e-6);
  const auto count = static_cast<int>(std::floor((high_ - first * step) / step + 1e-6)) + 1;
  for (int i = 0; i < count; ++i) {
    const double value = (first + i) * step;
    ticks_.push_back({Position(value), ShortNumber(std::abs(value) < step / 1e3 ? 0 : value)});
  }
}

double Axis::Position(double value) const {
  return ((logarithmic_ ? std::log10(value) : value) - low_) / (high_ - low_);
}

}  // namespace lockstep::internal
