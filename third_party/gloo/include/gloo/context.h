#pragma once

#include <chrono>

namespace gloo {

/// Only ever used through a pointer that LibTorch made.
class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
