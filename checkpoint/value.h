#pragma once

#include <absl/status/statusor.h>
#include <ATen/core/Tensor.h>

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
};
/// Keeps the order of its entries; `ordered` writes it as Python's OrderedDict, as a module's state_dict is.
struct ValueDict {
  std::vector<std::pair<Value, Value>> items;
  bool ordered = false;
};

/// What a checkpoint is made of: a plain Python value or a tensor.
class Value {
 public:
  using Variant =
      std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor, ValueList, ValueTuple, ValueDict>;

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

  const Variant& get() const { return value_; }
  Variant& get() { return value_; }

  bool is_none() const { return std::holds_alternative<std::monostate>(value_); }
  /// Null unless it is of that kind.
  const at::Tensor* tensor() const { return std::get_if<at::Tensor>(&value_); }
  const std::string* string() const { return std::get_if<std::string>(&value_); }
  const ValueDict* dict() const { return std::get_if<ValueDict>(&value_); }
  ValueDict* dict() { return std::get_if<ValueDict>(&value_); }
  /// A list's or a tuple's.
  const ValueList* items() const;

  /// A number from a bool, an integer, a float or a tensor of one element; InvalidArgument otherwise.
  absl::StatusOr<double> number() const;

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
