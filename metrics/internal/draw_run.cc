#include "lockstep/metrics/internal/draw_run.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/strip.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "lockstep/metrics/internal/axis.h"
#include "lockstep/metrics/internal/markup.h"

namespace lockstep::internal {
namespace {

using Anchor = TextStyle::Anchor;

constexpr Color kInk = 0x1f2933, kQuiet = 0x66727f, kGrid = 0xe4e8ec, kFrame = 0xa9b3bd, kWhite = 0xffffff;
constexpr Color kColors[kMostRuns] = {0x1f6fb4, 0xe07b00, 0x2a9134, 0xc0313b, 0x7a4fb5,
                                      0x8a5a44, 0xd1489b, 0x5f6b76, 0x9a9a00, 0x0e9aa7};
constexpr double kMargin = 28, kRunLine = 20, kRowHeight = 17, kLetter = 0.58;  // of a size, a generous mean
constexpr size_t kRowsDrawn = 16;

struct Curve {
  std::string name;  ///< As the legend has it.
  std::string run;   ///< Empty when there is one only.
  std::vector<std::vector<Point>> parts;
  Stroke stroke;
  bool marked = false;
  Color legend = 0;  ///< The colour in the legend.
};

struct Panel {
  std::string id, title, y_title;
  bool may_be_logarithmic = false;
  std::vector<Curve> curves;
};

std::string CurveName(const Curve& curve) {
  return curve.run.empty() ? curve.name : absl::StrCat(curve.run, ": ", curve.name);
}

/// Collects the curves of all runs. With one run colours tell curves apart; with several the runs, and dashes curves.
class Curves {
 public:
  explicit Curves(const std::vector<RunData>& runs) : runs_(runs) {}

  /// `kind` is the curve's number in its panel, for its looks.
  void Add(Panel& panel, size_t run, const std::string& name, const ThinnedCurve& curve, size_t kind, bool per_step) {
    if (curve.count() == 0) return;
    static const std::vector<double> kDashes[] = {{}, {7, 4}, {2, 3}, {9, 3, 2, 3}, {4, 2}};
    const bool alone = runs_.size() == 1;
    Curve drawn;
    drawn.name = name;
    drawn.run = alone ? "" : runs_[run].name;
    drawn.parts = curve.Parts();
    drawn.stroke.color = RunColor(alone ? kind : run);
    if (!alone || kind > 1) drawn.stroke.dashes = kDashes[kind % std::size(kDashes)];
    drawn.stroke.width = per_step ? 1.1 : 2.2;
    if (per_step) drawn.stroke.opacity = 0.5;
    drawn.marked = !per_step;
    drawn.legend = alone ? drawn.stroke.color : kQuiet;
    panel.curves.push_back(std::move(drawn));
  }

