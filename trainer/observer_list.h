#pragma once

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/trainer/observer.h"

namespace lockstep {

/// Observers that are told the same, in their order. None is owned.
class ObserverList {
 public:
  explicit ObserverList(std::vector<TrainObserver*> observers) : observers_(std::move(observers)) {}

  /// `what(observer)` for each; what one throws is thrown.
  template <typename F>
  void Tell(const F& what) const {
    for (auto* observer : observers_) what(*observer);
  }

  /// What an observer throws now must not hide what went wrong before.
  template <typename F>
  void TellInTrouble(const F& what) const {
    for (auto* observer : observers_) {
      try {
        what(*observer);
      } catch (const std::exception&) {  // NOLINT: see above
      }
    }
  }

  /// The first one's that wishes the training to end; empty: none does.
  std::string stop_wish() const {
    for (const auto* observer : observers_) {
      if (!observer->stop_wish().empty()) return observer->stop_wish();
    }
    return "";
  }

 private:
  std::vector<TrainObserver*> observers_;
};

}  // namespace lockstep
