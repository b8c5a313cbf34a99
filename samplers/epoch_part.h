#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>
#include <vector>

namespace lockstep {

/// What a world of ranks has taken of an epoch: rank r the first `samples[r]` of its share.
struct EpochPart {
  std::vector<size_t> samples;
};

/// Whether samplers of a type can start with the rest of an epoch: have a `set_epoch(epoch, done)`.
template <typename Sampler, typename = void>
struct StartsRest : std::false_type {};
template <typename Sampler>
struct StartsRest<Sampler, std::void_t<decltype(std::declval<Sampler&>().set_epoch(
                               size_t{0}, std::declval<std::vector<EpochPart>>()))>> : std::true_type {};

}  // namespace lockstep
