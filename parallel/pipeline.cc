#include "lockstep/parallel/pipeline.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <deque>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/comm/process_group.h"

namespace lockstep {
namespace {

enum Tag { kHeader, kActivation, kGradient };

constexpr int64_t kMaxDim = 16;

/// kind, micro-batches, samples, needs gradient, dtype, dimensions, sizes.
constexpr int64_t kFixed = 6;

void WaitFor(std::vector<WorkPtr>& works) {
  for (const auto& work : works) work->wait();
  works.clear();
}

}  // namespace

Pipeline::Pipeline(Stage stage, ProcessGroupPtr group, PipelineOptions options)
    : stage_(std::move(stage)),
      group_(std::move(group)),
      options_(std::move(options)),
      stage_index_(GetRank(group_)),
      num_stages_(GetWorldSize(group_)),
      gradient_group_(group_) {
  TORCH_CHECK(options_.micro_batches > 0, "Pipeline: ", options_.micro_batches,
              " micro-batches; there must be at least 1");
  if (!group_ || !options_.device.is_cuda()) return;
  std::vector<int> ranks(num_stages_);
  std::iota(ranks.begin(), ranks.end(), 0);
  ProcessGroupOptions group_options = options_.gradient_group;
  group_options.cuda = true;
  auto second = NewSubGroup(group_, ranks, group_options);
  TORCH_CHECK(second.ok(), "Pipeline: ", std::string(second.status().message()));
  gradient_group_ = *std::move(second);
}

// What goes between stages.

std::vector<WorkPtr> Pipeline::SendOutput(const at::Tensor& output, Header header) const {
  TORCH_CHECK(output.dim() <= kMaxDim, "Pipeline: stage ", stage_index_, " gives a tensor of ", output.dim(),
              " dimensions; more than ", kMaxDim, " can't be sent");
  std::vector<int64_t> numbers = {
      static_cast<int64_t>(header.kind),          header.micro_batches, header.samples, output.requires_grad(),
      static_cast<int64_t>(output.scalar_type()), output.dim()};
  numbers.insert(numbers.end(), output.sizes().begin(), output.sizes().end());
  numbers.resize(kFixed + kMaxDim);
  std::vector<WorkPtr> works = {SendAsync(at::tensor(numbers, at::kLong), stage_index_ + 1, group_, kHeader)};
  if (output.numel() > 0) works.push_back(SendAsync(output.detach(), stage_index_ + 1, group_, kActivation));
  return works;
}

Pipeline::Header Pipeline::ReceiveHeader(Kind kind) const {
  at::Tensor numbers = at::empty({kFixed + kMaxDim}, at::kLong);
  Receive(numbers, stage_index_ - 1, group_, kHeader);
  const int64_t* const n = numbers.const_data_ptr<int64_t>();
  Header header{static_cast<Kind>(n[0]), n[1], n[2], n[3] != 0, static_cast<at::ScalarType>(n[4]), {}};
  header.sizes.assign(n + kFixed, n + kFixed + n[5]);
  TORCH_CHECK(header.kind == kind, "Pipeline: stage ", stage_index_ - 1, " is in ",
              header.kind == Kind::kStep ? "Step" : "Evaluate", " and stage ", stage_index_, " in ",
              kind == Kind::kStep ? "Step" : "Evaluate", "; all ranks must call the same");
  return header;
}

Pipeline::Pass Pipeline::Begin(Kind kind, const at::Tensor& inputs) const {
  if (!is_first()) return {ReceiveHeader(kind)};
  TORCH_CHECK(inputs.defined() && inputs.dim() > 0,
              "Pipeline: the first stage needs inputs with samples in their first "
              "dimension");
  std::vector<at::Tensor> pieces = inputs.detach().chunk(options_.micro_batches);
  internal::PieceVersions versions;
  for (auto& piece : pieces) piece = versions.Separate(inputs, piece);
  return {{kind, static_cast<int64_t>(pieces.size()), inputs.size(0)}, std::move(pieces), std::move(versions)};
}

at::Tensor Pipeline::NextInput(Pass& pass) const {
  const int64_t index = pass.received++;
  if (is_first()) return pass.pieces[index].to(pass.pieces[index].options().device(options_.device));
  if (index > 0) pass.header = ReceiveHeader(pass.header.kind);
  at::Tensor input = at::empty(pass.header.sizes, at::TensorOptions(options_.device).dtype(pass.header.dtype));
  if (input.numel() > 0) Receive(input, stage_index_ - 1, group_, kActivation);
  return input.set_requires_grad(pass.header.needs_gradient);
}

at::Tensor Pipeline::CallStage(const at::Tensor& input) const {
  at::Tensor own = input;
  if (input.requires_grad()) {  // A leaf, which the stage could not change in place, as an in-place ReLU does.
    own = internal::WithOwnVersion(input);
    torch::autograd::impl::set_gradient_edge(own, torch::autograd::impl::gradient_edge(input));
  }
  at::Tensor output = stage_(own);
  TORCH_CHECK(output.defined(), "Pipeline: stage ", stage_index_, " gives an undefined tensor");
  return output;
}

// A step.

Pipeline::MicroBatch Pipeline::Forward(Pass& pass, const std::vector<at::Tensor>& targets, at::Tensor& loss) {
  const int64_t index = pass.received;
  MicroBatch batch;
  batch.input = NextInput(pass);
  {
    std::optional<DistributedDataParallelBase::NoSync> no_sync;
    if (options_.ddp != nullptr && index + 1 < pass.header.micro_batches) no_sync.emplace(*options_.ddp);
    batch.output = CallStage(batch.input);
  }
  if (!is_last()) {
    batch.sends = SendOutput(batch.output, pass.header);
    return batch;
  }
  const at::Tensor& target = targets[index];
  at::Tensor own = options_.loss(batch.output, target);
  TORCH_CHECK(own.defined() && own.numel() == 1, "Pipeline: the loss has ", own.defined() ? own.numel() : 0,
              " numbers; it must be one");
  if (options_.loss_is_mean && target.size(0) != pass.header.samples) {
    own = own * (static_cast<double>(target.size(0)) / static_cast<double>(pass.header.samples));
  }
  loss += own.detach().to(at::kCPU, at::kDouble).reshape({});
  batch.output = std::move(own);
  return batch;
}

void Pipeline::Backward(MicroBatch batch) {
  if (batch.output.requires_grad()) {
    at::Tensor gradient;
    if (!is_last()) {
      gradient = at::empty(batch.output.sizes(), batch.output.options().requires_grad(false));
      if (gradient.numel() > 0) Receive(gradient, stage_index_ + 1, gradient_group_, kGradient);
    }
    torch::autograd::backward({batch.output}, {gradient});
  }
  WaitFor(batch.sends);
  if (is_first() || !batch.input.requires_grad() || batch.input.numel() == 0) return;
  // One is under way at most, so that a slow stage before this one doesn't fill the memory.
  if (gradient_send_) gradient_send_->wait();
  const at::Tensor& gradient = batch.input.grad();
  gradient_send_ = SendAsync(gradient.defined() ? gradient : at::zeros_like(batch.input.detach()), stage_index_ - 1,
                             gradient_group_, kGradient);
}

at::Tensor Pipeline::Step(const at::Tensor& inputs, const at::Tensor& targets) {
  Pass pass = Begin(Kind::kStep, inputs);
  const int64_t count = pass.header.micro_batches;
  std::vector<at::Tensor> target_pieces;
  if (is_last()) {
    TORCH_CHECK(options_.loss, "Pipeline: the last stage needs PipelineOptions::loss");
    TORCH_CHECK(targets.defined() && targets.dim() > 0,
                "Pipeline: the last stage needs targets with samples in their "
                "first dimension");
    TORCH_CHECK(targets.size(0) == pass.header.samples, "Pipeline: the batch has ", pass.header.samples,
                " samples on the first stage and ", targets.size(0), " targets on the last");
    TORCH_CHECK(targets.size(0) > 0, "Pipeline: the batch has no samples");
    target_pieces = targets.to(targets.options().device(options_.device)).chunk(count);  // as the first stage cut
  }
  // The schedules differ only in how many forwards a stage is ahead of its backwards. Backwards come in the order of
  // the forwards, so that the last one belongs to the last forward, with which DistributedDataParallel averages.
  const int64_t ahead =
      options_.schedule == PipelineSchedule::kGPipe ? count : std::min<int64_t>(count, num_stages_ - 1 - stage_index_);
  at::Tensor loss = at::zeros({}, at::kDouble);
  std::deque<MicroBatch> in_flight;
  peak_micro_batches_ = 0;
  for (int64_t i = 0; i < count + ahead; ++i) {
    if (i < count) in_flight.push_back(Forward(pass, target_pieces, loss));
    peak_micro_batches_ = std::max(peak_micro_batches_, static_cast<int64_t>(in_flight.size()));
    if (i < ahead) continue;
    MicroBatch first = std::move(in_flight.front());
    in_flight.pop_front();
    Backward(std::move(first));
  }
  if (gradient_send_) gradient_send_->wait();
  gradient_send_.reset();
  pass.versions.Settle();
  if (group_) Broadcast(loss, group_, num_stages_ - 1);
  return loss;
}

at::Tensor Pipeline::Evaluate(const at::Tensor& inputs, bool everywhere) {
  const at::NoGradGuard no_grad;
  Pass pass = Begin(Kind::kEvaluate, inputs);
  std::vector<at::Tensor> outputs;
  std::vector<WorkPtr> sends;
  for (int64_t i = 0; i < pass.header.micro_batches; ++i) {
    const at::Tensor output = CallStage(NextInput(pass));
    if (is_last()) {
      outputs.push_back(output);
      continue;
    }
    WaitFor(sends);
    sends = SendOutput(output, pass.header);
  }
  WaitFor(sends);
  pass.versions.Settle();
  at::Tensor result = is_last() ? at::cat(outputs) : at::Tensor();
  if (!everywhere || !group_) return result;
  std::vector<int64_t> numbers;
  if (is_last()) {
    TORCH_CHECK(result.dim() <= kMaxDim, "Pipeline: an output of ", result.dim(), " dimensions; more than ", kMaxDim,
                " can't be sent");
    numbers = {static_cast<int64_t>(result.scalar_type()), result.dim()};
    numbers.insert(numbers.end(), result.sizes().begin(), result.sizes().end());
  }
  numbers.resize(2 + kMaxDim);
  at::Tensor shape = at::tensor(numbers, at::kLong);
  Broadcast(shape, group_, num_stages_ - 1);
  const int64_t* const n = shape.const_data_ptr<int64_t>();
  if (!is_last()) {
    result = at::empty(at::IntArrayRef(n + 2, n[1]),
                       at::TensorOptions(options_.device).dtype(static_cast<at::ScalarType>(n[0])));
  }
  if (result.numel() > 0) Broadcast(result, group_, num_stages_ - 1);
  return result;
}

}  // namespace lockstep
