#pragma once

namespace lockstep {

/// Cores that this process may run on, at least 1.
int AvailableCores();

}  // namespace lockstep
