#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lockstep/metrics/internal/canvas.h"
#include "lockstep/metrics/internal/run_data.h"

namespace lockstep::internal {

/// A heading, and rows of equally many cells, the first of which has the columns' names.
struct Table {
  std::string heading;
  std::vector<std::vector<std::string>> rows;
};

/// The configurations side by side, where they are of several runs.
Table ConfigTable(const std::vector<RunData>& runs);
/// Of the last epoch.
Table LastEpochTable(const std::vector<RunData>& runs);
/// Times and memory, a row for each rank; no rows when no run has any.
Table RanksTable(const std::vector<RunData>& runs);
/// Duration, peak memory, best validation, in one line.
std::string Summary(const RunData& run);

/// The picture of some runs: three panels, and with `tables` the three tables below them.
class RunPicture {
 public:
  RunPicture(const std::vector<RunData>& runs, std::string title, bool tables);

  double width() const { return 1240; }
  double height() const { return height_; }
  void Draw(Canvas& canvas) const;

 private:
  const std::vector<RunData>& runs_;
  const std::string title_;
  double top_, height_;
  std::vector<Table> tables_;
};

/// Of run number `run`.
Color RunColor(size_t run);
constexpr size_t kMostRuns = 10;

}  // namespace lockstep::internal
