#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/nn/module.h>

#include <memory>
#include <vector>

namespace lockstep::internal {

/// Keeps copies of a module, made once, as it is.
///
/// On the module's own device a replica's parameters have the memory of the module's; on another they lie in one piece
/// of memory for each dtype, which is copied at once. They are no leaves: the graph leads from them to the module's
/// parameters, so that autograd itself adds up what replicas give, where one gave something, in the order of the
/// replicas. Hooks on the module's parameters see the sum, once in a backward.
class Replicas {
 public:
  struct Replica {
    std::shared_ptr<torch::nn::Module> module;
    at::Device device;
  };

  /// Throws unless replicas have the names and sizes of what `first`, on `device`, has. `share`: whether replicas on
  /// the same device share its memory.
  Replicas(std::shared_ptr<torch::nn::Module> first, at::Device device, std::vector<Replica> replicas,
           bool share = true);

  /// Replicas have the values, dtypes, modes and frozen parameters that the module has now.
  void Follow();

 private:
  struct Entry {
    at::Tensor first;
    std::vector<at::Tensor> replicas;
    bool is_parameter;
    torch::autograd::Edge edge{};  // where replicas' gradients go in the end; none: they need none
    std::vector<int64_t> sizes{};  // of the parameter, when that was found out
    int64_t version = -1;          // of the values that replicas elsewhere have
  };
  /// The values of one dtype on one device.
  struct Flat {
    std::vector<size_t> entries;
    at::Tensor values;
  };

  void Route(Entry& entry);
  void FollowNearby(size_t replica);
  void FollowElsewhere(size_t replica);
  void LayOut(size_t replica);

  const std::shared_ptr<torch::nn::Module> first_;
  const std::vector<Replica> replicas_;
  std::vector<bool> nearby_;  // by replica: shares memory
  std::vector<Entry> entries_;
  std::vector<std::vector<Flat>> flats_;  // by replica
  std::vector<std::vector<std::shared_ptr<torch::nn::Module>>>
      modules_;  // the whole tree: first's, then each replica's
};

}  // namespace lockstep::internal
