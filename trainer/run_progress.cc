#include "lockstep/trainer/run_progress.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>

#include <type_traits>
#include <utility>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/gather_values.h"
#include "lockstep/checkpoint/state_dict.h"

namespace lockstep {
namespace {

Value SumsState(const MetricSums& sums) {
  Value state((ValueDict())), numbers((ValueDict()));
  for (const auto& [name, sum] : sums.sums()) numbers.set(name, sum);
  state.set("sums", std::move(numbers));
  state.set("samples", sums.samples());
  return state;
}

Value RankState(const RunProgress& p) {
  Value state((ValueDict()));
  state.set("batches", static_cast<int64_t>(p.batches));
  state.set("taken", p.taken);
  state.set("samples", p.samples);
  state.set("sums", SumsState(p.sums));
  state.set("step_sums", SumsState(p.step_sums));
  state.set("window", p.window);
  state.set("loss", p.loss.defined() ? Value(p.loss) : Value());
  state.set("generators", p.generators);
  state.set("generators_at_start", p.generators_at_start);
  state.set("generators_before_batch", p.generators_before_batch);
  return state;
}

/// Reads entries of dicts and remembers the first that doesn't fit.
class Reader {
 public:
  template <typename T>
  void Count(const Value& dict, const char* key, T& number) {
    const Value* const entry = dict.find(key);
    const auto value = entry == nullptr ? absl::InvalidArgumentError("missing") : entry->count();
    if (!value.ok()) return Fail(key);
    number = static_cast<T>(*value);
  }

  void Sums(const Value& dict, const char* key, MetricSums& sums) {
    const Value* const entry = dict.find(key);
    const Value* const numbers = entry == nullptr ? nullptr : entry->find("sums");
    const auto read = numbers == nullptr ? absl::InvalidArgumentError("missing") : LoadNumbersState(*numbers);
    if (!read.ok()) return Fail(key);
    int64_t samples = 0;
    Count(*entry, "samples", samples);
    for (const auto& [name, sum] : *read) sums.Add(name, at::scalar_tensor(sum, at::kDouble));
    sums.AddSamples(samples);
  }

  const ValueList& List(const Value& dict, const char* key) {
    static const ValueList none;
    const Value* const entry = dict.find(key);
    if (entry != nullptr && entry->items() != nullptr) return *entry->items();
    Fail(key);
    return none;
  }

  Value Any(const Value& dict, const char* key) {
    const Value* const entry = dict.find(key);
    return entry == nullptr ? Value() : *entry;
  }

  void Fail(const char* key) {
    if (status.ok()) status = absl::InvalidArgumentError(absl::StrCat("'", key, "' is missing or of a wrong kind"));
  }

