#pragma once

#include <c10/util/Flags.h>
#include <c10/util/Logging.h>

C10_DECLARE_int(caffe2_log_level);

namespace lockstep {

/// While it lives c10d says nothing: what fails is reported by us, in one line, and its own words come with stack
/// traces or about waiting that is meant.
class QuietC10 {
 public:
  QuietC10() : before_(FLAGS_caffe2_log_level) { FLAGS_caffe2_log_level = c10::GLOG_FATAL; }
  ~QuietC10() { FLAGS_caffe2_log_level = before_; }
  QuietC10(const QuietC10&) = delete;
  QuietC10& operator=(const QuietC10&) = delete;

 private:
  const int before_;
};

}  // namespace lockstep