 private:
  const std::vector<RunData>& runs_;
};

std::string Readable(std::string metric) {
  const bool training = absl::StartsWith(metric, "train_");
  metric = std::string(absl::StripPrefix(absl::StripPrefix(metric, "train_"), "val_"));
  const std::string side = training ? "training" : "validation";
  if (metric == "loss" || metric == "accuracy") return side + ", per epoch";
  return absl::StrCat(side, " ", std::string(absl::StripSuffix(metric, "_accuracy")));
}

bool IsAccuracy(const std::string& metric) {
  return absl::StrContains(metric, "accuracy") || absl::StrContains(metric, "top");
}

std::vector<Panel> MakePanels(const std::vector<RunData>& runs) {
  Panel loss{"loss", "Loss", "loss", true, {}}, accuracy{"accuracy", "Accuracy", "accuracy", false, {}};
  Panel rate{"learning-rate", "Learning rate", "learning rate", false, {}};
  Curves curves(runs);
  // One number for each name of an accuracy, in every run; training and validation of the same are neighbours.
  std::map<std::string, size_t> kinds;
  std::vector<std::string> accuracies;
  for (const RunData& run : runs) {
    for (const auto& [name, curve] : run.epochs) {
      if (IsAccuracy(name)) accuracies.push_back(name);
    }
  }
  std::sort(accuracies.begin(), accuracies.end(), [](const std::string& a, const std::string& b) {
    const auto key = [](const std::string& name) {
      return std::pair(std::string(absl::StripPrefix(absl::StripPrefix(name, "train_"), "val_")), name);
    };
    return key(a) < key(b);
  });
  for (const std::string& name : accuracies) kinds.emplace(name, kinds.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunData& run = runs[i];
    curves.Add(loss, i, "training, per step", run.step_loss, 0, true);
    curves.Add(accuracy, i, "training, per step", run.step_accuracy, 0, true);
    for (const auto& [name, curve] : run.epochs) {
      if (name == "train_loss") curves.Add(loss, i, Readable(name), curve, 0, false);
      if (name == "val_loss") curves.Add(loss, i, Readable(name), curve, 1, false);
      if (IsAccuracy(name)) curves.Add(accuracy, i, Readable(name), curve, kinds[name], false);
    }
    const auto per_epoch = run.epochs.find("learning_rate");
    if (run.learning_rate.count() > 0) {
      curves.Add(rate, i, "per step", run.learning_rate, 0, true);
      rate.curves.back().stroke.width = 1.8;
      rate.curves.back().stroke.opacity = 1;
    } else if (per_epoch != run.epochs.end()) {
      curves.Add(rate, i, "per epoch", per_epoch->second, 0, false);
    }
  }
  return {std::move(loss), std::move(accuracy), std::move(rate)};
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();

  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  void Add(const std::vector<std::vector<Point>>& parts, double Point::*coordinate) {
    for (const auto& part : parts) {
      for (const Point& point : part) Add(point.*coordinate);
    }
  }
  bool empty() const { return low > high; }
};

Axis VerticalAxis(const Panel& panel, double height) {
  Range range;
  for (const Curve& curve : panel.curves) range.Add(curve.parts, &Point::y);
  const int ticks = static_cast<int>(height / 45);
  if (range.empty()) return Axis(0, 1, ticks);
  // Where a few large values would flatten all else.
  if (panel.may_be_logarithmic && range.low > 0 && range.high / range.low > 30) {
    return Axis(range.low, range.high, ticks, /*logarithmic=*/true);
  }
  if (range.low > 0 && (panel.id == "learning-rate" || range.low < range.high / 4)) range.low = 0;
  if (panel.id != "accuracy") return Axis(range.low, range.high, ticks);
  return Axis(range.low, range.high, ticks, /*logarithmic=*/false, /*most=*/1);
}

constexpr double kLegendEntry = 166, kLegendRow = 18;
constexpr size_t kMostEntries = 9;

/// One curve for each name.
std::vector<const Curve*> LegendOf(const Panel& panel) {
  std::vector<const Curve*> entries;
  for (const Curve& curve : panel.curves) {
    const auto same = [&](const Curve* entry) { return entry->name == curve.name; };
    if (std::none_of(entries.begin(), entries.end(), same)) entries.push_back(&curve);
  }
  entries.resize(std::min(entries.size(), kMostEntries));
  return entries;
}

size_t EntriesPerRow(double width) { return static_cast<size_t>(std::max(1., width / kLegendEntry)); }

void DrawLegend(Canvas& canvas, const std::vector<const Curve*>& entries, double left, double top, double width) {
  for (size_t i = 0; i < entries.size(); ++i) {
    const Curve& curve = *entries[i];
    const double x = left + static_cast<double>(i % EntriesPerRow(width)) * kLegendEntry;
    const double y = top + static_cast<double>(i / EntriesPerRow(width)) * kLegendRow;
    Stroke stroke = curve.stroke;
    stroke.color = curve.legend;
    canvas.Line({x, y - 4}, {x + 28, y - 4}, stroke);
    if (curve.marked) canvas.Disc({x + 14, y - 4}, 3, kWhite, curve.legend);
    canvas.Text({x + 34, y}, Shortened(curve.name, 22), {11, kInk});
  }
}

void DrawPanel(Canvas& canvas, const Panel& panel, const Range& epochs, double left, double top, double width,
               double height) {
  constexpr double kLeft = 68, kBottom = 40, kRight = 10;
  const std::vector<const Curve*> legend = LegendOf(panel);
  const double inner = width - kLeft - kRight;
  const size_t legend_rows = (legend.size() + EntriesPerRow(inner) - 1) / EntriesPerRow(inner);
  const double above = 36 + static_cast<double>(legend_rows) * kLegendRow;
  PlotFrame frame{panel.id, panel.title, left + kLeft, top + above, inner, height - above - kBottom};
  const Axis x = Axis::Exact(epochs.low, epochs.high, static_cast<int>(frame.width / 90));
  const Axis y = VerticalAxis(panel, frame.height);
  frame.x_low = x.low();
  frame.x_high = x.high();
  frame.y_low = y.low();
  frame.y_high = y.high();
  frame.logarithmic = y.logarithmic();
  const double right = frame.left + frame.width, bottom = frame.top + frame.height;

  canvas.BeginPlot(frame);
  canvas.Text({left + 4, top + 22}, panel.title, {16, kInk, Anchor::kStart, true});
  DrawLegend(canvas, legend, frame.left, top + 42, inner);
  for (const Axis::Tick& tick : y.ticks()) {
    const double at = bottom - tick.position * frame.height;
    canvas.Line({frame.left, at}, {right, at}, {kGrid, 1});
    canvas.Text({frame.left - 8, at + 4}, tick.label, {11.5, kQuiet, Anchor::kEnd});
  }
  for (const Axis::Tick& tick : x.ticks()) {
    const double at = frame.left + tick.position * frame.width;
    canvas.Line({at, frame.top}, {at, bottom + 4}, {kGrid, 1});
    canvas.Text({at, bottom + 18}, tick.label, {11.5, kQuiet, Anchor::kMiddle});
  }
  canvas.Line({frame.left, frame.top}, {frame.left, bottom}, {kFrame, 1});
  canvas.Line({frame.left, bottom}, {right, bottom}, {kFrame, 1});
  canvas.Text({(frame.left + right) / 2, bottom + 35}, "epoch", {12, kQuiet, Anchor::kMiddle});
  canvas.Text({left + 14, (frame.top + bottom) / 2}, panel.y_title + (y.logarithmic() ? " (logarithmic)" : ""),
              {12, kQuiet, Anchor::kMiddle, false, true});
  if (panel.curves.empty()) {
    canvas.Text({(frame.left + right) / 2, (frame.top + bottom) / 2}, "no data", {14, kQuiet, Anchor::kMiddle});
  }
  for (const Curve& curve : panel.curves) {
    for (const auto& part : curve.parts) {
      std::vector<Point> places;
      for (const Point& point : part) {
        places.push_back({frame.left + x.Position(point.x) * frame.width,
                          bottom - std::clamp(y.Position(point.y), 0., 1.) * frame.height});
      }
      canvas.Polyline(places, curve.stroke, CurveName(curve));
      // A lone point would be no line.
      const bool few = places.size() * 9 < static_cast<size_t>(frame.width);
      if (!(curve.marked && few) && places.size() > 1) continue;
      for (const Point& place : places) canvas.Disc(place, 3, kWhite, curve.stroke.color);
    }
  }
  canvas.EndPlot();
}

Range EpochsOf(const std::vector<Panel>& panels) {
  Range epochs;
  for (const Panel& panel : panels) {
    for (const Curve& curve : panel.curves) epochs.Add(curve.parts, &Point::x);
  }
  if (epochs.empty()) return {0, 1};
  // Of a run that was taken up late there is nothing to the left.
  epochs.low = epochs.low > epochs.high / 2 ? std::floor(epochs.low) - 1 : 0;
  epochs.high = std::max(epochs.high, epochs.low + 1);
  return epochs;
}

std::string Bytes(double bytes) {
  if (bytes < 0) return "";
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1000 && unit + 1 < std::size(units)) {
    bytes /= 1024;
    ++unit;
  }
  return absl::StrFormat(bytes < 10 && unit > 0 ? "%.2f %s" : "%.0f %s", bytes, units[unit]);
}

std::string Duration(double seconds) {
  if (seconds < 0) return "";
  if (seconds < 60) return absl::StrFormat("%.1f s", seconds);
  const auto whole = static_cast<int64_t>(std::min(std::round(seconds), 1e15));
  if (whole < 3600) return absl::StrFormat("%d min %02d s", whole / 60, whole % 60);
  return absl::StrFormat("%d h %02d min", whole / 3600, whole / 60 % 60);
}

std::string Share(double share) { return share < 0 ? "" : absl::StrFormat("%.1f %%", share * 100); }
std::string Positive(double value) { return value < 0 ? "" : absl::StrFormat("%.0f", value); }

using Rows = std::vector<std::pair<std::string, std::string>>;

/// A row for each name that any run has, a column for each run.
Table SideBySide(const std::string& heading, const std::string& of, const std::vector<RunData>& runs,
                 Rows RunData::*member) {
  Table table{heading, {{of}}};
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < runs.size(); ++i) {
    table.rows[0].push_back(runs.size() == 1 ? "value" : runs[i].name);
    for (const auto& [name, value] : runs[i].*member) {
      const auto [found, is_new] = places.emplace(name, table.rows.size());
      if (is_new) {
        table.rows.emplace_back(runs.size() + 1);
        table.rows.back()[0] = name;
      }
      table.rows[found->second][i + 1] = value;
    }
  }
  if (table.rows.size() == 1) table.rows.clear();
  return table;
}

