#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/pickle_nodes.h"

namespace lockstep::internal {
namespace {

constexpr int kMaxDepth = 100;  // also stops circles

class Converter {
 public:
  explicit Converter(Budget& budget) : budget_(budget) {}

  absl::StatusOr<Value> Convert(Ref node, int depth) {
    if (depth > kMaxDepth) return PickleError("nested too deeply, or in a circle");
    LOCKSTEP_RETURN_IF_ERROR(budget_.Take(sizeof(Value)));
    if (auto* v = node->as<Value>()) {
      size_t size = 0;
      if (const auto* text = std::get_if<std::string>(&v->get())) size = text->size();
      if (const auto* bytes = std::get_if<ValueBytes>(&v->get())) size = bytes->bytes.size();
      if (const auto* big = std::get_if<ValueBigInt>(&v->get())) size = big->bytes.size();
      LOCKSTEP_RETURN_IF_ERROR(budget_.Take(size));
      return *v;
    }
    if (auto* list = node->as<List>()) {
      LOCKSTEP_ASSIGN_OR_RETURN(ValueList items, ConvertAll(list->items, depth));
      return Value(std::move(items));
    }
    if (auto* tuple = node->as<Tuple>()) {
      LOCKSTEP_ASSIGN_OR_RETURN(ValueList items, ConvertAll(tuple->items, depth));
      return Value(ValueTuple{std::move(items), tuple->is_size});
    }
    if (auto* set = node->as<Set>()) {
      LOCKSTEP_ASSIGN_OR_RETURN(ValueList items, ConvertAll(set->items, depth));
      return Value(ValueSet{std::move(items)});
    }
    if (auto* dict = node->as<Dict>()) {
      ValueDict result;
      result.kind = dict->kind;
      LOCKSTEP_ASSIGN_OR_RETURN(result.items, ConvertPairs(dict->items, depth));
      if (dict->attributes != nullptr) {
        LOCKSTEP_ASSIGN_OR_RETURN(result.attributes, ConvertPairs(dict->attributes->as<Dict>()->items, depth));
      }
      return Value(std::move(result));
    }
    return PickleError("something that is no value");
  }

 private:
  absl::StatusOr<ValueList> ConvertAll(const std::vector<Ref>& nodes, int depth) {
    ValueList values;
    for (const Ref node : nodes) {
      LOCKSTEP_ASSIGN_OR_RETURN(Value v, Convert(node, depth + 1));
      values.push_back(std::move(v));
    }
    return values;
  }
  absl::StatusOr<std::vector<std::pair<Value, Value>>> ConvertPairs(const std::vector<std::pair<Ref, Ref>>& pairs,
                                                                    int depth) {
    std::vector<std::pair<Value, Value>> values;
    for (const auto& [key, item] : pairs) {
      LOCKSTEP_ASSIGN_OR_RETURN(Value k, Convert(key, depth + 1));
      LOCKSTEP_ASSIGN_OR_RETURN(Value v, Convert(item, depth + 1));
      values.emplace_back(std::move(k), std::move(v));
    }
    return values;
  }

  Budget& budget_;
};

}  // namespace

absl::StatusOr<Value> ToValue(Ref node, Budget& budget) { return Converter(budget).Convert(node, 0); }

}  // namespace lockstep::internal
