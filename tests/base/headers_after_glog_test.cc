// Every public header compiles after glog and before c10's logging, whose macros have the same names.
#include <glog/logging.h>

#include "tests/base/all_public_headers.inc"

#include <c10/util/Logging.h>
#include <gtest/gtest.h>

TEST(PublicHeaders, CompileAfterGlogAndBeforeC10Logging) { LOG_IF(INFO, false) << "either of the two"; }
