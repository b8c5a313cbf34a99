// Draws training runs, several in one picture:
//   ./bazelw run //metrics:report -- RUN_DIR [RUN_DIR…] [--out=PREFIX] [--title=…]
// It writes report.html, report.svg and report.png into the run's folder, comparison.html and so on of several runs
// into the first one's, or PREFIX.html and so on.

#include <absl/flags/flag.h>
#include <absl/flags/parse.h>
#include <absl/flags/usage.h>
#include <absl/flags/usage_config.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "lockstep/base/user_path.h"
#include "lockstep/metrics/write_report.h"

ABSL_FLAG(
    std::string, out, "",
    "what the files are called, without .html; default: report in the run's folder, or comparison in the first run's");
ABSL_FLAG(std::string, title, "", "title of the picture; default: the run's name");

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("draws training runs.\nRUN_DIR [RUN_DIR…] [--out=PREFIX] [--title=…]");
  absl::FlagsUsageConfig usage;
  usage.contains_helpshort_flags = [](absl::string_view file) { return absl::StrContains(file, "metrics/report.cc"); };
  usage.contains_help_flags = usage.contains_helpshort_flags;
  absl::SetFlagsUsageConfig(usage);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() < 2) {
    std::fprintf(stderr, "error: give the folder of a run, or of several; --help shows the flags\n");
    return 1;
  }
  std::vector<std::string> folders;
  for (size_t i = 1; i < rest.size(); ++i) folders.push_back(lockstep::UserPath(rest[i]));
  const std::string out = lockstep::UserPath(absl::GetFlag(FLAGS_out));
  const std::string prefix = out.empty() ? folders[0] + (folders.size() == 1 ? "/report" : "/comparison") : out;
  std::vector<std::string> notes;
  const absl::Status written = lockstep::WriteReport(folders, prefix, {absl::GetFlag(FLAGS_title), &notes});
  for (const std::string& note : notes) std::fprintf(stderr, "warning: %s\n", note.c_str());
  if (!written.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(written.message()).c_str());
    return 1;
  }
  std::printf("%s.html\n%s.svg\n%s.png\n", prefix.c_str(), prefix.c_str(), prefix.c_str());
  return std::fflush(stdout) == 0 ? 0 : 1;
}
