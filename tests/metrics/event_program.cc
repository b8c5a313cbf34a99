// Writes the events of a run that stopped and went on, for event_writer_test.py:
//   event_program FOLDER

#include <cmath>
#include <cstdio>

#include "lockstep/metrics/event_writer.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  absl::Status status;
  const auto run = [&](int64_t first, int64_t last, double loss) {
    lockstep::EventWriter writer;
    status.Update(writer.Open(argv[1], first));
    status.Update(writer.AddText(first, "config", "    {\"lr\": 0.5, \"name\": \"ü\xFF\"}"));
    for (int64_t step = first; step <= last; ++step) {
      status.Update(writer.AddScalars(step, {{"step/loss", loss / static_cast<double>(step)}, {"step/rate", 0.25}}));
    }
    return status.ok();
  };
  if (run(1, 200, 1) && run(151, 300, 3)) {
    lockstep::EventWriter writer;
    status = writer.Open(argv[1], int64_t{1} << 40);
    status.Update(writer.AddScalars(int64_t{1} << 40, {{"step/loss", std::nan("")}}));
  }
  if (!status.ok()) std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
