#include "lockstep/metrics/internal/html_page.h"

#include <absl/strings/str_cat.h>

#include "lockstep/metrics/internal/markup.h"

namespace lockstep::internal {
namespace {

constexpr char kStyle[] = R"css(
body { margin: 0; background: #f3f5f7; color: #1f2933; font: 14px 'DejaVu Sans', Verdana, sans-serif; }
main { max-width: 1288px; margin: 24px auto; display: flex; flex-wrap: wrap; gap: 20px; align-items: start; }
section { background: #fff; border-radius: 8px; box-shadow: 0 1px 3px #0002; padding: 8px 24px;
          overflow-x: auto; flex: 1 1 auto; max-width: 100%; box-sizing: border-box; }
section.picture { padding: 0; flex-basis: 100%; }
svg { display: block; width: 100%; height: auto; border-radius: 8px; }
h2 { font-size: 16px; }
table { border-collapse: collapse; font-size: 13px; margin: 0 0 16px; }
th, td { text-align: left; padding: 4px 20px 4px 0; border-bottom: 1px solid #e4e8ec; overflow-wrap: anywhere; max-width: 480px; }
td:first-child { color: #66727f; }
#values { position: absolute; display: none; pointer-events: none; background: #1f2933ee; color: #fff; font-size: 12px;
          border-radius: 4px; padding: 6px 10px; white-space: pre; }
)css";

// Each curve's points are places in the picture; the plot says what its corners stand for.
constexpr char kScript[] = R"js(
(function () {
  var box = document.getElementById('values');
  function numbers(element, name) { return element.getAttribute(name).trim().split(/[ ,]+/).map(Number); }
  function text(value) { return String(Number(value.toPrecision(5))); }
  document.querySelectorAll('g.plot').forEach(function (plot) {
    var frame = numbers(plot, 'data-plot'), range = numbers(plot, 'data-range'), log = plot.dataset.log === '1';
    var svg = plot.ownerSVGElement;
    var mark = document.createElementNS(svg.namespaceURI, 'line');
    mark.setAttribute('stroke', '#66727f');
    mark.setAttribute('y1', frame[1]);
    mark.setAttribute('y2', frame[1] + frame[3]);
    mark.style.display = 'none';
    plot.appendChild(mark);
    var area = document.createElementNS(svg.namespaceURI, 'rect');
    ['x', 'y', 'width', 'height'].forEach(function (name, i) { area.setAttribute(name, frame[i]); });
    area.setAttribute('fill', 'transparent');
    plot.appendChild(area);
    var curves = new Map();
    plot.querySelectorAll('polyline.curve').forEach(function (line) {
      var name = line.dataset.name;
      curves.set(name, (curves.get(name) || []).concat(numbers(line, 'points')));
    });
    area.addEventListener('mousemove', function (event) {
      var place = svg.createSVGPoint();
      place.x = event.clientX;
      place.y = event.clientY;
      var x = place.matrixTransform(svg.getScreenCTM().inverse()).x;
      var epoch = range[0] + (x - frame[0]) / frame[2] * (range[1] - range[0]);
      var lines = ['epoch ' + text(epoch)];
      curves.forEach(function (points, name) {
        var best = 0;
        for (var i = 2; i < points.length; i += 2) {
          if (Math.abs(points[i] - x) < Math.abs(points[best] - x)) best = i;
        }
        var y = range[2] + (frame[1] + frame[3] - points[best + 1]) / frame[3] * (range[3] - range[2]);
        lines.push(name + ': ' + text(log ? Math.pow(10, y) : y));
      });
      box.textContent = lines.join('\n');
      box.style.display = 'block';
      box.style.left = Math.min(event.pageX + 14, document.documentElement.clientWidth - box.offsetWidth - 8) + 'px';
      box.style.top = event.pageY + 14 + 'px';
      mark.setAttribute('x1', x);
      mark.setAttribute('x2', x);
      mark.style.display = '';
    });
    area.addEventListener('mouseleave', function () {
      box.style.display = mark.style.display = 'none';
    });
  });
})();
)js";

std::string HtmlTable(const Table& table) {
  std::string html = absl::StrCat("<section>\n<h2>", EscapeMarkup(table.heading), "</h2>\n<table>\n");
  const char* cell = "th";
  for (const auto& row : table.rows) {
    html += "<tr>";
    for (const std::string& text : row) absl::StrAppend(&html, "<", cell, ">", EscapeMarkup(text), "</", cell, ">");
    html += "</tr>\n";
    cell = "td";
  }
  return html + "</table>\n</section>\n";
}

}  // namespace

std::string HtmlPage(const std::string& title, const std::string& svg, const std::vector<Table>& tables,
                     const std::vector<std::string>& notes) {
  std::string page = absl::StrCat(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width\">\n<title>",
      EscapeMarkup(title), "</title>\n<style>", kStyle,
      "</style>\n</head>\n<body>\n<main>\n<section class=\"picture\">\n", svg, "</section>\n");
  for (const Table& table : tables) {
    if (!table.rows.empty()) page += HtmlTable(table);
  }
  if (!notes.empty()) {
    page += "<section id=\"notes\">\n<h2>Notes</h2>\n<ul>\n";
    for (const std::string& note : notes) absl::StrAppend(&page, "<li>", EscapeMarkup(note), "</li>\n");
    page += "</ul>\n</section>\n";
  }
  return absl::StrCat(page, "</main>\n<div id=\"values\"></div>\n<script>", kScript, "</script>\n</body>\n</html>\n");
}

}  // namespace lockstep::internal