/// Cells are as wide as their texts, but no wider than the picture has room for.
size_t CellLetters(const Table& table, double width) {
  const double each = width / static_cast<double>(table.rows[0].size());
  return static_cast<size_t>(std::clamp((each - 18) / (11.5 * kLetter), 4., 24.));
}

double CellWidth(const Table& table, size_t column, double width) {
  size_t letters = 0;
  for (const auto& row : table.rows) letters = std::max(letters, row[column].size());
  return static_cast<double>(std::min(letters, CellLetters(table, width))) * 11.5 * kLetter + 18;
}

double TableWidth(const Table& table, double width) {
  double sum = 0;
  for (size_t i = 0; i < table.rows[0].size(); ++i) sum += CellWidth(table, i, width);
  return sum;
}

/// How many parts of the table stand side by side, where the picture is wide enough for that.
size_t Stacks(const Table& table, double width) {
  const auto fit = static_cast<size_t>(std::max(1., std::floor((width + 20) / (TableWidth(table, width) + 20))));
  return std::min(fit, (table.rows.size() + 4) / 6);
}

size_t RowsPerStack(const Table& table, double width) {
  const size_t stacks = Stacks(table, width), rows = table.rows.size() - 1;
  return std::min(kRowsDrawn, (rows + stacks - 1) / stacks);
}

