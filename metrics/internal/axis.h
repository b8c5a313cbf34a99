#pragma once

#include <limits>
#include <string>
#include <vector>

namespace lockstep::internal {

/// The range of an axis, and where it has ticks.
class Axis {
 public:
  struct Tick {
    double position = 0;  ///< From 0, low, to 1, high.
    std::string label;
  };

  /// Over finite numbers from `low` to `high`, a bit widened to round ones; about `ticks` of them. `logarithmic` only
  /// where `low` > 0. It ends at `most` where that is no less than `high`.
  Axis(double low, double high, int ticks, bool logarithmic = false,
       double most = std::numeric_limits<double>::infinity());
  /// From `low` to `high` exactly; only the ticks are round.
  static Axis Exact(double low, double high, int ticks);

  /// From 0 to 1.
  double Position(double value) const;
  const std::vector<Tick>& ticks() const { return ticks_; }
  bool logarithmic() const { return logarithmic_; }
  /// Ends of the axis; with `logarithmic` exponents of 10.
  double low() const { return low_; }
  double high() const { return high_; }

 private:
  Axis() = default;
  void AddTicks(double step);

  bool logarithmic_ = false;
  double low_ = 0, high_ = 1;
  std::vector<Tick> ticks_;
};

/// Four significant digits, as short as can be.
std::string ShortNumber(double value);

}  // namespace lockstep::internal
