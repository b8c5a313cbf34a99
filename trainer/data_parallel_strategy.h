#pragma once

#include <string>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/trainer/strategy.h"

namespace lockstep {

/// One process, several devices: each batch is cut among the replicas of a DataParallel.
class DataParallelStrategy : public Strategy {
 public:
  /// Not owned.
  template <typename M>
  explicit DataParallelStrategy(DataParallel<M>& wrapper) : wrapper_(wrapper), devices_(wrapper.devices().size()) {}

  std::string name() const override { return "data_parallel"; }
  torch::nn::Module& wrapper() override { return wrapper_; }
  size_t devices() const override { return devices_; }

 private:
  torch::nn::Module& wrapper_;
  const size_t devices_;
};

}  // namespace lockstep
