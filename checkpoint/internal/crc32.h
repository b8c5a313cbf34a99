#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::internal {

/// CRC-32 of any number of bytes, as zip files have it.
uint32_t Crc32(const char* data, size_t size);

}  // namespace lockstep::internal
