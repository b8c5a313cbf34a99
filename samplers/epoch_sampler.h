#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/samplers/epoch_part.h"

namespace lockstep {

/// Any sampler of LibTorch's kind, held by its own type, so that each epoch starts with that type's `set_epoch`: the
/// one of `torch::data::samplers::DistributedSampler<>` is not virtual, and a call through the base would be lost.
/// A sampler without `set_epoch` just starts again.
class EpochSampler {
 public:
  /// Holds a copy of `sampler` (of a std::shared_ptr: the sampler that it points to).
  template <typename S, typename = std::enable_if_t<!std::is_same_v<std::decay_t<S>, EpochSampler>>>
  EpochSampler(S&& sampler) : held_(Hold(std::forward<S>(sampler))) {}  // NOLINT: implicit on purpose

  void StartEpoch(size_t epoch) { held_->StartEpoch(epoch); }
  /// Starts what is left of the epoch after `done`. False, and nothing is started, for a sampler that can't tell what
  /// that is: one without a `set_epoch(epoch, done)`.
  bool StartRest(size_t epoch, const std::vector<EpochPart>& done) { return held_->StartRest(epoch, done); }
  /// Samples in the current pass; nothing for a sampler without `size()`.
  std::optional<size_t> size() const { return held_->size(); }
  /// Whether the sampler decides itself how many samples a batch has: says so by `static constexpr bool
  /// kDecidesBatches = true`.
  bool decides_batches() const { return held_->decides_batches(); }
  /// Up to `batch_size` indices, or nothing at the end of the epoch.
  std::optional<std::vector<size_t>> Next(size_t batch_size) { return held_->Next(batch_size); }

 private:
  struct Held {
    virtual ~Held() = default;
    virtual void StartEpoch(size_t epoch) = 0;
    virtual bool StartRest(size_t epoch, const std::vector<EpochPart>& done) = 0;
    virtual std::optional<size_t> size() const = 0;
    virtual bool decides_batches() const = 0;
    virtual std::optional<std::vector<size_t>> Next(size_t batch_size) = 0;
  };

  template <typename S, typename = void>
  struct HasSetEpoch : std::false_type {};
  template <typename S>
  struct HasSetEpoch<S, std::void_t<decltype(std::declval<S&>().set_epoch(size_t{0}))>> : std::true_type {};

  template <typename S, typename = void>
  struct HasSize : std::false_type {};
  template <typename S>
  struct HasSize<S, std::void_t<decltype(size_t{std::declval<S&>().size()})>> : std::true_type {};

  template <typename S, typename = void>
  struct DecidesBatches : std::false_type {};
  template <typename S>
  struct DecidesBatches<S, std::void_t<decltype(S::kDecidesBatches)>> : std::bool_constant<S::kDecidesBatches> {};

  template <typename S>
  struct HeldSampler : Held {
    explicit HeldSampler(std::shared_ptr<S> s) : sampler(std::move(s)) {}
    void StartEpoch(size_t epoch) override {
      if constexpr (HasSetEpoch<S>::value) sampler->set_epoch(epoch);
      sampler->reset(std::nullopt);
    }
    bool StartRest(size_t epoch, const std::vector<EpochPart>& done) override {
      if constexpr (StartsRest<S>::value) {
        sampler->set_epoch(epoch, done);
        sampler->reset(std::nullopt);
      }
      return StartsRest<S>::value;
    }
    std::optional<size_t> size() const override {
      if constexpr (HasSize<S>::value) return sampler->size();
      return std::nullopt;
    }
    bool decides_batches() const override { return DecidesBatches<S>::value; }
    std::optional<std::vector<size_t>> Next(size_t batch_size) override { return sampler->next(batch_size); }
    std::shared_ptr<S> sampler;
  };

  template <typename S>
  static std::shared_ptr<Held> Hold(std::shared_ptr<S> sampler) {
    return std::make_shared<HeldSampler<S>>(std::move(sampler));
  }
  template <typename S>
  static std::shared_ptr<Held> Hold(S sampler) {
    return Hold(std::make_shared<S>(std::move(sampler)));
  }

  std::shared_ptr<Held> held_;
};

}  // namespace lockstep
