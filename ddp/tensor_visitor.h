#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/Type.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep {

/// Is called with each tensor that a value holds.
using TensorVisitor = std::function<void(const at::Tensor&)>;

// VisitTensors(value, visit) calls `visit` for each tensor in what a module's forward returns: a tensor, or vector,
// array, pair, tuple, optional or map of such, nested at will. Numbers and strings hold none. For a type of your own,
// write an overload in the namespace of that type:
//
//     namespace mine {
//     struct Output { at::Tensor logits; std::optional<at::Tensor> attention; };
//     void VisitTensors(const Output& output, const lockstep::TensorVisitor& visit) {
//       visit(output.logits);
//       if (output.attention) visit(*output.attention);
//     }
//     }
//
// A type without one compiles, and is not looked into.

inline void VisitTensors(const at::Tensor& tensor, const TensorVisitor& visit) { visit(tensor); }

namespace internal {

/// Finds the overloads next to a type, by argument-dependent lookup.
template <typename T, typename = void>
struct HasVisitTensors : std::false_type {};
template <typename T>
struct HasVisitTensors<
    T, std::void_t<decltype(VisitTensors(std::declval<const T&>(), std::declval<const TensorVisitor&>()))>>
    : std::true_type {};

template <typename T, typename = void>
struct IsOrdered : std::false_type {};
template <typename T>
struct IsOrdered<T, std::void_t<decltype(std::declval<const T&>() < std::declval<const T&>())>> : std::true_type {};

template <typename T>
struct Kind {
  static constexpr bool kOptional = false, kSequence = false, kMap = false, kHashed = false, kTuple = false;
};
template <typename T>
struct Kind<std::optional<T>> : Kind<void> {
  static constexpr bool kOptional = true;
};
template <typename T, typename A>
struct Kind<std::vector<T, A>> : Kind<void> {
  static constexpr bool kSequence = true;
};
template <typename T, size_t N>
struct Kind<std::array<T, N>> : Kind<void> {
  static constexpr bool kSequence = true;
};
template <typename K, typename T, typename... A>
struct Kind<std::map<K, T, A...>> : Kind<void> {
  static constexpr bool kMap = true;
};
template <typename K, typename T, typename... A>
struct Kind<std::unordered_map<K, T, A...>> : Kind<void> {
  static constexpr bool kHashed = true;
};
template <typename... T>
struct Kind<std::tuple<T...>> : Kind<void> {
  static constexpr bool kTuple = true;
};
template <typename A, typename B>
struct Kind<std::pair<A, B>> : Kind<void> {
  static constexpr bool kTuple = true;
};

/// Calls `visit` for each tensor of `value`, and `opaque` with the name of each type that it can't look into.
template <typename T, typename Opaque>
void Walk(const T& value, const TensorVisitor& visit, Opaque&& opaque) {
  if constexpr (HasVisitTensors<T>::value) {
    VisitTensors(value, visit);
  } else if constexpr (Kind<T>::kOptional) {
    if (value) Walk(*value, visit, opaque);
  } else if constexpr (Kind<T>::kSequence) {
    for (const auto& item : value) Walk(item, visit, opaque);
  } else if constexpr (Kind<T>::kMap) {
    for (const auto& item : value) Walk(item.second, visit, opaque);
  } else if constexpr (Kind<T>::kHashed) {
    // Maps with the same keys are visited alike, whatever was done to them.
    std::vector<const typename T::value_type*> items;
    for (const auto& item : value) items.push_back(&item);
    if constexpr (IsOrdered<typename T::key_type>::value) {
      std::sort(items.begin(), items.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    for (const auto* item : items) Walk(item->second, visit, opaque);
  } else if constexpr (Kind<T>::kTuple) {
    std::apply([&](const auto&... items) { (Walk(items, visit, opaque), ...); }, value);
  } else if constexpr (!std::is_arithmetic_v<T> && !std::is_enum_v<T> && !std::is_same_v<T, std::string>) {
    opaque(c10::demangle(typeid(T).name()));
  }
}

}  // namespace internal
}  // namespace lockstep
