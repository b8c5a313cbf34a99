#pragma once

#include "lockstep/launch/internal/first_failure.h"

namespace lockstep {

/// What goes on beside the ranks of this host while they run: other hosts.
class Companion {
 public:
  virtual ~Companion() = default;

  /// Readable when there is news; -1 when there will be none.
  virtual int fd() const = 0;

  /// The ranks may go on; something failed elsewhere and they will end by themselves, or be ended soon; end them now.
  enum class Wish { kGoOn, kEndSoon, kEndNow };

  /// Looks at the news, at least once in each tick.
  virtual Wish Look() = 0;

  /// A rank of this host has failed, the first one here.
  virtual void Failed(const FirstFailure& failure) = 0;
};

}  // namespace lockstep
