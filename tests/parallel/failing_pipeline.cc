// A pipeline in which a rank goes wrong in the third step.
//
//   failing_pipeline forward|backward|kill|evaluate [RANK]    (in each of three ranks; 1 goes wrong unless another is
//   given)

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "lockstep/launch/rank_main.h"
#include "lockstep/parallel/pipeline.h"

int main(int argc, char** argv) {
  const std::string mode = argv[1];
  return lockstep::RankMain({}, [&](const lockstep::ProcessGroupPtr& group) {
    const bool is_faulty = lockstep::GetRank(group) == (argc > 2 ? std::atoi(argv[2]) : 1);
    torch::nn::Linear linear(4, 4);
    int step = 0;
    lockstep::PipelineOptions options;
    options.loss = [](const at::Tensor& output, const at::Tensor& target) { return (output - target).square().mean(); };
    lockstep::Pipeline pipeline(
        [&](const at::Tensor& x) {
          at::Tensor out = linear->forward(x);
          if (!is_faulty || step < 2) return out;
          if (mode == "forward") throw std::runtime_error("out of luck");
          if (mode == "kill") kill(getpid(), SIGKILL);
          if (mode == "backward") {
            out.register_hook([](const at::Tensor& grad) -> at::Tensor { throw std::runtime_error("out of luck"); });
          }
          return out;
        },
        group, options);
    const at::Tensor x = at::ones({8, 4});
    for (; step < 1000; ++step) {
      is_faulty&& mode == "evaluate" && step == 2 ? pipeline.Evaluate(x) : pipeline.Step(x, x);
    }
    return absl::OkStatus();
  });
}
