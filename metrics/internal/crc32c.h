#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::internal {

/// CRC-32C (Castagnoli), as iSCSI and TFRecord have it: RFC 3720, B.4.
uint32_t Crc32c(std::string_view data);

}  // namespace lockstep::internal
