#include "lockstep/metrics/internal/png_canvas.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <cmath>

#include "lockstep/metrics/internal/markup.h"

#if __has_include(<cairo.h>)  // as its own build has it; Debian's is below cairo/
#include <cairo.h>
#else
#include <cairo/cairo.h>
#endif

namespace lockstep::internal {
namespace {

constexpr double kScale = 2;

}  // namespace

struct PngCanvas::Cairo {
  cairo_surface_t* const surface;
  cairo_t* const context;

  void SetColor(Color color, double opacity = 1) const {
    const auto part = [&](int shift) { return static_cast<double>(color >> shift & 0xFF) / 255; };
    cairo_set_source_rgba(context, part(16), part(8), part(0), opacity);
  }
};

PngCanvas::PngCanvas(double width, double height)
    : cairo_([&] {
        cairo_surface_t* const surface =
            cairo_image_surface_create(CAIRO_FORMAT_RGB24, static_cast<int>(std::ceil(width * kScale)),
                                       static_cast<int>(std::ceil(height * kScale)));
        return new Cairo{surface, cairo_create(surface)};
      }()) {
  cairo_scale(cairo_->context, kScale, kScale);
  cairo_set_line_join(cairo_->context, CAIRO_LINE_JOIN_ROUND);
}

PngCanvas::~PngCanvas() {
  cairo_destroy(cairo_->context);
  cairo_surface_destroy(cairo_->surface);
}

void PngCanvas::Polyline(const std::vector<Point>& points, const Stroke& stroke, const std::string&) {
  cairo_t* const context = cairo_->context;
  cairo_->SetColor(stroke.color, stroke.opacity);
  cairo_set_line_width(context, stroke.width);
  cairo_set_dash(context, stroke.dashes.data(), static_cast<int>(stroke.dashes.size()), 0);
  cairo_new_path(context);  // a text leaves a point
  for (const Point& point : points) cairo_line_to(context, point.x, point.y);
  cairo_stroke(context);
}

void PngCanvas::Rectangle(Point corner, double width, double height, Color fill) {
  cairo_->SetColor(fill);
  cairo_new_path(cairo_->context);
  cairo_rectangle(cairo_->context, corner.x, corner.y, width, height);
  cairo_fill(cairo_->context);
}

void PngCanvas::Disc(Point center, double radius, Color fill, Color edge) {
  cairo_t* const context = cairo_->context;
  cairo_new_path(context);
  cairo_arc(context, center.x, center.y, radius, 0, 2 * M_PI);
  cairo_->SetColor(fill);
  cairo_fill_preserve(context);
  cairo_->SetColor(edge);
  cairo_set_line_width(context, 1.5);
  cairo_set_dash(context, nullptr, 0, 0);
  cairo_stroke(context);
}

void PngCanvas::Text(Point at, const std::string& text, const TextStyle& style) {
  cairo_t* const context = cairo_->context;
  const std::string letters = ValidUtf8(text);  // cairo gives up for good on what is none
  cairo_select_font_face(context, "DejaVu Sans", CAIRO_FONT_SLANT_NORMAL,
                         style.bold ? CAIRO_FONT_WEIGHT_BOLD : CAIRO_FONT_WEIGHT_NORMAL);
  cairo_set_font_size(context, style.size);
  cairo_text_extents_t extents;
  cairo_text_extents(context, letters.c_str(), &extents);
  cairo_->SetColor(style.color);
  cairo_save(context);
  cairo_translate(context, at.x, at.y);
  if (style.upwards) cairo_rotate(context, -M_PI / 2);
  const double shift = style.anchor == TextStyle::Anchor::kStart    ? 0
                       : style.anchor == TextStyle::Anchor::kMiddle ? extents.x_advance / 2
                                                                    : extents.x_advance;
  cairo_move_to(context, -shift, 0);
  cairo_show_text(context, letters.c_str());
  cairo_restore(context);
}

absl::StatusOr<std::string> PngCanvas::Finish() {
  std::string bytes;
  const auto append = [](void* closure, const unsigned char* data, unsigned int size) {
    static_cast<std::string*>(closure)->append(reinterpret_cast<const char*>(data), size);
    return CAIRO_STATUS_SUCCESS;
  };
  cairo_status_t status = cairo_status(cairo_->context);
  if (status == CAIRO_STATUS_SUCCESS) status = cairo_surface_write_to_png_stream(cairo_->surface, append, &bytes);
  if (status == CAIRO_STATUS_SUCCESS) return bytes;
  return absl::InternalError(absl::StrCat("the PNG picture can't be drawn: ", cairo_status_to_string(status)));
}

}  // namespace lockstep::internal
