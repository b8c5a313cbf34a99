// Mixed precision with the pieces alone: a small net that learns a made-up rule, in one or more ranks.
//   ./bazelw build //launch:lockstep_run //examples:mixed_precision
//   bazel-bin/launch/lockstep_run --standalone --nproc_per_node=2 bazel-bin/examples/mixed_precision bf16
// float32: nothing; bf16, fp16: autocast, with a loss scaler where it is needed; bf16_model: the model itself in
// bfloat16, with float master weights.

#include <ATen/Functions.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "lockstep/amp/autocast.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/amp/master_weight_optimizer.h"
#include "lockstep/amp/no_scaler.h"
#include "lockstep/ddp/distributed_data_parallel.h"
#include "lockstep/launch/rank_main.h"
#include "lockstep/optim/clip_gradients.h"
#include "lockstep/optim/parameter_groups.h"

using namespace lockstep;  // NOLINT: an example

absl::Status Train(const std::string& mode, const ProcessGroupPtr& group) {
  torch::manual_seed(1);  // the same weights on every rank
  torch::nn::Sequential model(torch::nn::Linear(16, 64), torch::nn::ReLU(), torch::nn::Linear(64, 4));
  const at::Tensor rule = at::randn({16, 4});
  if (mode == "bf16_model") model->to(at::kBFloat16);
  DistributedDataParallel ddp(model, group);

  const auto defaults = torch::optim::AdamWOptions(1e-2).weight_decay(0.01);
  auto groups = OptimizerGroups(*model, defaults);  // no weight decay of biases
  if (!groups.ok()) return groups.status();
  MasterWeightOptimizer<torch::optim::AdamW> optimizer(*groups, defaults);  // of float32 parameters just an AdamW

  const auto dtype = mode == "fp16"   ? std::optional(at::kHalf)
                     : mode == "bf16" ? std::optional(at::kBFloat16)
                                      : std::nullopt;
  GradScalerOptions scaling;
  scaling.group = group;  // all ranks skip a step, or none does
  std::unique_ptr<LossScaler> scaler = std::make_unique<NoScaler>();
  if (mode == "fp16") scaler = std::make_unique<GradScaler>(scaling);

  torch::manual_seed(1 + GetRank(group));  // other samples on every rank
  for (int step = 1; step <= 100; ++step) {
    const at::Tensor x = at::randn({64, 16}), target = x.matmul(rule).argmax(1);
    optimizer.zero_grad();
    at::Tensor loss;
    {
      const AutocastGuard autocast(at::kCPU, dtype);  // forward and loss, not backward
      const at::Tensor logits = ddp.forward(mode == "bf16_model" ? x.to(at::kBFloat16) : x);
      loss = torch::nn::functional::cross_entropy(logits.to(at::kFloat), target);
    }
    scaler->Scale(loss).backward();
    scaler->Unscale(optimizer);
    const at::Tensor norm = ClipGradientNorm(AllParameters(optimizer), 1.0);
    scaler->AddFoundInf(optimizer, norm.isfinite().logical_not());
    scaler->Step(optimizer);
    scaler->Update();
    if (step % 20 == 0 && GetRank(group) == 0) {
      std::printf("step %d: loss %.4f, scale %g\n", step, loss.item<double>(), scaler->scale());
    }
  }
  return absl::OkStatus();
}

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "bf16";
  if (mode != "float32" && mode != "bf16" && mode != "fp16" && mode != "bf16_model") {
    std::fprintf(stderr, "usage: mixed_precision [float32|bf16|fp16|bf16_model]\n");
    return 2;
  }
  return RankMain({}, [&](const ProcessGroupPtr& group) { return Train(mode, group); });
}
