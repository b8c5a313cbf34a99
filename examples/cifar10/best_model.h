#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "lockstep/trainer/observer.h"

namespace cifar10 {

/// Keeps the best model so far as `<folder>/<name>-<epoch>-<accuracy>.pth`, a state dict as torchvision's are; the one
/// before goes. On rank 0.
class BestModel : public lockstep::TrainObserver {
 public:
  /// `failure_is_error`: whether a file that can't be written ends the training; else a warning.
  BestModel(std::string folder, std::string name, torch::nn::Module& module, bool failure_is_error);

  void OnValidated(const lockstep::EpochInfo& info) override;

  /// The newest file, also of the run before it was resumed; empty: there is none yet.
  const std::string& path() const { return path_; }

 private:
  std::vector<std::string> Files() const;

  const std::string folder_, name_;
  torch::nn::Module& module_;
  const bool failure_is_error_;
  std::string path_;
};

}  // namespace cifar10
