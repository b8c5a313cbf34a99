#pragma once

#include <sys/types.h>

namespace lockstep {

/// Ends ranks and what they have started should this process be killed, when it can't do so itself. A process of its
/// own, and no child of this one, whose children are the ranks; no signal to this one's group or terminal reaches it.
/// It notices that our end of the line between us is closed.
class Guardian {
 public:
  /// Where no process can be had there is no guardian; ranks themselves end with us all the same.
  Guardian();
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  /// A process group that is to end with us, from now on or no longer.
  void Watch(pid_t group) { Tell(group); }
  void Forget(pid_t group) { Tell(-group); }

 private:
  void Tell(pid_t news);

  int line_ = -1;
};

}  // namespace lockstep
