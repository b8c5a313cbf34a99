#include "lockstep/checkpoint/internal/crc32.h"

#include <zlib.h>

#include <algorithm>

namespace lockstep::internal {

uint32_t Crc32(const char* data, size_t size) {
  constexpr size_t kStep = 1 << 30;  // zlib takes sizes of 32 bits
  uLong crc = crc32(0, nullptr, 0);
  for (size_t at = 0; at < size; at += kStep) {
    crc = crc32(crc, reinterpret_cast<const Bytef*>(data + at), static_cast<uInt>(std::min(kStep, size - at)));
  }
  return static_cast<uint32_t>(crc);
}

}  // namespace lockstep::internal
