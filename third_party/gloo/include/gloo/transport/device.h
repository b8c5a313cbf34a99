#pragma once

#include "gloo/transport/unbound_buffer.h"

namespace gloo {
namespace transport {

/// Only ever used through a pointer that LibTorch made.
class Device;

}  // namespace transport
}  // namespace gloo
