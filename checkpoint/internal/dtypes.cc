#include "lockstep/checkpoint/internal/dtypes.h"

namespace lockstep::internal {
namespace {

struct Row {
  at::ScalarType dtype;
  const char* storage;
};

constexpr Row kRows[] = {
    {at::kFloat, "FloatStorage"},
    {at::kDouble, "DoubleStorage"},
    {at::kHalf, "HalfStorage"},
    {at::kBFloat16, "BFloat16Storage"},
    {at::kLong, "LongStorage"},
    {at::kInt, "IntStorage"},
    {at::kShort, "ShortStorage"},
    {at::kChar, "CharStorage"},
    {at::kByte, "ByteStorage"},
    {at::kBool, "BoolStorage"},
    {at::kComplexFloat, "ComplexFloatStorage"},
    {at::kComplexDouble, "ComplexDoubleStorage"},
};

}  // namespace

std::string StorageName(at::ScalarType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return row.storage;
  }
  return "";
}

std::optional<at::ScalarType> StorageDtype(const std::string& name) {
  for (const Row& row : kRows) {
    if (name == row.storage) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace lockstep::internal
