#pragma once

#include <absl/status/statusor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <complex>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace lockstep {

class Value;
using ValueList = std::vector<Value>;
struct ValueTuple {
  ValueList items;
  bool is_size = false;  ///< torch.Size
};
/// Keeps the order of its entries.
struct ValueDict {
  enum class Kind {
    kPlain,
    kOrdered,    ///< OrderedDict, as a module's state_dict is.
    kCounter,    ///< collections.Counter
    kDefault,    ///< collections.defaultdict; written as a plain dict, since Python's weights_only refuses it.
    kNamespace,  ///< argparse.Namespace, by its attributes; written as a plain dict.
  };
  std::vector<std::pair<Value, Value>> items;
  Kind kind = Kind::kPlain;
  std::vector<std::pair<Value, Value>> attributes{};  ///< Of an OrderedDict, such as a state_dict's `_metadata`.
};
struct ValueSet {
  ValueList items;
};
struct ValueBytes {  ///< bytes or bytearray
  std::string bytes;
};
/// An integer of more than 64 bits, two's complement, the lowest byte first.
struct ValueBigInt {
  std::string bytes;
};

/// What a checkpoint is made of: a plain Python value or a tensor.
class Value {
 public:
  using Variant =
      std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor, ValueList, ValueTuple, ValueDict,
                   ValueSet, ValueBytes, ValueBigInt, std::complex<double>, at::ScalarType, at::Device>;

  Value() = default;  ///< None
  Value(bool v) : value_(v) {}
  Value(int v) : value_(int64_t{v}) {}
  Value(int64_t v) : value_(v) {}
  Value(double v) : value_(v) {}
  Value(const char* v) : value_(std::string(v)) {}
  Value(std::string v) : value_(std::move(v)) {}
  Value(at::Tensor v) : value_(std::move(v)) {}
  Value(ValueList v) : value_(std::move(v)) {}
  Value(ValueTuple v) : value_(std::move(v)) {}
  Value(ValueDict v);
  Value(ValueSet v) : value_(std::move(v)) {}
  Value(ValueBytes v) : value_(std::move(v)) {}
  Value(ValueBigInt v) : value_(std::move(v)) {}
  Value(std::complex<double> v) : value_(v) {}
  Value(at::ScalarType v) : value_(v) {}
  Value(at::Device v) : value_(v) {}

  const Variant& get() const { return value_; }
  Variant& get() { return value_; }

  bool is_none() const { return std::holds_alternative<std::monostate>(value_); }
  /// Null unless it is of that kind.
  const at::Tensor* tensor() const { return std::get_if<at::Tensor>(&value_); }
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const ValueDict* dict() const { return std::get_if<ValueDict>(&value_); }
  ValueDict* dict() { return std::get_if<ValueDict>(&value_); }
  /// A list's, tuple's or set's.
  const ValueList* items() const;

  /// A number from a bool, an integer, a float or a tensor of one element; InvalidArgument otherwise.
  absl::StatusOr<double> number() const;
  /// A whole number from 0 on that a double holds exactly; InvalidArgument otherwise.
  absl::StatusOr<int64_t> count() const;

  /// The entry of a dict under a string key, null if there is none (or this is no dict).
  const Value* find(const std::string& key) const;
  /// Sets the entry of a dict; None becomes a dict first.
  void set(const std::string& key, Value value);

  /// "dict", "list", "tensor", …
  std::string type_name() const;

 private:
  Variant value_;
};

}  // namespace lockstep
