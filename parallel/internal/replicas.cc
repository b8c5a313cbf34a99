#include "lockstep/parallel/internal/replicas.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

namespace lockstep::internal {
namespace {

namespace autograd = torch::autograd;

bool IsStrided(const at::Tensor& tensor) { return tensor.layout() == at::kStrided; }

/// Adds up the gradients of a parameter's replicas, on the parameter's device. Has no state, and so serves every
/// backward.
struct SumGradients : autograd::Node {
  explicit SumGradients(at::Device device) : device(device) {}
  autograd::variable_list apply(autograd::variable_list&& inputs) override {
    at::Tensor sum;
    for (const auto& input : inputs) {
      if (!input.defined()) continue;
      const at::Tensor here = input.device() == device ? input : input.to(input.options().device(device));
      if (!sum.defined()) {
        sum = here;
      } else {  // dense + sparse there is, but not sparse + dense
        sum = IsStrided(sum) ? sum + here : here + sum;
      }
    }
    return {sum};
  }
  std::string name() const override { return "lockstep::DataParallel"; }
  const at::Device device;
};

bool IsLike(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.layout() == b.layout() && a.sizes() == b.sizes();
}

/// In the order of memory, where that leaves no gaps.
at::Tensor Flatten(const at::Tensor& tensor) {
  return tensor.is_non_overlapping_and_dense() ? tensor.detach().as_strided({tensor.numel()}, {1})
                                               : tensor.detach().reshape({-1});
}

std::vector<int64_t> DenseStrides(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) return tensor.strides().vec();
  return at::empty_like(tensor, at::MemoryFormat::Contiguous).strides().vec();
}

}  // namespace

Replicas::Replicas(std::shared_ptr<torch::nn::Module> first, at::Device device, std::vector<Replica> replicas,
                   bool share)
    : first_(std::move(first)), replicas_(std::move(replicas)), flats_(replicas_.size()) {
  const auto add = [&](bool is_parameter) {
    const auto list = [&](const torch::nn::Module& module) {
      return is_parameter ? module.named_parameters() : module.named_buffers();
    };
    const auto own = list(*first_);
    const char* const kind = is_parameter ? "parameter " : "buffer ";
    for (const auto& item : own) entries_.push_back({item.value(), {}, is_parameter});
    for (const auto& [module, where] : replicas_) {
      const auto theirs = list(*module);
      TORCH_CHECK(theirs.size() == own.size(), "DataParallel: a replica has ", theirs.size(), " ", kind,
                  "tensors and the module ", own.size(), "; make it like the module");
      auto entry = entries_.end() - static_cast<std::ptrdiff_t>(own.size());
      for (const auto& item : own) {
        const at::Tensor* const found = theirs.find(item.key());
        TORCH_CHECK(found != nullptr, "DataParallel: a replica has no ", kind, item.key(), "; make it like the module");
        TORCH_CHECK(found->defined() == item.value().defined(), "DataParallel: ", kind, item.key(),
                    " is defined in only one of the module and a replica; make it like the module");
        if (found->defined()) {
          TORCH_CHECK(found->sizes() == item.value().sizes(), "DataParallel: ", kind, item.key(), " is ",
                      found->sizes(), " in a replica and ", item.value().sizes(),
                      " in the module; make it like the module");
          TORCH_CHECK(!found->is_same(item.value()), "DataParallel: a replica has the module's own ", kind, item.key(),
                      "; give it tensors of its own");
        }
        (entry++)->replicas.push_back(*found);
      }
    }
  };
  add(/*is_parameter=*/true);
  add(/*is_parameter=*/false);
  // Tied parameters are there once for each name.
  std::map<c10::TensorImpl*, c10::TensorImpl*> tied;  // a replica's, and the module's
  const auto is_extra = [&](const Entry& entry) {
    if (!entry.first.defined()) return true;
    bool extra = !entry.replicas.empty();
    for (const auto& replica : entry.replicas) {
      const auto [at, is_new] = tied.emplace(replica.unsafeGetTensorImpl(), entry.first.unsafeGetTensorImpl());
      TORCH_CHECK(at->second == entry.first.unsafeGetTensorImpl(),
                  "DataParallel: two parameters are one in a replica, and not in the module; make it like the module");
      extra = extra && !is_new;
    }
    return extra;
  };
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(), is_extra), entries_.end());
  modules_.push_back(first_->modules());
  for (const auto& replica : replicas_) {
    modules_.push_back(replica.module->modules());
    TORCH_CHECK(modules_.back().size() == modules_[0].size(), "DataParallel: a replica has ", modules_.back().size(),
                " modules in it and the module ", modules_[0].size(), "; make it like the module");
    nearby_.push_back(share && replica.device == device);
  }
  for (Entry& entry : entries_) {
    for (const auto& replica : entry.replicas) {
      // No leaf and, where it was made as one, no view of another tensor any more.
      if (entry.is_parameter) replica.unsafeGetTensorImpl()->set_autograd_meta(nullptr);
    }
  }
}

