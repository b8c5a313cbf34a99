#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/metrics/internal/canvas.h"

namespace lockstep::internal {

/// A curve of any number of points in bounded memory: of each stretch of them that would fall on one pixel the lowest
/// and the highest stay, so that no peak is lost.
class ThinnedCurve {
 public:
  /// At most 2 * `stretches` points are kept. Even.
  explicit ThinnedCurve(size_t stretches = 1000) : most_(stretches) {}

  /// Points come in the order of x. A y that is not finite is a gap in the curve.
  void Add(double x, double y);

  /// The parts between gaps, in order.
  std::vector<std::vector<Point>> Parts() const;
  /// Points that were added, without gaps, and gaps.
  size_t count() const { return count_; }
  size_t gaps() const { return gaps_; }
  const Point& last() const { return last_; }

 private:
  struct Stretch {
    Point low, high;
    size_t points = 0;
    bool after_gap = false;
  };
  static void Merge(Stretch& into, const Stretch& from);

  const size_t most_;
  size_t points_each_ = 1;
  std::vector<Stretch> stretches_;
  size_t count_ = 0, gaps_ = 0;
  bool gap_ = false;
  Point last_;
};

}  // namespace lockstep::internal
