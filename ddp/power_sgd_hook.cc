#include "lockstep/ddp/power_sgd_hook.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <cmath>

#include "lockstep/base/logging.h"

namespace lockstep {
namespace {

/// Makes the columns of `matrix` orthonormal, in place.
void Orthogonalize(const at::Tensor& matrix, double epsilon) {
  const bool half = matrix.scalar_type() == at::kHalf || matrix.scalar_type() == at::kBFloat16;
  const int64_t columns = matrix.size(1);
  if (columns > 2 && !half) {
    matrix.copy_(std::get<0>(at::linalg_qr(matrix)));
    return;
  }
  for (int64_t i = 0; i < columns; ++i) {  // Gram and Schmidt
    at::Tensor column = matrix.narrow(1, i, 1);
    const at::Tensor norm = at::norm(column, 2, {0}, /*keepdim=*/true).add_(epsilon);
    column.div_(norm.masked_fill_(norm == 0, 1));  // zeros stay zeros
    if (i + 1 == columns) break;
    at::Tensor rest = matrix.narrow(1, i + 1, columns - i - 1);
    rest.sub_((column * rest).sum({0}, /*keepdim=*/true) * column);
  }
}

/// Of the smallest square with so many elements.
int64_t Side(int64_t elements) { return static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(elements)))); }

}  // namespace

PowerSgdHook::PowerSgdHook(const std::vector<NamedParameter>& parameters, ProcessGroupPtr group,
                           PowerSgdOptions options)
    : group_(std::move(group)), options_(options) {
  TORCH_CHECK(options_.rank >= 1, "PowerSGD: the rank is at least 1, not ", options_.rank);
  TORCH_CHECK(options_.start_step >= 0, "PowerSGD: start_step is at least 0, not ", options_.start_step);
  TORCH_CHECK(options_.min_compression_rate > 0, "PowerSGD: min_compression_rate is more than 0, not ",
              options_.min_compression_rate);
  TORCH_CHECK(options_.orthogonalization_epsilon >= 0, "PowerSGD: orthogonalization_epsilon is at least 0, not ",
              options_.orthogonalization_epsilon);
  for (const auto& named : parameters) {
    TORCH_CHECK(!named.parameter.is_complex(), "PowerSGD: ", named.name, " is complex");
    names_[named.parameter.unsafeGetTensorImpl()] = named;
  }
}

c10::intrusive_ptr<c10::ivalue::Future> PowerSgdHook::runHook(c10d::GradBucket& bucket) {
  const at::NoGradGuard no_grad;
  // Waiting in between keeps the order of collectives the same on all ranks, which callbacks would not.
  if (step_ < options_.start_step) {
    AllReduce(bucket.getBufferRef().div_(GetWorldSize(group_)), group_);
  } else if (options_.batched) {
    CompressBatched(bucket);
  } else {
    Compress(bucket);
  }
  if (bucket.isLast()) ++step_;
  auto done = c10::make_intrusive<c10::ivalue::Future>(
      c10::TensorType::get(),
      bucket.getBuffer().is_cuda() ? std::vector<at::Device>{bucket.getBuffer().device()} : std::vector<at::Device>());
  done->markCompleted(bucket.getBuffer());
  return done;
}

at::Tensor PowerSgdHook::parseHookResult(const c10::IValue& result) {
  return c10d::detail::parseCppCommHookResult(result);
}

/// The Q that a step begins with, orthogonal.
at::Tensor PowerSgdHook::FirstQ(Memory& memory, int64_t columns, int64_t rank, const at::TensorOptions& options) {
  if (!options_.warm_start || !memory.q.defined() || memory.q.size(0) != columns || memory.q.size(1) != rank) {
    // A generator of its own for each matrix: the same on all ranks, whatever they have drawn elsewhere.
    at::Generator generator = at::detail::createCPUGenerator(options_.seed * 1000003 + draws_++);
    memory.q = at::randn({columns, rank}, generator, options.device(at::kCPU)).to(options.device());
  }
  Orthogonalize(memory.q, options_.orthogonalization_epsilon);
  return memory.q;
}

/// The error of a bucket that is finite; of another one the last error stays.
void PowerSgdHook::Remember(Memory& memory, const at::Tensor& finite, const at::Tensor& error) {
  memory.error = memory.error.defined() ? at::where(finite, error, memory.error)
                                        : at::where(finite, error, at::zeros({}, error.options()));
}

