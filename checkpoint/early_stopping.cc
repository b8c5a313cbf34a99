#include "lockstep/checkpoint/early_stopping.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <cmath>

namespace lockstep {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)),
      best_(options_.mode == EarlyStoppingOptions::Mode::kMin ? std::numeric_limits<double>::infinity()
                                                              : -std::numeric_limits<double>::infinity()) {}

absl::StatusOr<StopCriterion::Verdict> EarlyStopping::Check(const std::map<std::string, double>& metrics) {
  if (options_.patience < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("early stopping: patience must be at least 1, is ", options_.patience));
  }
  if (!(options_.min_delta >= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("early stopping: min_delta must not be negative, is ", options_.min_delta));
  }
  const auto found = metrics.find(options_.monitor);
  if (found == metrics.end()) {
    std::string known;
    for (const auto& [name, value] : metrics) absl::StrAppend(&known, known.empty() ? "" : ", ", name);
    return absl::InvalidArgumentError(absl::StrCat("early stopping: there is no metric '", options_.monitor,
                                                   "'; known: ", known.empty() ? "none" : known));
  }
  const double value = found->second;
  if (!std::isfinite(value) && options_.check_finite) {
    return absl::InvalidArgumentError(
        absl::StrCat("early stopping: metric '", options_.monitor, "' is ", value, ", not a finite number"));
  }

  Verdict verdict;
  const double margin = options_.mode == EarlyStoppingOptions::Mode::kMin ? -options_.min_delta : options_.min_delta;
  verdict.improved = Better(value, best_ + margin);  // false for NaN
  if (verdict.improved) {
    best_ = value;
    counter_ = 0;
  } else {
    ++counter_;
  }
  last_ = value;
  cause_ = Cause::kNone;
  if (options_.stopping_threshold && Better(value, *options_.stopping_threshold)) {
    cause_ = Cause::kStoppingThreshold;
  } else if (options_.divergence_threshold && Better(*options_.divergence_threshold, value)) {
    cause_ = Cause::kDivergenceThreshold;
  } else if (counter_ >= options_.patience) {
    cause_ = Cause::kPatience;
  }
  verdict.stop = cause_ != Cause::kNone;
  return verdict;
}

std::string EarlyStopping::reason() const {
  switch (cause_) {
    case Cause::kNone: return "";
    case Cause::kPatience:
      return absl::StrCat(options_.monitor, " has not improved on ", best_, " for ", counter_, " validations");
    case Cause::kStoppingThreshold:
      return absl::StrCat(options_.monitor, " ", last_, " is better than the stopping threshold");
    case Cause::kDivergenceThreshold:
      return absl::StrCat(options_.monitor, " ", last_, " is worse than the divergence threshold");
  }
  return "";
}

std::map<std::string, double> EarlyStopping::state() const {
  return {{"counter", counter_}, {"best", best_}, {"last", last_}, {"stopped", static_cast<double>(cause_)}};
}

absl::Status EarlyStopping::set_state(const std::map<std::string, double>& state) {
  for (const char* key : {"counter", "best", "last", "stopped"}) {
    if (state.count(key) == 0)
      return absl::InvalidArgumentError(absl::StrCat("early stopping: the state has no '", key, "'"));
  }
  const double counter = state.at("counter"), stopped = state.at("stopped");
  if (!(counter >= 0 && counter <= 1e9) || !(stopped == 0 || stopped == 1 || stopped == 2 || stopped == 3)) {
    return absl::InvalidArgumentError(
        absl::StrCat("early stopping: the state makes no sense: counter ", counter, ", stopped ", stopped));
  }
  counter_ = static_cast<int>(counter);
  best_ = state.at("best");
  last_ = state.at("last");
  cause_ = static_cast<Cause>(static_cast<int>(stopped));
  if (cause_ == Cause::kPatience && counter_ < options_.patience) cause_ = Cause::kNone;  // there is more of it now
  return absl::OkStatus();
}

}  // namespace lockstep
