#pragma once

#include <absl/status/statusor.h>

#include <map>
#include <string>
#include <vector>

namespace lockstep {

/// The launcher's command line, split up but not yet understood. Options are written --name=value or --name value, with
/// hyphens or underscores, and have defaults in PET_<NAME>, as torchrun's.
class Arguments {
 public:
  /// InvalidArgument names an option that is unknown, refused (with the reason) or lacks its value.
  static absl::StatusOr<Arguments> Parse(int argc, char** argv);

  bool help() const { return help_; }
  const std::vector<std::string>& program() const { return program_; }

  /// As given, else of PET_<NAME> unless that is empty, else the default.
  const std::string& Get(const std::string& name) const;
  bool IsOn(const std::string& switch_name) const { return Get(switch_name) == "1"; }

  /// For messages: "--name" or "PET_NAME".
  std::string Source(const std::string& name) const;

  /// For messages: "--name=value" or "PET_NAME=value".
  std::string Quote(const std::string& name) const;

 private:
  bool help_ = false;
  std::vector<std::string> program_;
  std::map<std::string, std::string> given_, from_environment_;
};

/// What --help prints.
std::string LauncherHelp();

}  // namespace lockstep
