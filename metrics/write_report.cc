#include "lockstep/metrics/write_report.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include <utility>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/metrics/internal/draw_run.h"
#include "lockstep/metrics/internal/html_page.h"
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

/// Names are what tells runs apart.
void MakeNamesDiffer(std::vector<RunData>& runs) {
  for (size_t i = 0; i < runs.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (runs[j].name == runs[i].name) runs[i].name = absl::StrCat(runs[i].name, " (", i + 1, ")");
    }
  }
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
