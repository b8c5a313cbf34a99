#include "lockstep/nn/internal/sync_batch_norm.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

namespace lockstep::nn::internal {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The type in which statistics are kept: float for half types.
at::ScalarType StatisticsType(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

/// A per-channel vector in the shape that broadcasts over (N, C, …).
at::Tensor PerChannel(const at::Tensor& vector, int64_t dims) {
  std::vector<int64_t> shape(dims, 1);
  shape[1] = vector.numel();
  return vector.view(shape);
}

/// (mean, biased variance) of this rank's batch, zero for one that has or counts as nothing.
std::pair<at::Tensor, at::Tensor> LocalStatistics(const at::Tensor& input, bool counts) {
  const auto options = input.options().dtype(StatisticsType(input));
  if (!counts) return {at::zeros({input.size(1)}, options), at::zeros({input.size(1)}, options)};
  auto [mean, var] = at::batch_norm_update_stats(input.to(options.dtype()), {}, {}, /*momentum=*/0.);
  return {mean, var};
}

struct SyncBatchNormFunction : torch::autograd::Function<SyncBatchNormFunction> {
  // Optional, because an undefined tensor as an argument is an error.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& input, bool counts,
                            const std::optional<at::Tensor>& weight_or, const std::optional<at::Tensor>& bias_or,
                            const std::optional<at::Tensor>& running_mean, const std::optional<at::Tensor>& running_var,
                            double momentum, double eps, const ProcessGroupPtr& group) {
    const at::Tensor weight = weight_or.value_or(at::Tensor()), bias = bias_or.value_or(at::Tensor());
    const int64_t channels = input.size(1);
    counts &= input.numel() > 0;
    auto [local_mean, local_var] = LocalStatistics(input, counts);
    const at::Tensor local_count =
        at::full({1}, counts ? static_cast<double>(input.numel() / channels) : 0., local_mean.options());

    // Chan's way to merge the ranks' means and variances (Chan, Golub, LeVeque 1979).
    const at::Tensor all = at::stack(AllGather(at::cat({local_mean, local_var, local_count}), group));
    const at::Tensor means = all.narrow(1, 0, channels);
    const at::Tensor vars = all.narrow(1, channels, channels);
    const at::Tensor samples = all.narrow(1, 2 * channels, 1);
    const at::Tensor total = samples.sum();
    // Looked at only where it may be so: a look makes a GPU's host wait.
    TORCH_CHECK(counts || total.item<double>() > 0, "SyncBatchNorm: every rank's batch is empty");
    const at::Tensor share = samples / total;
    const at::Tensor mean = (means * share).sum(0);
    const at::Tensor var = ((vars + (means - mean).square()) * share).sum(0);

    if (running_mean) {
      running_mean->mul_(1 - momentum).add_(mean, momentum);
      // One sample in all has no unbiased variance; torch gives NaN there too.
      running_var->mul_(1 - momentum).add_(var * (total / (total - 1)), momentum);
    }
    ctx->save_for_backward({input, weight, mean, var, total});
    ctx->saved_data["eps"] = eps;
    ctx->saved_data["group"] = c10::IValue::make_capsule(group);
    ctx->saved_data["has_bias"] = bias.defined();
    ctx->saved_data["counts"] = counts;
    if (input.numel() == 0) return at::empty_like(input);
    return std::get<0>(at::native_batch_norm(input, weight, bias, mean, var, /*training=*/false, 0., eps));
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grad_outputs) {
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &mean = saved[2], &var = saved[3], &total = saved[4];
    const double eps = ctx->saved_data["eps"].toDouble();
    const auto group = c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(ctx->saved_data["group"].toCapsule());
    const int64_t channels = input.size(1);
    const at::Tensor grad_output = grad_outputs[0].contiguous(input.suggest_memory_format());

    // With given statistics the kernel returns grad_output * weight * invstd, and the sums over this rank's batch of
    // grad_output * normalised input and of grad_output.
    at::Tensor grad_input = at::empty_like(input), sums = at::zeros({2 * channels}, mean.options());
    at::Tensor grad_weight, grad_bias;
    const at::Tensor scale = weight.defined() ? weight : at::ones({channels}, mean.options());
    if (input.numel() > 0) {
      std::tie(grad_input, grad_weight, grad_bias) = at::native_batch_norm_backward(
          grad_output, input, scale, mean, var, {}, {}, /*train=*/false, eps, {true, true, true});
      if (ctx->saved_data["counts"].toBool()) {
        sums.narrow(0, 0, channels).copy_(grad_bias);
        sums.narrow(0, channels, channels).copy_(grad_weight);
      }
    } else {
      grad_weight = at::zeros_like(scale);
      grad_bias = at::zeros_like(scale);
    }
    AllReduce(sums, group);

    // grad_input = weight * invstd * (grad_output - Σ grad_output / n - x̂ * Σ grad_output x̂ / n), as a + b * input.
    if (input.numel() > 0) {
      const at::Tensor invstd = (var + eps).rsqrt();
      const at::Tensor factor = scale.to(mean.scalar_type()) * invstd / total;
      const at::Tensor b = factor * invstd * sums.narrow(0, channels, channels);
      const at::Tensor a = factor * sums.narrow(0, 0, channels) - b * mean;
      const at::Tensor x = input.to(mean.scalar_type());  // itself, but for half types
      grad_input = grad_input.to(mean.scalar_type())
                       .sub_(PerChannel(a, input.dim()))
                       .addcmul_(x, PerChannel(b, input.dim()), -1)
                       .to(input.scalar_type());
    }
    const bool has_bias = ctx->saved_data["has_bias"].toBool();
    return {grad_input,
            at::Tensor(),
            weight.defined() ? grad_weight : at::Tensor(),
            has_bias ? grad_bias : at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor SyncBatchNorm(const at::Tensor& input, bool counts, const at::Tensor& weight, const at::Tensor& bias,
                         const at::Tensor& running_mean, const at::Tensor& running_var, double momentum, double eps,
                         const ProcessGroupPtr& group) {
  const auto defined = [](const at::Tensor& tensor) { return tensor.defined() ? std::optional(tensor) : std::nullopt; };
  return SyncBatchNormFunction::apply(input, counts, defined(weight), defined(bias), defined(running_mean),
                                      defined(running_var), momentum, eps, group);
}

}  // namespace lockstep::nn::internal