void PowerSgdHook::Compress(c10d::GradBucket& bucket) {
  const int world_size = GetWorldSize(group_);
  const at::Tensor buffer = bucket.getBuffer();
  const std::vector<at::Tensor> gradients = bucket.getGradients(), parameters = bucket.getParameters();
  at::Tensor before;
  if (options_.error_feedback) {
    for (size_t i = 0; i < gradients.size(); ++i) {
      const at::Tensor& error = memory_[NameOf(parameters[i])].error;
      if (error.defined()) gradients[i].view({-1}).add_(error);
    }
    before = buffer.clone();
  }

  // A gradient as a matrix M, and M ~ P Q^T.
  struct Matrix {
    at::Tensor m, p, q;
    Memory* memory;
  };
  std::vector<Matrix> matrices;
  std::vector<at::Tensor> plain;
  for (size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& gradient = gradients[i];
    const int64_t numel = gradient.numel();
    elements_before_ += numel;
    const int64_t rows = gradient.dim() > 0 ? gradient.size(0) : 1, columns = rows > 0 ? numel / rows : 0;
    const int64_t rank = std::min<int64_t>({rows, columns, options_.rank}), sent = (rows + columns) * rank;
    if (!(static_cast<double>(sent) * options_.min_compression_rate < static_cast<double>(numel))) {
      plain.push_back(gradient);
      elements_after_ += numel;
      continue;
    }
    elements_after_ += sent;
    Memory& memory = memory_[NameOf(parameters[i])];
    const at::Tensor q = FirstQ(memory, columns, rank, gradient.options());
    const at::Tensor m = gradient.view({rows, columns});
    matrices.push_back({m, {}, q, &memory});
  }
  if (!plain.empty()) {
    std::vector<at::Tensor> flat;
    for (const auto& gradient : plain) flat.push_back(gradient.view({-1}));
    const at::Tensor all = at::cat(flat);
    AllReduce(all, group_);
    all.div_(world_size);
    int64_t offset = 0;
    for (const auto& gradient : plain) {
      gradient.copy_(all.narrow(0, offset, gradient.numel()).view(gradient.sizes()));
      offset += gradient.numel();
    }
  }
  if (!matrices.empty()) {
    // All P in one all-reduce, all Q in another; views into their memory from then on.
    int64_t p_size = 0, q_size = 0;
    for (const Matrix& x : matrices) {
      p_size += x.m.size(0) * x.q.size(1);
      q_size += x.q.numel();
    }
    const at::Tensor ps = at::empty({p_size}, buffer.options()), qs = at::empty({q_size}, buffer.options());
    int64_t p_offset = 0, q_offset = 0;
    for (Matrix& x : matrices) {
      x.p = ps.narrow(0, p_offset, x.m.size(0) * x.q.size(1)).view({x.m.size(0), x.q.size(1)});
      p_offset += x.p.numel();
      at::mm_out(x.p, x.m, x.q);
    }
    AllReduce(ps, group_);
    for (Matrix& x : matrices) {
      Orthogonalize(x.p, options_.orthogonalization_epsilon);
      const at::Tensor q = qs.narrow(0, q_offset, x.q.numel()).view(x.q.sizes());
      q_offset += q.numel();
      x.q = at::mm_out(const_cast<at::Tensor&>(q), x.m.t(), x.p);
    }
    AllReduce(qs, group_);
    qs.div_(world_size);
    for (Matrix& x : matrices) at::mm_out(x.m, x.p, x.q.t());
  }
  // What a loss scaler will skip must not stay in the memory. The buffer is the same on all ranks by now.
  const at::Tensor finite = buffer.isfinite().all();
  for (Matrix& x : matrices) x.memory->q.copy_(at::where(finite, x.q, x.memory->q));
  if (options_.error_feedback) {
    const at::Tensor error = before.sub_(buffer);
    int64_t offset = 0;
    for (size_t i = 0; i < gradients.size(); ++i) {
      Remember(memory_[NameOf(parameters[i])], finite, error.narrow(0, offset, gradients[i].numel()));
      offset += gradients[i].numel();
    }
  }
}

void PowerSgdHook::CompressBatched(c10d::GradBucket& bucket) {
  const at::Tensor buffer = bucket.getBuffer();
  std::string name;  // of what the bucket is made of
  for (const auto& parameter : bucket.getParameters()) name += (name.empty() ? "" : " ") + NameOf(parameter);
  Memory& memory = memory_[name];
  const int64_t side = Side(buffer.numel());
  elements_before_ += buffer.numel();
  elements_after_ += side * options_.rank * 2;
  at::Tensor padded = at::zeros({side * side}, buffer.options());
  padded.narrow(0, 0, buffer.numel()).copy_(buffer);
  if (options_.error_feedback && memory.error.defined()) padded.add_(memory.error);
  const at::Tensor before = options_.error_feedback ? padded.clone() : at::Tensor();
  at::Tensor m = padded.view({side, side});
  const at::Tensor q = FirstQ(memory, side, std::min<int64_t>(options_.rank, side), buffer.options());
  const at::Tensor p = at::mm(m, q);
  AllReduce(p, group_);
  Orthogonalize(p, options_.orthogonalization_epsilon);
  const at::Tensor next_q = at::mm(m.t(), p);
  AllReduce(next_q, group_);
  next_q.div_(GetWorldSize(group_));
  at::mm_out(m, p, next_q.t());
  const at::Tensor finite = padded.isfinite().all();
  memory.q.copy_(at::where(finite, next_q, memory.q));
  if (options_.error_feedback) Remember(memory, finite, before - padded);
  const_cast<at::Tensor&>(buffer).copy_(padded.narrow(0, 0, buffer.numel()));
}

