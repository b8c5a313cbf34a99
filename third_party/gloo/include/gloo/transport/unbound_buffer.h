#pragma once

namespace gloo {
namespace transport {

/// Only its virtual destructor, the first entry of its table, is called from headers.
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer() = 0;
};

}  // namespace transport
}  // namespace gloo
