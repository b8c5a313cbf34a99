#include "lockstep/metrics/write_report.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/metrics/internal/draw_run.h"
#include "lockstep/metrics/internal/html_page.h"
#include "lockstep/metrics/internal/markup.h"
#include "lockstep/metrics/internal/png_canvas.h"
#include "lockstep/metrics/internal/run_data.h"
#include "lockstep/metrics/internal/svg_canvas.h"

namespace lockstep {
namespace {

using internal::RunData;
using internal::RunPicture;

std::string Title(const std::vector<RunData>& runs) {
  if (runs.size() == 1) return "Training run " + runs[0].name;
  return absl::StrCat(runs.size(), " training runs");
}

/// The end of a path, of so many names.
std::string LastParts(const std::string& folder, int parts) {
  std::filesystem::path rest = std::filesystem::path(folder).lexically_normal();
  if (!rest.has_filename()) rest = rest.parent_path();
  std::filesystem::path last;
  for (; parts > 0 && rest.has_filename(); --parts, rest = rest.parent_path()) last = rest.filename() / last;
  return last.parent_path().string();  // without the slash at the end
}

/// Names are what tells runs apart: of folders that are called alike, as much of the path as it takes.
void MakeNamesDiffer(std::vector<RunData>& runs) {
  constexpr int kMostParts = 5;
  std::vector<RunData*> alike;
  for (auto& run : runs) {
    const auto has_name = [&](const RunData& other) { return other.name == run.name; };
    if (std::count_if(runs.begin(), runs.end(), has_name) > 1) alike.push_back(&run);
  }
  for (int parts = 2; parts <= kMostParts && !alike.empty(); ++parts) {
    std::set<std::string> names;
    for (const RunData* run : alike) names.insert(LastParts(run->folder, parts));
    if (names.size() < alike.size()) continue;
    for (RunData* run : alike) run->name = internal::Shortened(LastParts(run->folder, parts), 60);
    return;
  }
  int number = 0;
  for (RunData* run : alike) absl::StrAppend(&run->name, " (", ++number, ")");
}

std::string Svg(const RunPicture& picture, const std::string& title) {
  internal::SvgCanvas canvas(picture.width(), picture.height(), title);
  picture.Draw(canvas);
  return canvas.Finish();
}

}  // namespace

absl::Status WriteReport(const std::vector<std::string>& run_folders, const std::string& out_prefix,
                         const ReportOptions& options) {
  if (run_folders.empty() || run_folders.size() > internal::kMostRuns) {
    return absl::InvalidArgumentError(
        absl::StrCat("a report of ", run_folders.size(), " runs: it takes 1 to ", internal::kMostRuns));
  }
  std::vector<RunData> runs;
  std::vector<std::string> notes;
  for (const std::string& folder : run_folders) {
    LOCKSTEP_ASSIGN_OR_RETURN(RunData run, internal::ReadRun(folder));
    notes.insert(notes.end(), run.notes.begin(), run.notes.end());
    runs.push_back(std::move(run));
  }
  MakeNamesDiffer(runs);
  const std::string title = options.title.empty() ? Title(runs) : options.title;

  const RunPicture panels(runs, title, /*tables=*/false), whole(runs, title, /*tables=*/true);
  internal::PngCanvas png(whole.width(), whole.height());
  whole.Draw(png);
  LOCKSTEP_ASSIGN_OR_RETURN(const std::string picture, png.Finish());
  const std::string page =
      internal::HtmlPage(title, Svg(panels, title), {RanksTable(runs), LastEpochTable(runs), ConfigTable(runs)}, notes);
  LOCKSTEP_RETURN_IF_ERROR(WriteFileAtomically(out_prefix + ".html", page));
  LOCKSTEP_RETURN_IF_ERROR(
      WriteFileAtomically(out_prefix + ".svg", "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n" + Svg(whole, title)));
  LOCKSTEP_RETURN_IF_ERROR(WriteFileAtomically(out_prefix + ".png", picture));
  if (options.notes != nullptr) options.notes->insert(options.notes->end(), notes.begin(), notes.end());
  return absl::OkStatus();
}

}  // namespace lockstep
