#pragma once

#include <absl/status/status.h>

#include <string>

#include "lockstep/examples/mnist/config.h"

namespace mnist {

/// Makes `config`, of the command line, that of a run that goes on, whose configuration was `before` (JSON; nothing is
/// changed where there is none). Learning rate, weight decay, batch size, accumulation and the best checkpoint's path
/// are kept unless the command line has them; in a world of another size the batch of all ranks is, where it divides.
/// With `warns` other differences that change the training are said in the log. InvalidArgument for another data set or
/// seed: test samples would come from the training part.
absl::Status KeepConfig(const std::string& before, const std::string& resume_path, const Plan& plan, bool warns,
                        Config& config);

}  // namespace mnist
