#pragma once
// The two ways to pass an absl::Status on.

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define LOCKSTEP_RETURN_IF_ERROR(expression)                                                        \
  do {                                                                                              \
    if (absl::Status lockstep_status = (expression); !lockstep_status.ok()) return lockstep_status; \
  } while (false)

#define LOCKSTEP_CONCAT_INNER(a, b) a##b
#define LOCKSTEP_CONCAT(a, b) LOCKSTEP_CONCAT_INNER(a, b)
#define LOCKSTEP_ASSIGN_OR_RETURN(lhs, expression) \
  LOCKSTEP_ASSIGN_OR_RETURN_IMPL(LOCKSTEP_CONCAT(lockstep_statusor_, __LINE__), lhs, expression)
#define LOCKSTEP_ASSIGN_OR_RETURN_IMPL(temporary, lhs, expression) \
  auto temporary = (expression);                                   \
  if (!temporary.ok()) return temporary.status();                  \
  lhs = *std::move(temporary)
