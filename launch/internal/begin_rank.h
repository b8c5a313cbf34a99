#pragma once

namespace lockstep {

/// What a rank does first of all, before anything is opened: its standard streams, and how much LibTorch says.
void BeginRank();

}  // namespace lockstep
