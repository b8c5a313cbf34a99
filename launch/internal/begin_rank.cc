#include "lockstep/launch/internal/begin_rank.h"

#include <c10/util/Flags.h>
#include <c10/util/Logging.h>

#include <algorithm>
#include <cstdlib>

#include "lockstep/launch/internal/standard_streams.h"

C10_DECLARE_int(caffe2_log_level);

namespace lockstep {

void BeginRank() {
  OpenStandardStreams();  // before there are connections, which lines for the console would go to
  // LibTorch's warnings about a peer that is gone come with stack traces; we say it in a line. The user's setting wins.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    FLAGS_caffe2_log_level = std::max(FLAGS_caffe2_log_level, static_cast<int>(c10::GLOG_ERROR));
  }
}

}  // namespace lockstep
