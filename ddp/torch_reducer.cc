#include "lockstep/ddp/torch_reducer.h"

#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <unordered_map>

#include "lockstep/ddp/internal/buckets.h"
#include "lockstep/ddp/internal/trained_parameters.h"

namespace lockstep {
namespace {

/// Passes on to a hook that others hold too.
class SharedHook : public c10d::CommHookInterface {
 public:
  explicit SharedHook(std::shared_ptr<c10d::CommHookInterface> hook) : hook_(std::move(hook)) {}
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override { return hook_->runHook(bucket); }
  at::Tensor parseHookResult(const c10::IValue& result) override { return hook_->parseHookResult(result); }

 private:
  const std::shared_ptr<c10d::CommHookInterface> hook_;
};

}  // namespace

TorchReducer::TorchReducer(const std::vector<NamedParameter>& parameters, ProcessGroupPtr group,
                           TorchReducerOptions options)
    : find_unused_parameters_(options.find_unused_parameters) {
  std::vector<at::Tensor> tensors;
  std::vector<bool> sparse;
  std::unordered_map<size_t, std::string> names;
  for (const auto& named : internal::TrainedParameters(parameters)) {
    names[tensors.size()] = named.name;
    tensors.push_back(named.parameter);
    sparse.push_back(named.sparse);
  }
  if (!group) return;
  std::vector<size_t> dense;
  std::vector<std::vector<size_t>> buckets;
  for (size_t i = tensors.size(); i-- > 0;) {
    if (sparse[i]) {
      buckets.push_back({i});
    } else {
      dense.push_back(i);
    }
  }
  for (auto& bucket :
       internal::AssignBuckets(tensors, dense, options.first_bucket_cap_bytes, options.bucket_cap_bytes)) {
    buckets.push_back(std::move(bucket));
  }
  reducer_ = std::make_shared<c10d::Reducer>(
      tensors, buckets, std::move(group), sparse, options.bucket_cap_bytes, options.find_unused_parameters,
      /*gradient_as_bucket_view=*/false, names, options.first_bucket_cap_bytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, std::vector<int64_t>());
  logger_ = std::make_shared<c10d::Logger>(reducer_);
  reducer_->set_logger(logger_);
  if (options.hook) reducer_->register_comm_hook(std::make_unique<SharedHook>(options.hook));
}

TorchReducer::~TorchReducer() = default;

void TorchReducer::PrepareForBackward(const std::vector<at::Tensor>& outputs) {
  if (!reducer_) return;
  reducer_->prepare_for_forward();
  if (reducer_->should_rebuild_buckets()) reducer_->rebuild_buckets();
  reducer_->prepare_for_backward(find_unused_parameters_ ? outputs : std::vector<at::Tensor>());
}

void TorchReducer::SetWeight(std::optional<double> weight) {
  TORCH_CHECK(!weight, "reducer: c10d::Reducer knows no weights; use BucketedReducer");
}

void TorchReducer::Abandon(const std::string& why) {
  if (!reducer_) return;
  reducer_->reset_state();
  TORCH_CHECK(false, "reducer: ", why);
}

}  // namespace lockstep
