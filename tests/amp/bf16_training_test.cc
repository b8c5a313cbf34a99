// ConvNet in bfloat16 on the CPU, beside Python's; see make_golden.py.

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/amp/autocast.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/models/conv_net.h"

namespace lockstep {
namespace {

std::vector<double> Line(std::istream& file) {
  std::string line, word;
  std::getline(file, line);
  std::istringstream in(line);
  std::vector<double> numbers;
  while (in >> word) numbers.push_back(std::strtod(word.c_str(), nullptr));
  return numbers;
}

TEST(Bfloat16, ConvNetFollowsPythonsLossCurveAndReachesFloatsAccuracy) {
  at::set_num_threads(1);
  std::ifstream file("tests/amp/bf16_training.txt");
  const double sum = Line(file).at(0);
  const std::vector<double> in_float = Line(file), in_bfloat16 = Line(file), accuracies = Line(file);
  ASSERT_EQ(in_bfloat16.size(), 30u);
  torch::manual_seed(1206);
  at::Tensor images = at::rand({3000, 1, 28, 28});
  const at::Tensor labels = at::randint(0, 10, {3000}, at::kLong);
  images = images + 0.25 * at::rand({10, 1, 28, 28}).index_select(0, labels);
  ASSERT_EQ(images.to(at::kDouble).sum().item<double>(), sum) << "not Python's pictures";

  const auto golden = LoadPth("tests/models/conv_net.pth");
  ASSERT_TRUE(golden.ok()) << golden.status();
  for (const bool autocast : {false, true}) {
    models::ConvNet model;
    ASSERT_TRUE(LoadModuleState(*golden->find("before"), *model).ok());
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05));
    const auto dtype = autocast ? std::optional(at::kBFloat16) : std::nullopt;
    std::vector<double> losses;
    for (int64_t step = 0; step < 300; ++step) {
      const int64_t from = step * 32 % 1984;
      optimizer.zero_grad();
      at::Tensor loss;
      {
        const AutocastGuard guard(at::kCPU, dtype);
        loss = torch::nn::functional::cross_entropy(model->forward(images.narrow(0, from, 32)),
                                                    labels.narrow(0, from, 32));
      }
      loss.backward();
      optimizer.step();
      if (step % 10 == 9) losses.push_back(loss.item<double>());
    }
    // The noise of the curve: how far Python's own two lie apart. Before it has grown they are equal but for rounding.
    double noise = 0, worst = 0, early = 0;
    const auto& expected = autocast ? in_bfloat16 : in_float;
    for (size_t i = 0; i < losses.size(); ++i) {
      noise = std::max(noise, std::abs(in_float[i] - in_bfloat16[i]));
      worst = std::max(worst, std::abs(losses[i] - expected[i]));
      if (i < 3) early = std::max(early, std::abs(losses[i] - expected[i]));
    }
    RecordProperty(autocast ? "worst_bf16" : "worst_float", std::to_string(worst));
    EXPECT_LE(worst, noise) << "bfloat16: " << autocast;
    EXPECT_LE(early, autocast ? 0.02 : 1e-3);
    model->eval();
    const at::NoGradGuard no_grad;
    const AutocastGuard guard(at::kCPU, dtype);
    const double accuracy = model->forward(images.narrow(0, 2000, 1000))
                                .argmax(1)
                                .eq(labels.narrow(0, 2000, 1000))
                                .to(at::kDouble)
                                .mean()
                                .item<double>();
    EXPECT_NEAR(accuracy, accuracies[0], 0.03) << "bfloat16: " << autocast;
    std::printf("bfloat16 %d: worst difference %.5f (noise %.5f), first three %.6f, accuracy %.4f\n", autocast, worst,
                noise, early, accuracy);
  }
}

}  // namespace
}  // namespace lockstep
