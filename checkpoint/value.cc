#include "lockstep/checkpoint/value.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <cmath>

namespace lockstep {

Value::Value(ValueDict v) : value_(std::move(v)) {}

const ValueList* Value::items() const {
  if (const auto* list = std::get_if<ValueList>(&value_)) return list;
  if (const auto* tuple = std::get_if<ValueTuple>(&value_)) return &tuple->items;
  if (const auto* set = std::get_if<ValueSet>(&value_)) return &set->items;
  return nullptr;
}

absl::StatusOr<double> Value::number() const {
  if (const auto* v = std::get_if<bool>(&value_)) return *v ? 1. : 0.;
  if (const auto* v = std::get_if<int64_t>(&value_)) return static_cast<double>(*v);
  if (const auto* v = std::get_if<double>(&value_)) return *v;
  if (const auto* v = tensor(); v != nullptr && v->numel() == 1) return v->item<double>();
  return absl::InvalidArgumentError(absl::StrCat("a number is wanted, this is a ", type_name()));
}

absl::StatusOr<int64_t> Value::count() const {
  const auto value = number();
  if (!value.ok()) return value.status();
  if (!(*value >= 0 && *value < 9e15 && *value == std::floor(*value))) {
    return absl::InvalidArgumentError(absl::StrCat("a count is wanted, this is ", *value));
  }
  return static_cast<int64_t>(*value);
}

const Value* Value::find(const std::string& key) const {
  const ValueDict* d = dict();
  if (d == nullptr) return nullptr;
  for (auto item = d->items.rbegin(); item != d->items.rend(); ++item) {  // the last counts, as in Python
    if (item->first.string() != nullptr && *item->first.string() == key) return &item->second;
  }
  return nullptr;
}

void Value::set(const std::string& key, Value value) {
  if (is_none()) value_ = ValueDict();
  if (const Value* old = find(key)) {
    const_cast<Value&>(*old) = std::move(value);
  } else {
    std::get<ValueDict>(value_).items.emplace_back(key, std::move(value));
  }
}

std::string Value::type_name() const {
  static const char* const kNames[] = {"None", "bool", "int",   "float", "str",     "tensor", "list",  "tuple",
                                       "dict", "set",  "bytes", "int",   "complex", "dtype",  "device"};
  return kNames[value_.index()];
}

}  // namespace lockstep