  absl::Status status;
};

std::vector<EpochPart> ReadParts(const ValueList& parts, Reader& read) {
  std::vector<EpochPart> result;
  for (const Value& part : parts) {
    EpochPart& into = result.emplace_back();
    if (part.items() == nullptr || part.items()->empty()) {
      read.Fail("earlier");
      continue;
    }
    for (const Value& samples : *part.items()) {
      const auto count = samples.count();
      if (!count.ok()) {
        read.Fail("earlier");
        continue;
      }
      into.samples.push_back(static_cast<size_t>(*count));
    }
  }
  return result;
}

}  // namespace

absl::StatusOr<Value> SaveRunProgress(const RunProgress& p, const ProcessGroupPtr& group) {
  LOCKSTEP_ASSIGN_OR_RETURN(auto ranks, GatherValues(RankState(p), group));
  Value state((ValueDict()));
  state.set("epoch", static_cast<int64_t>(p.epoch));
  state.set("in_epoch", p.in_epoch);
  state.set("step", static_cast<int64_t>(p.step));
  state.set("skipped", static_cast<int64_t>(p.skipped));
  state.set("steps_before_pass", static_cast<int64_t>(p.steps_before_pass));
  state.set("total_steps", static_cast<int64_t>(p.total_steps));
  state.set("seconds", p.seconds);
  ValueList done;
  for (const EpochPart& part : p.earlier) {
    ValueList samples;
    for (const size_t of_rank : part.samples) samples.emplace_back(static_cast<int64_t>(of_rank));
    done.emplace_back(std::move(samples));
  }
  state.set("earlier", std::move(done));
  state.set("skip_streak", NumbersState(p.skip_streak));
  state.set("ranks", std::move(ranks));
  return state;
}

absl::StatusOr<LoadedRun> LoadRunProgress(const Value& state,
                                          const std::function<absl::StatusOr<Value>(const ValueList&)>& join_windows,
                                          const ProcessGroupPtr& group) {
  Reader read;
  LoadedRun result;
  RunProgress& p = result.progress;
  read.Count(state, "epoch", p.epoch);
  read.Count(state, "in_epoch", p.in_epoch);
  read.Count(state, "step", p.step);
  read.Count(state, "skipped", p.skipped);
  read.Count(state, "steps_before_pass", p.steps_before_pass);
  read.Count(state, "total_steps", p.total_steps);
  const auto seconds = read.Any(state, "seconds").number();
  if (!seconds.ok() || !(*seconds >= 0 && *seconds < 1e9)) read.Fail("seconds");
  p.seconds = seconds.value_or(0);
  p.earlier = ReadParts(read.List(state, "earlier"), read);
  const auto row = LoadNumbersState(read.Any(state, "skip_streak"));
  if (row.ok()) p.skip_streak = *row;
  const ValueList& ranks = read.List(state, "ranks");
  if (ranks.empty() || p.epoch < 1) read.Fail("ranks");
  LOCKSTEP_RETURN_IF_ERROR(read.status);

  result.world_size = ranks.size();
  Reader of_parts;
  EpochPart part;
  for (const Value& one : ranks) of_parts.Count(one, "taken", part.samples.emplace_back());
  if (of_parts.status.ok()) result.part = std::move(part);
  const size_t rank = GetRank(group);
  const auto of_rank = [&](const Value& from) {
    read.Count(from, "samples", p.samples);
    read.Sums(from, "sums", p.sums);
    read.Sums(from, "step_sums", p.step_sums);
  };
  if (rank < ranks.size()) {
    p.generators = read.Any(ranks[rank], "generators");
    if (p.generators.dict() == nullptr) read.Fail("generators");
  }
  if (result.world_size == static_cast<size_t>(GetWorldSize(group))) {
    of_rank(ranks[rank]);
    read.Count(ranks[rank], "batches", p.batches);
    p.taken = read.Any(ranks[rank], "taken");
    p.window = read.Any(ranks[rank], "window");
    const Value loss = read.Any(ranks[rank], "loss");
    if (loss.tensor() != nullptr && loss.tensor()->numel() == 1) p.loss = *loss.tensor();
    p.generators_at_start = read.Any(ranks[rank], "generators_at_start");
    p.generators_before_batch = read.Any(ranks[rank], "generators_before_batch");
    if (p.in_epoch && p.generators_at_start.dict() == nullptr) read.Fail("generators_at_start");
    if (p.in_epoch && p.generators_before_batch.dict() == nullptr) read.Fail("generators_before_batch");
    LOCKSTEP_RETURN_IF_ERROR(read.status);
    return result;
  }
  ValueList windows;
  int64_t samples = 0;
  for (const Value& one : ranks) {
    windows.push_back(read.Any(one, "window"));
    if (rank == 0) of_rank(one);
    samples += std::exchange(p.samples, 0);
  }
  p.samples = samples;
  LOCKSTEP_RETURN_IF_ERROR(read.status);
  LOCKSTEP_ASSIGN_OR_RETURN(p.window, join_windows(windows));
  return result;
}

}  // namespace lockstep
