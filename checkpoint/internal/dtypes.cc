#include "lockstep/checkpoint/internal/dtypes.h"

namespace lockstep::internal {
namespace {

struct Row {
  at::ScalarType dtype;
  const char *name, *alias, *storage;
};

constexpr Row kRows[] = {
    {at::kFloat, "float32", "float", "FloatStorage"},
    {at::kDouble, "float64", "double", "DoubleStorage"},
    {at::kHalf, "float16", "half", "HalfStorage"},
    {at::kBFloat16, "bfloat16", "", "BFloat16Storage"},
    {at::kLong, "int64", "long", "LongStorage"},
    {at::kInt, "int32", "int", "IntStorage"},
    {at::kShort, "int16", "short", "ShortStorage"},
    {at::kChar, "int8", "", "CharStorage"},
    {at::kByte, "uint8", "", "ByteStorage"},
    {at::kBool, "bool", "", "BoolStorage"},
    {at::kComplexFloat, "complex64", "cfloat", "ComplexFloatStorage"},
    {at::kComplexDouble, "complex128", "cdouble", "ComplexDoubleStorage"},
    {at::kComplexHalf, "complex32", "chalf", ""},
    {at::kUInt16, "uint16", "", ""},
    {at::kUInt32, "uint32", "", ""},
    {at::kUInt64, "uint64", "", ""},
    {at::kFloat8_e4m3fn, "float8_e4m3fn", "", ""},
    {at::kFloat8_e5m2, "float8_e5m2", "", ""},
    {at::kFloat8_e4m3fnuz, "float8_e4m3fnuz", "", ""},
    {at::kFloat8_e5m2fnuz, "float8_e5m2fnuz", "", ""},
    {at::kFloat8_e8m0fnu, "float8_e8m0fnu", "", ""},
};

const Row* Find(at::ScalarType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return &row;
  }
  return nullptr;
}

}  // namespace

std::string DtypeName(at::ScalarType dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? "" : row->name;
}

std::optional<at::ScalarType> DtypeOf(const std::string& name) {
  for (const Row& row : kRows) {
    if (name == row.name || (!name.empty() && name == row.alias)) return row.dtype;
  }
  return std::nullopt;
}

std::string StorageName(at::ScalarType dtype) {
  const Row* row = Find(dtype);
  return row == nullptr ? "" : row->storage;
}

std::optional<at::ScalarType> StorageDtype(const std::string& name) {
  for (const Row& row : kRows) {
    if (!name.empty() && name == row.storage) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace lockstep::internal
