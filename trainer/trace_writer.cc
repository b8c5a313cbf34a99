#include "lockstep/trainer/trace_writer.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "lockstep/base/atomic_file.h"
#include "lockstep/ddp/bucketed_reducer.h"
#include "lockstep/ddp/reducer_statistics.h"

namespace lockstep {
namespace profiler = torch::autograd::profiler;

/// The number of a thread that there isn't: a line of its own in the picture.
constexpr int kBucketTrack = 1 << 22;

struct TraceWriter::Recording {
  std::vector<nlohmann::json> events;
  // The profiler's clock is the system's, the reducer's is steady.
  std::chrono::system_clock::time_point system = std::chrono::system_clock::now();
  std::chrono::steady_clock::time_point steady = std::chrono::steady_clock::now();

  int64_t Nanoseconds(std::chrono::steady_clock::time_point time) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(system.time_since_epoch() + (time - steady)).count();
  }
};

TraceWriter::TraceWriter(StepRange range, std::string folder, int rank, DistributedDataParallelBase* ddp)
    : range_(range), rank_(rank), path_(absl::StrCat(folder, "/trace_rank", rank, ".json")), ddp_(ddp) {}

TraceWriter::~TraceWriter() = default;

void TraceWriter::OnStepStart() {
  if (++step_ != range_.first) return;
  setenv("KINETO_LOG_LEVEL", "99", /*overwrite=*/0);  // it complains about GPUs that aren't there
  using torch::profiler::impl::ActivityType;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CPU};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  recording_ = std::make_unique<Recording>();
}

void TraceWriter::OnStepEnd(StepInfo& info) {
  if (!recording_) return;
  BucketedReducer* const reducer = ddp_ == nullptr ? nullptr : ddp_->bucketed_reducer();
  if (reducer != nullptr) {
    const ReducerStatistics statistics = reducer->statistics();
    for (size_t i = 0; i < statistics.last.size(); ++i) {
      const auto& bucket = statistics.last[i];
      const int64_t begin = recording_->Nanoseconds(bucket.launched);
      recording_->events.push_back({{"ph", "X"},
                                    {"cat", "bucket"},
                                    {"name", absl::StrCat("bucket ", i)},
                                    {"pid", getpid()},
                                    {"tid", kBucketTrack},
                                    {"begin", begin},
                                    {"dur", static_cast<double>(recording_->Nanoseconds(bucket.done) - begin) / 1e3},
                                    {"args", {{"bytes", bucket.bytes}, {"step", step_}}}});
    }
  }
  if (step_ == range_.last) Write();
}

void TraceWriter::OnFitEnd() {
  if (recording_) Write();
}

void TraceWriter::OnException(const std::string&) {
  if (recording_) Write();
}

void TraceWriter::Write() {
  const auto recording = std::move(recording_);
  const std::string raw = path_ + ".profiler";
  profiler::disableProfiler()->save(raw);
  nlohmann::json trace = nlohmann::json::parse(std::ifstream(raw), nullptr, /*allow_exceptions=*/false);
  std::remove(raw.c_str());
  TORCH_CHECK(trace.is_object() && trace["traceEvents"].is_array(), "profile: LibTorch's profiler could not write ",
              raw);
  const int64_t base = trace.value("baseTimeNanoseconds", int64_t{0});
  trace["traceEvents"].push_back({{"ph", "M"},
                                  {"name", "thread_name"},
                                  {"pid", getpid()},
                                  {"tid", kBucketTrack},
                                  {"args", {{"name", absl::StrCat("buckets of rank ", rank_)}}}});
  for (auto& event : recording->events) {
    event["ts"] = static_cast<double>(event["begin"].get<int64_t>() - base) / 1e3;
    event.erase("begin");
    trace["traceEvents"].push_back(std::move(event));
  }
  const absl::Status written = WriteFileAtomically(path_, trace.dump());
  TORCH_CHECK(written.ok(), "profile: ", std::string(written.message()));
}

}  // namespace lockstep
