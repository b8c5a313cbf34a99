#pragma once

#include <absl/status/statusor.h>

#include <string>
#include <vector>

namespace lockstep {

/// What FlightRecorder files of the ranks of a run tell together: for each group up to where the ranks did the same,
/// and what each of them did where they part, or is still doing. InvalidArgument names the text that is no such file;
/// `names` are what they are called in errors.
absl::StatusOr<std::string> MergeFlights(const std::vector<std::string>& texts, const std::vector<std::string>& names);

}  // namespace lockstep
