// Every public header compiles after c10's logging and before glog, whose macros have the same names.
#include <c10/util/Logging.h>

#include "tests/base/all_public_headers.inc"

#ifdef GOOGLE_STRIP_LOG
#error "a public header includes glog"
#endif

#include "lockstep/base/logging.h"

#include <gtest/gtest.h>

TEST(PublicHeaders, CompileAfterC10LoggingAndBeforeGlog) { LOG_IF(INFO, false) << "glog's"; }
