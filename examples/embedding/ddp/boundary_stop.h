#pragma once

#include "lockstep/checkpoint/stop_criterion.h"

namespace embedding {

/// A stop criterion of our own: stops once the validation loss is below a boundary.
class BoundaryStop : public lockstep::StopCriterion {
 public:
  explicit BoundaryStop(double boundary) : boundary_(boundary) {}

  absl::StatusOr<Verdict> Check(const std::map<std::string, double>& metrics) override {
    ++validations_;
    return Verdict{true, metrics.at("val_loss") < boundary_};
  }
  int counter() const override { return validations_; }
  std::map<std::string, double> state() const override { return {{"validations", validations_}}; }
  absl::Status set_state(const std::map<std::string, double>& state) override {
    validations_ = static_cast<int>(state.at("validations"));
    return absl::OkStatus();
  }

 private:
  const double boundary_;
  int validations_ = 0;
};

}  // namespace embedding
