// What python_round_trip_test.py runs:
//   round_trip copy IN OUT                 loads a .pth file and saves it again
//   round_trip train OPTIMIZER IN OUT      loads {model, optimizer, input}, takes three steps, saves it again
//   round_trip resnet DEPTH IN OUT         loads torchvision's state dict of ResNet-18 or 50, saves {output} of the
//                                          picture IN.input

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cstdio>
#include <memory>
#include <string>

#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/models/resnet.h"

namespace {

using namespace lockstep;  // NOLINT: a program

std::unique_ptr<torch::optim::Optimizer> Make(const std::string& name, std::vector<at::Tensor> parameters) {
  if (name == "sgd") {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(1).momentum(0.5));
  }
  if (name == "adam") return std::make_unique<torch::optim::Adam>(std::move(parameters));
  return std::make_unique<torch::optim::AdamW>(std::move(parameters));
}

absl::Status Train(const std::string& name, Value& file) {
  torch::nn::Linear model(4, 3);
  const auto optimizer = Make(name, model->parameters());  // its options come from the file
  if (auto loaded = LoadModuleState(*file.find("model"), *model); !loaded.ok()) return loaded;
  if (auto loaded = LoadOptimizerState(*file.find("optimizer"), *optimizer); !loaded.ok()) return loaded;
  const at::Tensor input = *file.find("input")->tensor();
  for (int step = 0; step < 3; ++step) {
    optimizer->zero_grad();
    model->forward(input).square().mean().backward();
    optimizer->step();
  }
  auto state = OptimizerState(*optimizer);
  if (!state.ok()) return state.status();
  file.set("model", ModuleState(*model));
  file.set("optimizer", *std::move(state));
  return absl::OkStatus();
}

absl::Status RunResNet(const std::string& depth, const std::string& path, Value& file) {
  auto net = depth == "18" ? models::ResNet18() : models::ResNet50();
  if (auto loaded = LoadModuleState(file, *net); !loaded.ok()) return loaded;
  const auto input = LoadPth(path + ".input");
  if (!input.ok()) return input.status();
  net->eval();
  const at::NoGradGuard no_grad;
  file = Value(ValueDict());
  file.set("output", net(*input->tensor()));
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const bool train = argc == 5 && std::string(argv[1]) == "train";
  const bool resnet = argc == 5 && std::string(argv[1]) == "resnet";
  if (!train && !resnet && argc != 4) return 2;
  auto value = LoadPth(argv[argc - 2]);
  absl::Status status = value.status();
  if (status.ok() && train) status = Train(argv[2], *value);
  if (status.ok() && resnet) status = RunResNet(argv[2], argv[3], *value);
  if (status.ok()) status = SavePth(*value, argv[argc - 1]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
