#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/checkpoint/value.h"

namespace lockstep {

ValueList NumberList(const std::vector<double>& numbers);

/// The entry of a schedule's state; InvalidArgument, with its name, where it is missing or no such thing.
absl::StatusOr<double> GetNumber(const Value& state, const std::string& key);
/// From 0 to the largest `unsigned`, as LibTorch counts.
absl::StatusOr<int64_t> GetCount(const Value& state, const std::string& key);
/// Finite ones.
absl::StatusOr<std::vector<double>> GetNumbers(const Value& state, const std::string& key);
/// One finite number for each of the optimizer's parameter groups.
absl::StatusOr<std::vector<double>> GetRates(const Value& state, const std::string& key, size_t groups);

}  // namespace lockstep
