#include "lockstep/comm/flight_recorder.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include "lockstep/comm/definedness.h"

namespace lockstep {
namespace {

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

/// The recorders that a signal dumps.
struct Registry {
  std::mutex mutex;
  std::set<const FlightRecorder*> recorders;
  static Registry& Get() {
    static Registry* const registry = new Registry;  // outlives every thread
    return *registry;
  }
};

int signal_pipe[2] = {-1, -1};

void OnSignal(int) {
  const int error = errno;
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = write(signal_pipe[1], &byte, 1);
  errno = error;
}

}  // namespace

FlightRecorder::FlightRecorder(int rank, int world_size, std::string folder, size_t capacity)
    : rank_(rank), world_size_(world_size), folder_(std::move(folder)), entries_(std::max<size_t>(capacity, 1)) {
  Registry& registry = Registry::Get();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.recorders.insert(this);
}

FlightRecorder::~FlightRecorder() {
  Registry& registry = Registry::Get();
  const std::lock_guard<std::mutex> lock(registry.mutex);
  registry.recorders.erase(this);
}

void FlightRecorder::Joined(const std::string& group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  groups_.insert(group);
}

uint64_t FlightRecorder::Asked(const std::string& group, uint64_t sequence, c10d::OpType operation,
                               c10d::ReduceOp::RedOpType reduction, const at::Tensor& tensor, int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Entry& entry = entries_[next_ % entries_.size()];
  entry.number = next_;
  entry.group = group;
  entry.sequence = sequence;
  entry.operation = operation;
  entry.reduction = reduction;
  entry.dtype = tensor.defined() ? static_cast<int>(tensor.scalar_type()) : -1;
  entry.shape.clear();
  if (tensor.defined()) entry.shape.assign(tensor.sizes().begin(), tensor.sizes().end());
  entry.peer = peer;
  entry.state = State::kAsked;
  entry.asked_us = Now();
  entry.begun_us = entry.ended_us = 0;
  entry.error.clear();
  return next_++;
}

FlightRecorder::Entry* FlightRecorder::Find(uint64_t number) {
  Entry& entry = entries_[number % entries_.size()];
  return entry.number == number ? &entry : nullptr;  // it may have been overwritten
}

void FlightRecorder::Begun(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Entry* entry = Find(number)) {
    entry->state = State::kBegun;
    entry->begun_us = Now();
  }
}

void FlightRecorder::Ended(uint64_t number, const std::string& error) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (Entry* entry = Find(number)) {
    entry->state = error.empty() ? State::kDone : State::kFailed;
    entry->ended_us = Now();
    entry->error = error;
  }
}

std::string FlightRecorder::Json() const {
  static const char* const kStates[] = {"asked", "begun", "done", "failed"};
  const std::lock_guard<std::mutex> lock(mutex_);
  nlohmann::json entries = nlohmann::json::array();
  for (uint64_t n = next_ - std::min<uint64_t>(next_, entries_.size()); n < next_; ++n) {
    const Entry& entry = entries_[n % entries_.size()];
    nlohmann::json json = {{"group", entry.group},
                           {"sequence", entry.sequence},
                           {"operation", c10d::opTypeToString(entry.operation)},
                           {"state", kStates[static_cast<int>(entry.state)]},
                           {"asked_us", entry.asked_us}};
    if (entry.reduction != c10d::ReduceOp::UNUSED) json["reduction"] = ReductionName(entry.reduction);
    if (entry.dtype >= 0) {
      json["dtype"] = c10::toString(static_cast<c10::ScalarType>(entry.dtype));
      json["shape"] = entry.shape;
    }
    if (entry.peer >= 0) json["peer"] = entry.peer;
    if (entry.begun_us != 0) json["begun_us"] = entry.begun_us;
    if (entry.ended_us != 0) json["ended_us"] = entry.ended_us;
    if (!entry.error.empty()) json["error"] = entry.error;
    entries.push_back(std::move(json));
  }
  return nlohmann::json{
      {"rank", rank_}, {"world_size", world_size_}, {"groups", groups_}, {"entries", std::move(entries)}}
      .dump(1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool FlightRecorder::Dump() const {
  if (folder_.empty()) return false;
  const std::lock_guard<std::mutex> lock(dump_mutex_);
  const std::string text = Json() + "\n", path = folder_ + "/flight_rank_" + std::to_string(rank_) + ".json";
  const std::string beside = path + ".tmp";
  std::FILE* file = std::fopen(beside.c_str(), "we");
  if (file == nullptr) return false;
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !written) {
    std::remove(beside.c_str());
    return false;
  }
  return std::rename(beside.c_str(), path.c_str()) == 0;
}

void DumpFlightRecordersOnSignal(int signal) {
  static std::once_flag once;
  std::call_once(once, [] {
    if (pipe2(signal_pipe, O_CLOEXEC) != 0) return;
    fcntl(signal_pipe[1], F_SETFL, O_NONBLOCK);
    std::thread([] {
      char byte;
      while (true) {
        const ssize_t got = read(signal_pipe[0], &byte, 1);
        if (got == 0 || (got < 0 && errno != EINTR)) return;
        if (got < 0) continue;
        Registry& registry = Registry::Get();
        const std::lock_guard<std::mutex> lock(registry.mutex);
        for (const FlightRecorder* recorder : registry.recorders) recorder->Dump();
      }
    }).detach();
  });
  struct sigaction action {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(signal, &action, nullptr);
}

}  // namespace lockstep
