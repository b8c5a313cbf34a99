#include "lockstep/trainer/gradient_window.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/status_macros.h"

namespace lockstep {
namespace {

/// A gradient as a value: sparse ones, which files of Python's have no safe form for, as {"indices", "values",
/// "sizes"}.
Value GradientState(const at::Tensor& gradient) {
  if (!gradient.is_sparse()) return gradient;
  const at::Tensor sum = gradient.coalesce();
  ValueList sizes;
  for (const int64_t size : sum.sizes()) sizes.emplace_back(size);
  Value state((ValueDict()));
  state.set("indices", sum.indices());
  state.set("values", sum.values());
  state.set("sizes", std::move(sizes));
  return state;
}

/// And back; undefined for what is none.
at::Tensor ReadGradient(const Value& state) {
  if (state.tensor() != nullptr) return *state.tensor();
  const Value *const indices = state.find("indices"), *const values = state.find("values"),
                     *const list = state.find("sizes");
  if (indices == nullptr || indices->tensor() == nullptr || values == nullptr || values->tensor() == nullptr ||
      list == nullptr || list->items() == nullptr) {
    return {};
  }
  std::vector<int64_t> sizes;
  for (const Value& size : *list->items()) sizes.push_back(size.count().value_or(0));
  try {
    return at::sparse_coo_tensor(*indices->tensor(), *values->tensor(), sizes);
  } catch (const c10::Error&) {
    return {};
  }
}

}  // namespace

Value GradientWindow::ToValue() const {
  Value state((ValueDict()));
  state.set("steps", static_cast<int64_t>(steps));
  if (batches == 0) return state;
  state.set("batches", static_cast<int64_t>(batches));
  state.set("counted", static_cast<int64_t>(counted));
  state.set("samples", samples);
  state.set("accumulate", static_cast<int64_t>(accumulate));
  state.set("scale", scale);
  state.set("weight_by_samples", weight_by_samples);
  state.set("went_backward", went_backward);
  state.set("loss", loss.defined() ? Value(loss) : Value());
  Value by_name((ValueDict()));
  for (const auto& [name, gradient] : gradients) by_name.set(name, GradientState(gradient));
  state.set("gradients", std::move(by_name));
  return state;
}

absl::StatusOr<GradientWindow> GradientWindow::FromValue(const Value& state) {
  GradientWindow window;
  const auto count = [&](const char* key, auto& number) {
    const Value* const entry = state.find(key);
    const auto value = entry == nullptr ? absl::InvalidArgumentError("missing") : entry->count();
    if (!value.ok()) return absl::InvalidArgumentError(absl::StrCat("'", key, "' is no count"));
    number = static_cast<std::decay_t<decltype(number)>>(*value);
    return absl::OkStatus();
  };
  LOCKSTEP_RETURN_IF_ERROR(count("steps", window.steps));
  const Value* const gradients = state.find("gradients");
  if (gradients == nullptr) return window;
  LOCKSTEP_RETURN_IF_ERROR(count("batches", window.batches));
  LOCKSTEP_RETURN_IF_ERROR(count("counted", window.counted));
  LOCKSTEP_RETURN_IF_ERROR(count("samples", window.samples));
  LOCKSTEP_RETURN_IF_ERROR(count("accumulate", window.accumulate));
  LOCKSTEP_RETURN_IF_ERROR(count("weight_by_samples", window.weight_by_samples));
  if (state.find("went_backward") != nullptr) LOCKSTEP_RETURN_IF_ERROR(count("went_backward", window.went_backward));
  const Value *const scale = state.find("scale"), *const loss = state.find("loss");
  const auto scale_number = scale == nullptr ? absl::InvalidArgumentError("missing") : scale->number();
  if (!scale_number.ok() || !(*scale_number > 0)) return absl::InvalidArgumentError("'scale' is no scale");
  window.scale = *scale_number;
  if (loss != nullptr && loss->tensor() != nullptr) {
    if (loss->tensor()->numel() != 1) return absl::InvalidArgumentError("'loss' is not one number");
    window.loss = loss->tensor()->reshape({});
  }
  if (gradients->dict() == nullptr) return absl::InvalidArgumentError("'gradients' is no dict");
  for (const auto& [name, gradient] : gradients->dict()->items) {
    const at::Tensor tensor = ReadGradient(gradient);
    if (name.string() == nullptr || !tensor.defined()) {
      return absl::InvalidArgumentError("'gradients' has an entry that is no name and gradient");
    }
    window.gradients[*name.string()] = tensor;
  }
  return window;
}

}  // namespace lockstep
