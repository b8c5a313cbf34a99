#include "lockstep/trainer/resource_log.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "lockstep/comm/agree.h"
#include "lockstep/comm/texts.h"
#include "lockstep/metrics/device_memory.h"
#include "lockstep/metrics/process_memory.h"

#include "lockstep/base/logging.h"

namespace lockstep {

/// NVML looks back over up to a second.
constexpr std::chrono::seconds kBetweenSamples(1);

ResourceLog::ResourceLog(ResourceLogOptions options, ProcessGroupPtr group)
    : options_(std::move(options)), group_(std::move(group)), utilisation_(DeviceUtilisation::Of(options_.device)) {}

absl::Status ResourceLog::Open(size_t first_epoch) {
  absl::Status opened;
  if (GetRank(group_) == 0) opened = file_.Open(options_.folder + "/ranks.jsonl", first_epoch, /*steps_done=*/0);
  return AgreeOnStatus(opened, group_);
}

void ResourceLog::OnEpochStart(size_t epoch) {
  ResetPeakMemory();
  ResetPeakDeviceMemory(options_.device);
  start_ = last_sample_ = Clock::now();
  waited_before_ = Waited();
  training_ = true;
  seconds_ = here_seconds_ = waited_ = utilisation_sum_ = 0;
  samples_ = utilisation_count_ = 0;
}

void ResourceLog::OnStepEnd(StepInfo& info) {
  seconds_ = info.seconds;
  samples_ = info.samples;
  if (utilisation_ == nullptr || Clock::now() - last_sample_ < kBetweenSamples) return;
  last_sample_ = Clock::now();
  if (const auto now = utilisation_->Now()) {
    utilisation_sum_ += *now;
    ++utilisation_count_;
  }
}

void ResourceLog::OnValidationStart() { Pause(); }

void ResourceLog::OnValidationEnd() {
  start_ = Clock::now();
  waited_before_ = Waited();
  training_ = true;
}

/// Adds what the training took since it began or went on.
void ResourceLog::Pause() {
  if (!std::exchange(training_, false)) return;
  here_seconds_ += std::chrono::duration<double>(Clock::now() - start_).count();
  waited_ += Waited() - waited_before_;
}

std::string ResourceLog::Line(size_t epoch) const {
  nlohmann::ordered_json line;
  line["epoch"] = epoch;
  line["rank"] = GetRank(group_);
  line["seconds"] = seconds_;
  if (seconds_ > 0) line["images_per_second"] = static_cast<double>(samples_) / seconds_;
  if (options_.data_wait_seconds && here_seconds_ > 0) {
    line["data_wait_share"] = std::clamp(waited_ / here_seconds_, 0., 1.);
  }
  line["peak_memory_bytes"] = PeakMemory();
  if (const auto memory = PeakDeviceMemory(options_.device)) {
    line["peak_device_allocated_bytes"] = memory->peak_allocated;
    line["peak_device_reserved_bytes"] = memory->peak_reserved;
  }
  if (utilisation_count_ > 0) line["device_utilisation"] = utilisation_sum_ / utilisation_count_;
  return line.dump();
}

void ResourceLog::OnEpochEnd(const EpochInfo& info) {
  Pause();
  absl::Status written;
  for (const std::string& line : GatherString(Line(info.epoch), group_)) {  // none but on rank 0
    written.Update(file_.Add(line));
  }
  if (!options_.failure_is_error) {
    if (!written.ok()) LOG(WARNING) << std::string(written.message());
    return;
  }
  written = AgreeOnStatus(written, group_);
  if (!written.ok()) throw std::runtime_error(std::string(written.message()));
}

}  // namespace lockstep
