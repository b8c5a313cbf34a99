#pragma once

#include <absl/status/status.h>

#include <string>

#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/value.h"

namespace lockstep {

/// Puts a checkpoint somewhere; called on one rank.
class CheckpointWriter {
 public:
  virtual ~CheckpointWriter() = default;
  virtual absl::Status Save(const Value& checkpoint, const std::string& path) = 0;
};

/// Writes `.pth` files that Python reads.
class PthWriter : public CheckpointWriter {
 public:
  absl::Status Save(const Value& checkpoint, const std::string& path) override { return SavePth(checkpoint, path); }
};

}  // namespace lockstep