double TableHeight(const Table& table, double width) {
  return table.rows.empty() ? 0 : 60 + static_cast<double>(RowsPerStack(table, width) + 1) * kRowHeight;
}

void DrawTable(Canvas& canvas, const Table& table, double left, double top, double width) {
  if (table.rows.empty()) return;
  const size_t per_stack = RowsPerStack(table, width), stacks = Stacks(table, width);
  const size_t shown = std::min(table.rows.size() - 1, per_stack * stacks), hidden = table.rows.size() - 1 - shown;
  canvas.Text({left, top + 16}, table.heading, {16, kInk, Anchor::kStart, true});
  for (size_t stack = 0; stack < stacks && stack * per_stack < shown; ++stack) {
    const double x = left + static_cast<double>(stack) * (TableWidth(table, width) + 20);
    double y = top + 38;
    const auto draw = [&](size_t row, Color color) {
      double cell = x;
      for (size_t i = 0; i < table.rows[row].size(); ++i) {
        canvas.Text({cell, y}, Shortened(table.rows[row][i], CellLetters(table, width)),
                    {11.5, i == 0 && row > 0 ? kQuiet : color, Anchor::kStart, row == 0});
        cell += CellWidth(table, i, width);
      }
      y += kRowHeight;
    };
    draw(0, kInk);
    canvas.Line({x, y - 12}, {x + TableWidth(table, width) - 8, y - 12}, {kFrame, 1});
    y += 3;
    for (size_t i = 0; i < per_stack && stack * per_stack + i < shown; ++i) draw(1 + stack * per_stack + i, kInk);
  }
  if (hidden > 0) {
    canvas.Text({left, top + 42 + static_cast<double>(per_stack + 1) * kRowHeight},
                absl::StrCat("and ", hidden, " more, in the HTML page"), {11, kQuiet});
  }
}

}  // namespace

Color RunColor(size_t run) { return kColors[run % kMostRuns]; }

Table ConfigTable(const std::vector<RunData>& runs) {
  return SideBySide("Configuration", "setting", runs, &RunData::config);
}

Table LastEpochTable(const std::vector<RunData>& runs) {
  return SideBySide("Last epoch", "metric", runs, &RunData::last_epoch);
}