/// Where the gradients of a parameter's replicas go.
void Replicas::Route(Entry& entry) {
  const bool wanted = entry.first.requires_grad();
  if (entry.edge.is_valid() && entry.first.sizes() != entry.sizes) {
    // The parameter would keep what takes gradients of the old shape for as long as it lives.
    entry.edge = {};
    for (const auto& replica : entry.replicas) replica.detach_();
  }
  const auto edge = wanted ? autograd::impl::gradient_edge(entry.first) : autograd::Edge();
  if (entry.edge == edge) return;
  entry.edge = edge;
  entry.sizes = entry.first.sizes().vec();
  for (const auto& replica : entry.replicas) replica.detach_();
  if (!wanted) return;
  if (entry.replicas.size() == 1 && nearby_[0]) {  // of two gradients the sum is the same in any order
    autograd::impl::set_gradient_edge(entry.replicas[0], edge);
    return;
  }
  const auto sum = std::make_shared<SumGradients>(entry.first.device());
  sum->set_next_edges({edge});
  for (const auto& replica : entry.replicas) autograd::set_history(replica, sum);
}

void Replicas::FollowNearby(size_t index) {
  for (Entry& entry : entries_) {
    const at::Tensor& first = entry.first;
    at::Tensor& replica = entry.replicas[index];
    if (!entry.is_parameter) {
      // What is expanded can't be written to.
      const bool writable = !IsStrided(replica) || replica.is_non_overlapping_and_dense();
      if (!IsLike(replica, first) || !writable) replica.set_data(at::empty_like(first));
      // A tensor without a version of its own would make a second forward spoil the first one's backward.
      replica.variable_data().copy_(first);
    } else if (!IsStrided(first) || replica.const_data_ptr() != first.const_data_ptr() || !IsLike(replica, first) ||
               replica.strides() != first.strides()) {
      replica.set_data(first.detach());
      // A change between forward and backward is noticed in replicas too.
      if (!first.is_inference()) autograd::impl::set_version_counter(replica, autograd::impl::version_counter(first));
    }
  }
}

/// Makes the memory of a replica on another device.
void Replicas::LayOut(size_t index) {
  std::vector<Flat>& flats = flats_[index];
  flats.clear();
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (!IsStrided(entries_[i].first)) continue;
    const auto dtype = entries_[i].first.scalar_type();
    auto flat = std::find_if(flats.begin(), flats.end(),
                             [&](const Flat& f) { return entries_[f.entries[0]].first.scalar_type() == dtype; });
    if (flat == flats.end()) flat = flats.insert(flats.end(), Flat());
    flat->entries.push_back(i);
  }
  for (Flat& flat : flats) {
    int64_t total = 0;
    for (size_t i : flat.entries) total += entries_[i].first.numel();
    const auto options = at::TensorOptions(replicas_[index].device).dtype(entries_[flat.entries[0]].first.dtype());
    flat.values = at::empty({total}, options);
    int64_t offset = 0;
    for (size_t i : flat.entries) {
      const at::Tensor& first = entries_[i].first;
      entries_[i].replicas[index].set_data(flat.values.as_strided(first.sizes(), DenseStrides(first), offset));
      offset += first.numel();
    }
  }
}

void Replicas::FollowElsewhere(size_t index) {
  const bool fits = std::all_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    const at::Tensor& replica = entry.replicas[index];
    return !IsStrided(entry.first) || (IsLike(replica, entry.first) && replica.strides() == DenseStrides(entry.first));
  });
  if (flats_[index].empty() || !fits) LayOut(index);
  for (Flat& flat : flats_[index]) {
    std::vector<at::Tensor> parts;
    for (size_t i : flat.entries) parts.push_back(Flatten(entries_[i].first));
    flat.values.copy_(at::cat(parts));
  }
  for (Entry& entry : entries_) {
    if (!IsStrided(entry.first)) {
      const auto options = at::TensorOptions().device(replicas_[index].device);
      entry.replicas[index].set_data(entry.first.detach().to(options, /*non_blocking=*/false, /*copy=*/true));
    }
    if (!entry.is_parameter || entry.first.is_inference()) continue;
    if (entry.version != entry.first._version()) autograd::impl::bump_version(entry.replicas[index]);
  }
}

void Replicas::Follow() {
  const c10::InferenceMode no_inference(false);  // what is made here serves training too
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < replicas_.size(); ++i) nearby_[i] ? FollowNearby(i) : FollowElsewhere(i);
  for (Entry& entry : entries_) {
    if (!entry.first.is_inference()) entry.version = entry.first._version();
    if (entry.is_parameter) Route(entry);
  }
  for (size_t m = 0; m < modules_[0].size(); ++m) {  // parents before their children
    const bool training = modules_[0][m]->is_training();
    for (size_t i = 1; i < modules_.size(); ++i) {
      if (modules_[i][m]->is_training() != training) modules_[i][m]->train(training);
    }
  }
}

}  // namespace lockstep::internal
