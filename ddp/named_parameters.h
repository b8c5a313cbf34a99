#pragma once

#include <type_traits>
#include <vector>

#include "lockstep/ddp/reducer.h"

namespace lockstep {

namespace internal {
template <typename Item, typename = void>
struct HasKey : std::false_type {};
template <typename Item>
struct HasKey<Item, std::void_t<decltype(std::declval<const Item&>().key())>> : std::true_type {};
}  // namespace internal

/// The parameters of a `torch::nn::Module` or a `torch::jit::Module`, in its order.
template <typename Module>
std::vector<NamedParameter> NamedParameters(const Module& module) {
  std::vector<NamedParameter> result;
  for (const auto& item : module.named_parameters()) {
    if constexpr (internal::HasKey<std::decay_t<decltype(item)>>::value) {
      result.push_back({item.key(), item.value()});
    } else {
      result.push_back({item.name, item.value});
    }
  }
  return result;
}

}  // namespace lockstep