Table RanksTable(const std::vector<RunData>& runs) {
  Table table{"Ranks",
              {{"rank", "time", "images/s", "waits for data", "peak memory", "peak on device", "device busy"}}};
  if (runs.size() > 1) table.rows[0].insert(table.rows[0].begin(), "run");
  for (const RunData& run : runs) {
    for (const auto& [number, rank] : run.ranks) {
      table.rows.push_back({absl::StrCat(number), Duration(rank.seconds), Positive(rank.images_per_second),
                            Share(rank.data_wait_share), Bytes(rank.peak_memory), Bytes(rank.peak_device_memory),
                            Share(rank.device_utilisation)});
      if (runs.size() > 1) table.rows.back().insert(table.rows.back().begin(), run.name);
    }
  }
  // What no rank says has no column.
  for (size_t i = table.rows[0].size(); i-- > 0;) {
    const auto says = [&](const std::vector<std::string>& row) { return !row[i].empty(); };
    if (std::any_of(table.rows.begin() + 1, table.rows.end(), says)) continue;
    for (auto& row : table.rows) row.erase(row.begin() + static_cast<std::ptrdiff_t>(i));
  }
  if (table.rows.size() == 1) table.rows.clear();
  return table;
}

std::string Summary(const RunData& run) {
  std::string text;
  const auto add = [&](const std::string& part) { absl::StrAppend(&text, text.empty() ? "" : "  ·  ", part); };
  const auto range = [&](const char* metric) {
    Range values;
    if (const auto found = run.epochs.find(metric); found != run.epochs.end()) {
      values.Add(found->second.Parts(), &Point::y);
    }
    return values;
  };
  if (const Range accuracy = range("val_accuracy"); !accuracy.empty()) {
    add("best validation accuracy " + ShortNumber(accuracy.high));
  } else if (const Range loss = range("val_loss"); !loss.empty()) {
    add("lowest validation loss " + ShortNumber(loss.low));
  }
  if (run.seconds >= 0) add("duration " + Duration(run.seconds));
  if (run.peak_memory() >= 0) add("peak memory " + Bytes(run.peak_memory()) + " a rank");
  if (run.peak_device_memory() >= 0) add("on the device " + Bytes(run.peak_device_memory()));
  return text.empty() ? "no epoch is done" : text;
}

RunPicture::RunPicture(const std::vector<RunData>& runs, std::string title, bool tables)
    : runs_(runs), title_(std::move(title)) {
  top_ = kMargin + 34 + static_cast<double>(runs.size()) * kRunLine + 8;
  height_ = top_ + 360 + 20 + 230 + kMargin;
  if (!tables) return;
  for (Table& table : std::vector<Table>{RanksTable(runs), LastEpochTable(runs), ConfigTable(runs)}) {
    height_ += TableHeight(table, width() - 2 * kMargin);
    tables_.push_back(std::move(table));
  }
}

void RunPicture::Draw(Canvas& canvas) const {
  canvas.Rectangle({0, 0}, width(), height_, kWhite);
  canvas.Text({kMargin, kMargin + 16}, Shortened(title_, 80), {22, kInk, Anchor::kStart, true});
  double y = kMargin + 42;
  for (size_t i = 0; i < runs_.size(); ++i, y += kRunLine) {
    double x = kMargin;
    if (runs_.size() > 1) {
      canvas.Rectangle({x, y - 9}, 22, 10, RunColor(i));
      x += 30;
    }
    const std::string name = runs_.size() == 1 ? "" : runs_[i].name + ":  ";
    canvas.Text({x, y}, name + Summary(runs_[i]), {13, kInk});
  }
  const std::vector<Panel> panels = MakePanels(runs_);
  const Range epochs = EpochsOf(panels);
  const double inside = width() - 2 * kMargin, half = (inside - 24) / 2;
  DrawPanel(canvas, panels[0], epochs, kMargin, top_, half, 360);
  DrawPanel(canvas, panels[1], epochs, kMargin + half + 24, top_, half, 360);
  DrawPanel(canvas, panels[2], epochs, kMargin, top_ + 380, inside, 230);
  y = top_ + 380 + 230 + 14;
  for (const Table& table : tables_) {
    DrawTable(canvas, table, kMargin + 4, y, inside);
    y += TableHeight(table, inside);
  }
}

}  // namespace lockstep::internal
