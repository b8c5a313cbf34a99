#pragma once

#include <string>
#include <vector>

#include "lockstep/metrics/internal/canvas.h"

namespace lockstep::internal {

/// Writes an SVG element, which stands in a file of its own or in a page of HTML.
class SvgCanvas : public Canvas {
 public:
  SvgCanvas(double width, double height, const std::string& title);

  void BeginPlot(const PlotFrame& frame) override;
  void EndPlot() override;
  void Polyline(const std::vector<Point>& points, const Stroke& stroke, const std::string& name) override;
  void Rectangle(Point corner, double width, double height, Color fill) override;
  void Disc(Point center, double radius, Color fill, Color edge) override;
  void Text(Point at, const std::string& text, const TextStyle& style) override;

  /// The whole element, without the line that declares XML.
  std::string Finish() const { return svg_ + "</svg>\n"; }

 private:
  std::string svg_;
};

}  // namespace lockstep::internal
