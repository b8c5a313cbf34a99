#include "lockstep/optim/internal/schedule_values.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <cmath>
#include <limits>

#include "lockstep/base/prefixed.h"
#include "lockstep/base/status_macros.h"

namespace lockstep {

ValueList NumberList(const std::vector<double>& numbers) { return ValueList(numbers.begin(), numbers.end()); }

absl::StatusOr<double> GetNumber(const Value& state, const std::string& key) {
  const Value* const value = state.find(key);
  if (value == nullptr) return absl::InvalidArgumentError(absl::StrCat("it has no '", key, "'"));
  const auto number = value->number();
  if (!number.ok()) return Prefixed(absl::StrCat("'", key, "': "), number.status());
  return *number;
}

absl::StatusOr<int64_t> GetCount(const Value& state, const std::string& key) {
  LOCKSTEP_ASSIGN_OR_RETURN(const double number, GetNumber(state, key));
  if (!(number >= 0 && number <= std::numeric_limits<unsigned>::max() && number == std::floor(number))) {
    return absl::InvalidArgumentError(absl::StrCat("'", key, "' makes no sense: ", number));
  }
  return static_cast<int64_t>(number);
}

absl::StatusOr<std::vector<double>> GetNumbers(const Value& state, const std::string& key) {
  const Value* const value = state.find(key);
  if (value == nullptr || value->items() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("it has no list '", key, "'"));
  }
  std::vector<double> numbers;
  for (const Value& item : *value->items()) {
    const auto number = item.number();
    if (!number.ok()) return Prefixed(absl::StrCat("'", key, "': "), number.status());
    if (!std::isfinite(*number)) {
      return absl::InvalidArgumentError(absl::StrCat("'", key, "' has a number that is not finite"));
    }
    numbers.push_back(*number);
  }
  return numbers;
}

absl::StatusOr<std::vector<double>> GetRates(const Value& state, const std::string& key, size_t groups) {
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<double> rates, GetNumbers(state, key));
  if (rates.size() != groups) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", key, "' has ", rates.size(), " numbers, the optimizer has ", groups, " parameter groups"));
  }
  return rates;
}

}  // namespace lockstep
