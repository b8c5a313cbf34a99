#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "lockstep/metrics/internal/canvas.h"

namespace lockstep::internal {

/// Draws a PNG picture with cairo, two of its pixels for each of the canvas's in both directions.
class PngCanvas : public Canvas {
 public:
  PngCanvas(double width, double height);
  ~PngCanvas() override;

  void Polyline(const std::vector<Point>& points, const Stroke& stroke, const std::string& name) override;
  void Rectangle(Point corner, double width, double height, Color fill) override;
  void Disc(Point center, double radius, Color fill, Color edge) override;
  void Text(Point at, const std::string& text, const TextStyle& style) override;

  /// The bytes of the file. Errors: cairo's (it found no font, there is no memory).
  absl::StatusOr<std::string> Finish();

 private:
  struct Cairo;
  const std::unique_ptr<Cairo> cairo_;
};

}  // namespace lockstep::internal
