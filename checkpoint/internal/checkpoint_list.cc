#include "lockstep/checkpoint/internal/checkpoint_list.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "lockstep/base/atomic_file.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/crc32.h"
#include "lockstep/checkpoint/internal/mapped_file.h"

namespace lockstep::internal {
namespace {

constexpr int kVersion = 1;

std::string ListPath(const std::string& folder) { return folder + "/checkpoints.json"; }

}  // namespace

const ListedCheckpoint* CheckpointList::Best() const {
  const ListedCheckpoint* best = nullptr;
  for (const auto& one : checkpoints) {
    if (!one.metric || !std::isfinite(*one.metric)) continue;
    if (best == nullptr || (more_is_better ? *one.metric > *best->metric : *one.metric < *best->metric)) best = &one;
  }
  return best;
}

absl::StatusOr<CheckpointList> ReadCheckpointList(const std::string& folder) {
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(ListPath(folder), error);  // nothing that reading waits for
  if (!is_file && !error)
    return absl::InvalidArgumentError(absl::StrCat("file ", ListPath(folder), ": no regular file"));
  std::ifstream file(ListPath(folder));
  if (!is_file || !file) return absl::NotFoundError(absl::StrCat("there is no ", ListPath(folder)));
  const auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  const absl::Status damaged = absl::InvalidArgumentError(absl::StrCat("file ", ListPath(folder), ": damaged"));
  try {
    if (!json.is_object()) return damaged;
    if (json.at("version") != kVersion) {
      return absl::InvalidArgumentError(
          absl::StrCat("file ", ListPath(folder), ": of version ", json.at("version").dump(), ", not ", kVersion));
    }
    CheckpointList list;
    list.more_is_better = json.at("more_is_better");
    for (const auto& item : json.at("checkpoints")) {
      ListedCheckpoint one;
      one.file = item.at("file");
      if (one.file.empty() || one.file.find('/') != std::string::npos) return damaged;
      one.epoch = item.at("epoch");
      one.step = item.at("step");
      one.bytes = item.at("bytes");
      one.crc32 = item.at("crc32");
      if (item.contains("metric") && item["metric"].is_number()) one.metric = item["metric"].get<double>();
      list.checkpoints.push_back(std::move(one));
    }
    return list;
  } catch (const nlohmann::json::exception&) {
    return damaged;
  }
}

absl::Status WriteCheckpointList(const CheckpointList& list, const std::string& folder) {
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  json["more_is_better"] = list.more_is_better;
  json["checkpoints"] = nlohmann::json::array();
  for (const auto& one : list.checkpoints) {
    nlohmann::ordered_json item = {
        {"file", one.file}, {"epoch", one.epoch}, {"step", one.step}, {"bytes", one.bytes}, {"crc32", one.crc32}};
    if (one.metric) item["metric"] = *one.metric;
    json["checkpoints"].push_back(std::move(item));
  }
  return WriteFileAtomically(ListPath(folder), json.dump(2) + "\n");
}

absl::StatusOr<std::pair<uint64_t, uint32_t>> SizeAndChecksum(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto file, MappedFile::Open(path));
  return std::pair{static_cast<uint64_t>(file->size()), Crc32(file->data(), file->size())};
}

absl::Status CheckWhole(const ListedCheckpoint& checkpoint, const std::string& folder) {
  const auto found = SizeAndChecksum(folder + "/" + checkpoint.file);
  if (!found.ok()) return found.status();
  if (found->first != checkpoint.bytes) {
    return absl::InvalidArgumentError(absl::StrCat("it has ", found->first, " bytes, not ", checkpoint.bytes));
  }
  if (found->second != checkpoint.crc32) return absl::InvalidArgumentError("its checksum differs");
  return absl::OkStatus();
}

}  // namespace lockstep::internal
