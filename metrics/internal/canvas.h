#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::internal {

struct Point {
  double x = 0, y = 0;
};

/// An opaque colour, 0xRRGGBB.
using Color = uint32_t;

struct Stroke {
  Color color = 0;
  double width = 1;
  double opacity = 1;
  std::vector<double> dashes;  ///< Lengths of dashes and gaps; empty: a solid line.
};

struct TextStyle {
  enum class Anchor { kStart, kMiddle, kEnd };

  double size = 12;
  Color color = 0x333333;
  Anchor anchor = Anchor::kStart;
  bool bold = false;
  bool upwards = false;  ///< Reads from below to above.
};

/// The plot of a panel: where it is on the canvas, and what its corners stand for.
struct PlotFrame {
  std::string id, title;
  double left = 0, top = 0, width = 0, height = 0;
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;  ///< With `logarithmic` the exponents of 10.
  bool logarithmic = false;
};

/// What a picture is drawn on. Lengths are in pixels of a screen, y grows downwards. Texts are UTF-8.
class Canvas {
 public:
  virtual ~Canvas() = default;
  /// Everything until EndPlot belongs to this plot.
  virtual void BeginPlot(const PlotFrame& frame) {}
  virtual void EndPlot() {}
  /// `name` says what a curve is, where the canvas can show that; empty: no curve.
  virtual void Polyline(const std::vector<Point>& points, const Stroke& stroke, const std::string& name = "") = 0;
  virtual void Rectangle(Point corner, double width, double height, Color fill) = 0;
  virtual void Disc(Point center, double radius, Color fill, Color edge) = 0;
  /// `at` is on the line on which letters stand.
  virtual void Text(Point at, const std::string& text, const TextStyle& style) = 0;

  void Line(Point from, Point to, const Stroke& stroke) { Polyline({from, to}, stroke); }
};

}  // namespace lockstep::internal
