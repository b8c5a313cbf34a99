#include "lockstep/metrics/internal/svg_canvas.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include "lockstep/metrics/internal/markup.h"

namespace lockstep::internal {
namespace {

std::string Css(Color color) { return absl::StrFormat("#%06x", color & 0xFFFFFF); }

/// A place in the picture, to a tenth of a pixel.
std::string Place(double value) {
  const std::string text = absl::StrFormat("%.1f", value);
  return text.substr(text.size() - 2) == ".0" ? text.substr(0, text.size() - 2) : text;
}

}  // namespace

SvgCanvas::SvgCanvas(double width, double height, const std::string& title)
    : svg_(absl::StrCat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 ", width, " ", height, "\" width=\"",
                        width, "\" height=\"", height,
                        "\" role=\"img\" font-family=\"'DejaVu Sans', Verdana, sans-serif\" aria-label=\"",
                        EscapeMarkup(title), "\">\n")) {}

void SvgCanvas::BeginPlot(const PlotFrame& f) {
  absl::StrAppend(&svg_, "<g class=\"plot\" id=\"", EscapeMarkup(f.id), "\" aria-label=\"", EscapeMarkup(f.title),
                  "\" data-plot=\"", absl::StrJoin({f.left, f.top, f.width, f.height}, " "), "\" data-range=\"",
                  absl::StrJoin({f.x_low, f.x_high, f.y_low, f.y_high}, " "), "\" data-log=\"", f.logarithmic ? 1 : 0,
                  "\">\n");
}

void SvgCanvas::EndPlot() { svg_ += "</g>\n"; }

void SvgCanvas::Polyline(const std::vector<Point>& points, const Stroke& stroke, const std::string& name) {
  svg_ += "<polyline fill=\"none\" stroke-linejoin=\"round\"";
  absl::StrAppend(&svg_, " stroke=\"", Css(stroke.color), "\" stroke-width=\"", stroke.width, "\"");
  if (stroke.opacity < 1) absl::StrAppend(&svg_, " stroke-opacity=\"", stroke.opacity, "\"");
  if (!stroke.dashes.empty()) absl::StrAppend(&svg_, " stroke-dasharray=\"", absl::StrJoin(stroke.dashes, " "), "\"");
  if (!name.empty()) absl::StrAppend(&svg_, " class=\"curve\" data-name=\"", EscapeMarkup(name), "\"");
  svg_ += " points=\"";
  const char* separator = "";
  for (const Point& point : points) {
    absl::StrAppend(&svg_, separator, Place(point.x), ",", Place(point.y));
    separator = " ";
  }
  svg_ += "\"/>\n";
}

void SvgCanvas::Rectangle(Point corner, double width, double height, Color fill) {
  absl::StrAppend(&svg_, "<rect x=\"", Place(corner.x), "\" y=\"", Place(corner.y), "\" width=\"", Place(width),
                  "\" height=\"", Place(height), "\" fill=\"", Css(fill), "\"/>\n");
}

void SvgCanvas::Disc(Point center, double radius, Color fill, Color edge) {
  absl::StrAppend(&svg_, "<circle cx=\"", Place(center.x), "\" cy=\"", Place(center.y), "\" r=\"", Place(radius),
                  "\" fill=\"", Css(fill), "\" stroke=\"", Css(edge), "\" stroke-width=\"1.5\"/>\n");
}

void SvgCanvas::Text(Point at, const std::string& text, const TextStyle& style) {
  absl::StrAppend(&svg_, "<text x=\"", Place(at.x), "\" y=\"", Place(at.y), "\" font-size=\"", style.size, "\" fill=\"",
                  Css(style.color), "\"");
  if (style.anchor == TextStyle::Anchor::kMiddle) svg_ += " text-anchor=\"middle\"";
  if (style.anchor == TextStyle::Anchor::kEnd) svg_ += " text-anchor=\"end\"";
  if (style.bold) svg_ += " font-weight=\"bold\"";
  if (style.upwards) absl::StrAppend(&svg_, " transform=\"rotate(-90 ", Place(at.x), " ", Place(at.y), ")\"");
  absl::StrAppend(&svg_, ">", EscapeMarkup(text), "</text>\n");
}

}  // namespace lockstep::internal
