#pragma once

#include "lockstep/amp/loss_scaler.h"
#include "lockstep/comm/collectives.h"

namespace lockstep {

/// Throws, on every rank, unless all ranks' scalers have the same state; the error says what is not equal and on which
/// ranks. Collective.
void CheckScalersEqual(const LossScaler& scaler, const ProcessGroupPtr& group);

}  // namespace lockstep
