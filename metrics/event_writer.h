#pragma once

#include <absl/status/status.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace lockstep {

/// Writes a file of events that TensorBoard reads (`tensorboard --logdir FOLDER`). Each event is flushed, so that
/// TensorBoard shows a run while it goes on. Not thread-safe. Errors name the file.
class EventWriter {
 public:
  /// Begins a new file in `folder`, which is made if it is missing. What earlier files in it hold from `first_step` on
  /// is void: TensorBoard drops it, as a run that goes on from there writes it again.
  absl::Status Open(const std::string& folder, int64_t first_step);

  /// Numbers of one step, by their tags. Tags are grouped by what is before their first slash.
  absl::Status AddScalars(int64_t step, const std::vector<std::pair<std::string, double>>& scalars);
  /// A text in Markdown.
  absl::Status AddText(int64_t step, const std::string& tag, const std::string& text);

  const std::string& path() const { return path_; }

 private:
  absl::Status Write(int64_t step, const std::string& what);
  absl::Status Error() const;

  std::string path_;
  std::ofstream file_;
};

}  // namespace lockstep
