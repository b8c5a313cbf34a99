#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>
#include <vector>

namespace lockstep {

/// `run` throws, and the text has all of `parts` in it.
inline void ExpectError(const std::function<void()>& run, const std::vector<std::string>& parts) {
  try {
    run();
  } catch (const std::exception& e) {
    for (const auto& part : parts) EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
    return;
  }
  ADD_FAILURE() << "no error; expected one with: " << parts[0];
}

}  // namespace lockstep