const std::string& PowerSgdHook::NameOf(const at::Tensor& parameter) const {
  const auto found = names_.find(parameter.unsafeGetTensorImpl());
  TORCH_CHECK(found != names_.end(), "PowerSGD: a bucket has a parameter of shape ", parameter.sizes(),
              " that the hook was not given");
  return found->second.name;
}

Value PowerSgdHook::SaveState() {
  Value memory = ValueDict{};
  for (const auto& [name, of] : memory_) {
    Value entry = ValueDict{};
    if (of.error.defined()) {
      ValueList errors;
      for (auto& error : Gather(of.error, group_)) errors.emplace_back(std::move(error));
      entry.set("errors", std::move(errors));
    }
    if (of.q.defined()) entry.set("q", of.q.clone());
    memory.set(name, std::move(entry));
  }
  Value state = ValueDict{};
  state.set("step", step_);
  state.set("draws", draws_);
  state.set("memory", std::move(memory));
  return state;
}

absl::Status PowerSgdHook::LoadState(const Value& state) {
  const Value *step = state.find("step"), *draws = state.find("draws"), *memory = state.find("memory");
  if (step == nullptr || draws == nullptr || memory == nullptr || memory->dict() == nullptr || !step->number().ok() ||
      !draws->number().ok()) {
    return absl::InvalidArgumentError("PowerSGD: the state has not the entries step, draws and memory");
  }
  std::map<std::string, int64_t> sizes;
  std::map<std::string, at::TensorOptions> kinds;
  for (const auto& [impl, named] : names_) {
    sizes[named.name] = named.parameter.numel();
    kinds[named.name] = named.parameter.options().requires_grad(false).memory_format(std::nullopt);
  }
  std::map<std::string, Memory> loaded;
  bool forgotten = false;
  for (const auto& [key, entry] : memory->dict()->items) {
    if (key.string() == nullptr)
      return absl::InvalidArgumentError("PowerSGD: the state's memory has a key that is no name");
    const std::string& name = *key.string();
    int64_t size = 0;
    at::TensorOptions kind;
    const std::vector<std::string> members = absl::StrSplit(name, ' ');
    for (const auto& member : members) {
      const auto found = sizes.find(member);
      if (found == sizes.end()) {
        return absl::InvalidArgumentError(
            absl::StrCat("PowerSGD: the state is of a parameter ", member, ", which isn't here"));
      }
      size += found->second;
      kind = kinds[member];
    }
    if (members.size() > 1) size = Side(size) * Side(size);  // of a whole bucket
    const Value *errors = entry.find("errors"), *q = entry.find("q");
    const at::Tensor* error = nullptr;
    if (errors != nullptr && errors->items() != nullptr &&
        errors->items()->size() == static_cast<size_t>(GetWorldSize(group_))) {
      error = (*errors->items())[GetRank(group_)].tensor();
    } else {
      forgotten |= errors != nullptr && errors->items() != nullptr;
    }
    const bool has_q = q != nullptr && q->tensor() != nullptr;
    if ((error != nullptr && error->numel() != size) || (has_q && q->tensor()->dim() != 2)) {
      return absl::InvalidArgumentError(absl::StrCat("PowerSGD: the state of ", name, " has another shape"));
    }
    Memory& of = loaded[name];
    if (error != nullptr) of.error = error->to(kind, /*non_blocking=*/false, /*copy=*/true).view({-1});
    if (has_q) of.q = q->tensor()->to(kind, /*non_blocking=*/false, /*copy=*/true);
  }
  if (forgotten && GetRank(group_) == 0) {
    LOG(WARNING) << "PowerSGD: the state is of another number of ranks; what had been lost so far is forgotten";
  }
  memory_ = std::move(loaded);
  step_ = static_cast<int64_t>(*step->number());
  draws_ = static_cast<int64_t>(*draws->number());
  return absl::OkStatus();
}

}  // namespace lockstep
