#pragma once

#include <torch/nn/module.h>

#include <string>

#include "lockstep/trainer/observer.h"

namespace cifar10 {

/// Keeps the best model so far as `<folder>/<name>-<epoch>-<accuracy>.pth`, a state dict as torchvision's are; the one
/// before goes. On rank 0.
class BestModel : public lockstep::TrainObserver {
 public:
  BestModel(std::string folder, std::string name, torch::nn::Module& module)
      : folder_(std::move(folder)), name_(std::move(name)), module_(module) {}

  void OnValidated(const lockstep::EpochInfo& info) override;

  /// The newest file; empty: there is none yet.
  const std::string& path() const { return path_; }
  double accuracy() const { return accuracy_; }

 private:
  void RemoveOthers() const;

  const std::string folder_, name_;
  torch::nn::Module& module_;
  std::string path_;
  double accuracy_ = 0;
};

}  // namespace cifar10
