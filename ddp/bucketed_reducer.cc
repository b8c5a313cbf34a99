#include "lockstep/ddp/bucketed_reducer.h"

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <algorithm>
#include <atomic>
#include <map>
#include <sstream>

#include "lockstep/comm/sparse.h"
#include "lockstep/comm/texts.h"
#include "lockstep/ddp/internal/buckets.h"
#include "lockstep/ddp/internal/rank_list.h"
#include "lockstep/ddp/internal/trained_parameters.h"

namespace lockstep {
namespace {

using internal::Alias;
using internal::AsReal;
using internal::RankList;
using Clock = ReducerStatistics::Clock;

/// Whether nobody but grad() and the engine, which waits for us, uses the memory of a gradient that autograd has just
/// put into grad() as it came.
bool IsSoleUser(const at::Tensor& grad, const at::Tensor& incoming) {
  if (!incoming.defined() || grad.data_ptr() != incoming.data_ptr()) return false;
  if (!incoming.is_view()) return grad.storage().use_count() <= 2;
  return grad.storage().use_count() <= 3 && incoming._base().use_count() <= 1;
}

}  // namespace

/// Filled by whatever thread completes a bucket; shared with it.
struct BucketedReducer::DoneTimes {
  explicit DoneTimes(size_t buckets) : done(buckets) {}
  std::vector<std::atomic<Clock::rep>> done;

  static void Watch(const std::shared_ptr<DoneTimes>& times, size_t bucket, c10::ivalue::Future& future) {
    future.addCallback(
        [times, bucket](c10::ivalue::Future&) { times->done[bucket] = Clock::now().time_since_epoch().count(); },
        /*uses_future=*/false);
  }
};

BucketedReducer::BucketedReducer(std::vector<NamedParameter> parameters, ProcessGroupPtr group,
                                 BucketedReducerOptions options)
    : parameters_(internal::WithoutRepeats(std::move(parameters))),
      group_(std::move(group)),
      options_(std::move(options)),
      watch_(*this) {
  MakeSlots();
  TORCH_CHECK(!slots_.empty(), "reducer: the module has no parameter that needs a gradient");
  if (!group_) return;
  on_shm_ = parameters_[0].parameter.is_cpu() && group_->getBackend(at::kCPU)->getBackendName() == "shm";
  SetWeight(std::nullopt);
  BuildBuckets(ReverseOrder());
}

BucketedReducer::~BucketedReducer() = default;

// Layout.

void BucketedReducer::MakeSlots() {
  std::map<size_t, bool> used;  // since the last averaged backward, as far as it was watched
  for (const Slot& slot : slots_) used[slot.parameter] = slot.used;
  const bool first = slots_.empty() && buckets_.empty() && !finished_;
  slots_.clear();
  has_sparse_ = false;
  std::vector<NamedParameter> watched;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!parameters_[i].parameter.requires_grad()) continue;
    Slot& slot = slots_.emplace_back();
    slot.parameter = i;
    slot.used = !first && (used.count(i) > 0 ? used[i] : parameters_[i].parameter.grad().defined());
    has_sparse_ |= parameters_[i].sparse;
    watched.push_back(parameters_[i]);
  }
  watch_.Watch(watched, /*hooks=*/group_ != nullptr);
}

/// About the order of readiness: backward makes the last parameters ready first.
std::vector<size_t> BucketedReducer::ReverseOrder() const {
  std::vector<size_t> order(slots_.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = order.size() - 1 - i;
  return order;
}

void BucketedReducer::BuildBuckets(const std::vector<size_t>& order) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> tensors;
  for (const Slot& slot : slots_) tensors.push_back(Named(slot).parameter);
  std::vector<size_t> dense;
  for (size_t i : order) {
    if (!Named(slots_[i]).sparse) dense.push_back(i);
  }
  for (Slot& slot : slots_) slot.bucket = kNoBucket;
  memory_.Clear();
  std::vector<Bucket> buckets;
  for (auto& members :
       internal::AssignBuckets(tensors, dense, options_.first_bucket_cap_bytes, options_.bucket_cap_bytes)) {
    Bucket bucket;
    size_t total = 0;
    for (size_t i : members) {
      // Where the allocator would put it, so that it can be lent. Not elsewhere: Gloo's order of addition depends on
      // where a number lies, and a hook sees the whole bucket.
      const size_t unit = internal::GradientMemory::kAlignment / tensors[i].element_size();
      if (on_shm_ && !options_.hook && tensors[i].nbytes() >= internal::GradientMemory::kLeastBytes) {
        total = (total + unit - 1) / unit * unit;
      }
      bucket.offsets.push_back(total);
      bucket.lengths.push_back(tensors[i].numel());
      total += tensors[i].numel();
    }
    bucket.flat = internal::NewFlat(static_cast<int64_t>(total) + 1, tensors[members.front()].options(), group_);
    bucket.gradients = bucket.flat.narrow(0, 0, static_cast<int64_t>(total));
    for (size_t m = 0; m < members.size(); ++m) {
      Slot& slot = slots_[members[m]];
      slot.bucket = buckets.size();
      slot.alias = Alias(bucket.flat, static_cast<int64_t>(bucket.offsets[m]), tensors[members[m]]);
      slot.lends = slot.alias.nbytes() >= internal::GradientMemory::kLeastBytes;
      if (slot.lends) memory_.SetPlace(members[m], slot.alias);
      at::Tensor& grad = tensors[members[m]].mutable_grad();
      if (!grad.defined() || grad.is_sparse()) continue;
      slot.alias.copy_(grad);
      grad = slot.alias;
    }
    bucket.slots = std::move(members);
    buckets.push_back(std::move(bucket));
  }
  buckets_ = std::move(buckets);
  order_ = order;
  statistics_.buckets = buckets_.size();
  statistics_.bytes = 0;
  for (const Bucket& bucket : buckets_) statistics_.bytes += static_cast<int64_t>(bucket.gradients.nbytes());
  statistics_.last.clear();
}

/// Gives a bucket other memory, since somebody's tensor lies in it. That is rare, and a sign that this size is used for
/// other things too: nothing of it is lent again.
void BucketedReducer::MoveBucket(size_t index) {
  const at::NoGradGuard no_grad;
  Bucket& bucket = buckets_[index];
  const at::Tensor old = bucket.flat;
  bucket.flat = internal::NewFlat(old.numel(), old.options(), group_);
  bucket.gradients = bucket.flat.narrow(0, 0, bucket.gradients.numel());
  for (size_t m = 0; m < bucket.slots.size(); ++m) {
    Slot& slot = slots_[bucket.slots[m]];
    const at::Tensor before = slot.alias;
    slot.alias = Alias(bucket.flat, static_cast<int64_t>(bucket.offsets[m]), before);
    if (slot.lends) memory_.SetPlace(bucket.slots[m], slot.alias);
    slot.lends = false;
    at::Tensor& grad = parameters_[slot.parameter].parameter.mutable_grad();
    if (!grad.defined() || grad.data_ptr() != before.data_ptr()) continue;
    slot.alias.copy_(grad);
    grad = slot.alias;
  }
  if (report_in_bucket_ && index + 1 == buckets_.size()) {
    report_ = bucket.flat.narrow(0, bucket.flat.numel() - 1, 1).copy_(report_);
  }
}

void BucketedReducer::RebuildBuckets() {
  rebuilt_ = true;
  std::vector<bool> listed(slots_.size());
  std::vector<int64_t> mine;
  for (size_t i : ready_order_) {
    mine.push_back(static_cast<int64_t>(i));
    listed[i] = true;
  }
  for (size_t i = slots_.size(); i-- > 0;) {
    if (!listed[i]) mine.push_back(static_cast<int64_t>(i));
  }
  at::Tensor order = at::tensor(mine, at::kLong);
  Broadcast(order, group_);
  std::vector<size_t> result;
  const int64_t* const of_rank_0 = order.const_data_ptr<int64_t>();
  for (size_t k = 0; k < slots_.size(); ++k) {
    // With static_graph, what no rank uses is of no concern any more.
    if (slots_[of_rank_0[k]].expected >= 0) result.push_back(of_rank_0[k]);
  }
  BuildBuckets(result);
}

bool BucketedReducer::IsFreezingChanged() const {
  size_t next = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const bool known = next < slots_.size() && slots_[next].parameter == i;
    next += known;
    if (known != parameters_[i].parameter.requires_grad()) return true;
  }
  return false;
}

Stateful* BucketedReducer::stateful_hook() const { return dynamic_cast<Stateful*>(options_.hook.get()); }

Value BucketedReducer::SaveState() {
  Value state((ValueDict())), expected((ValueDict()));
  const auto names = [&](const std::vector<size_t>& slots) {
    ValueList list;
    for (size_t i : slots) list.emplace_back(Named(slots_[i]).name);
    return list;
  };
  for (const Slot& slot : slots_) expected.set(Named(slot).name, slot.expected);
  state.set("order", names(order_));
  state.set("ready_order", names(ready_order_));  // the buckets may still be to be made of it
  state.set("rebuilt", rebuilt_);
  state.set("finished", finished_);
  state.set("learned", learned_);
  state.set("expected", std::move(expected));
  state.set("static_graph", options_.static_graph);
  state.set("bucket_cap_bytes", static_cast<int64_t>(options_.bucket_cap_bytes));
  state.set("first_bucket_cap_bytes", static_cast<int64_t>(options_.first_bucket_cap_bytes));
  return state;
}

absl::Status BucketedReducer::LoadState(const Value& state) {
  if (!group_) return absl::OkStatus();
  std::lock_guard<std::recursive_mutex> lock(watch_.mutex());
  const auto number = [&](const Value& dict, const std::string& key) -> double {
    const Value* const entry = dict.find(key);
    const auto value = entry == nullptr ? absl::InvalidArgumentError("") : entry->number();
    return value.ok() ? *value : -2;  // -1 is that no rank uses a parameter
  };
  if (number(state, "static_graph") != options_.static_graph ||
      number(state, "bucket_cap_bytes") != static_cast<double>(options_.bucket_cap_bytes) ||
      number(state, "first_bucket_cap_bytes") != static_cast<double>(options_.first_bucket_cap_bytes)) {
    return absl::InvalidArgumentError("reducer: the state is of a reducer with other options");
  }
  std::map<std::string, size_t> slots;
  for (size_t i = 0; i < slots_.size(); ++i) slots[Named(slots_[i]).name] = i;
  const Value* const saved = state.find("expected");
  const auto no_match = absl::InvalidArgumentError("reducer: the state is of other parameters");
  if (saved == nullptr || saved->dict() == nullptr || saved->dict()->items.size() != slots_.size()) return no_match;
  std::vector<int> expected(slots_.size());
  size_t used = 0;
  for (const auto& [name, i] : slots) {
    expected[i] = static_cast<int>(number(*saved, name));
    if (expected[i] < -1) return no_match;
    used += expected[i] >= 0 ? 1 : 0;
  }
  // Each name once.
  const auto read = [&](const char* key, std::vector<size_t>& into) {
    const Value* const names = state.find(key);
    if (names == nullptr || names->items() == nullptr) return false;
    auto left = slots;
    for (const Value& name : *names->items()) {
      const auto found = name.string() == nullptr ? left.end() : left.find(*name.string());
      if (found == left.end()) return false;
      into.push_back(found->second);
      left.erase(found);
    }
    return true;
  };
  std::vector<size_t> order, ready;
  if (!read("order", order) || !read("ready_order", ready) || order.size() < used) return no_match;
  rebuilt_ = number(state, "rebuilt") == 1;
  finished_ = number(state, "finished") == 1;
  learned_ = number(state, "learned") == 1;
  armed_ = false;
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].expected = expected[i];
    slots_[i].used = Named(slots_[i]).parameter.grad().defined();
  }
  BuildBuckets(order);
  ready_order_ = ready;
  return absl::OkStatus();
}

// A backward.

void BucketedReducer::PrepareForBackward(const std::vector<at::Tensor>& outputs) {
  if (!group_) return;
  std::lock_guard<std::recursive_mutex> lock(watch_.mutex());
  EndUnfinished();
  if (finished_ && !rebuilt_ && !armed_ && !slots_.empty() && options_.rebuild_buckets &&
      (options_.static_graph || !options_.find_unused_parameters)) {
    RebuildBuckets();
  }
  if (!armed_) Arm();
  // Asked beforehand where the others could not learn of it by a step's collectives: a hook may have a state that
  // depends on what it has sent, and when everything is frozen there is no step.
  const bool ask = options_.hook || slots_.empty();
  if (ask ? AnyRank(IsFreezingChanged(), group_) : IsFreezingChanged()) {
    if (!ask) {
      // The others learn of it by a step's collectives, which must not change what has been accumulated here.
      std::vector<at::Tensor> kept;
      for (const Bucket& bucket : buckets_) kept.push_back(bucket.flat.clone());
      EndCollectives(/*problem=*/true);
      WaitForCollectives();
      for (size_t i = 0; i < kept.size(); ++i) buckets_[i].flat.copy_(kept[i]);
    }
    armed_ = false;
    AgreeOrThrow("", /*in_backward=*/false);
    MakeSlots();
    finished_ = rebuilt_ = learned_ = false;
    BuildBuckets(ReverseOrder());
    Arm();
  }
  if (options_.find_unused_parameters && !options_.static_graph) {
    if (outputs.empty()) reached_.complete = false;
    internal::FindReached(outputs, reached_);
  }
  watch_.Announce(outputs, /*average=*/true);
}

void BucketedReducer::PrepareForAccumulation(const std::vector<at::Tensor>& outputs) {
  if (!group_) return;
  std::lock_guard<std::recursive_mutex> lock(watch_.mutex());
  EndUnfinished();
  watch_.Announce(outputs, /*average=*/false);
}

void BucketedReducer::SetWeight(std::optional<double> weight) {
  internal::CheckWeight(weight);
  if (!group_) return;
  std::lock_guard<std::recursive_mutex> lock(watch_.mutex());
  weight_ = weight;
  const double world_size = group_->getSize();
  ignore_ = weight == 0.0;
  // A hook divides by the world size itself.
  averages_ = !weight && on_shm_ && !options_.hook;
  const double factor = averages_ ? 1 : weight.value_or(1 / world_size) * (options_.hook ? world_size : 1);
  factor_.reset();
  if (factor == 1) return;
  factor_ = at::scalar_tensor(factor, at::kDouble);
  factor_.unsafeGetTensorImpl()->set_wrapped_number(true);
}

void BucketedReducer::Abandon(const std::string& why) {
  if (!group_) return;
  std::lock_guard<std::recursive_mutex> lock(watch_.mutex());
  watch_.Reset();
  memory_.Close();
  if (!armed_) return;
  // When all buckets are on their way the others have what they expect, and so has this rank.
  const bool is_complete = report_in_bucket_ && next_bucket_ == buckets_.size();
  Complete(is_complete ? "" : why);
}

void BucketedReducer::EndUnfinished() {
  if (!watch_.IsUnfinished()) return;
  Abandon("the last backward did not come to its end: it threw, or runs in another thread; " + MissingGradients());
}

void BucketedReducer::Arm() {
  for (Slot& slot : slots_) {
    slot.fired = 0;
    slot.ready = slot.assumed_unused = false;
    slot.kept.reset();
  }
  for (Bucket& bucket : buckets_) {
    bucket.pending = bucket.slots.size();
    bucket.work.reset();
    bucket.hook_result.reset();
  }
  next_bucket_ = 0;
  armed_ = true;
  filled_ = false;
  ready_order_.clear();
  done_times_ = std::make_shared<DoneTimes>(buckets_.size());
  statistics_.last.clear();

  const bool needs_usage = options_.static_graph ? IsLearning() : options_.find_unused_parameters;
  // Gloo adds in an order that depends on a tensor's length: with more than two ranks one number more would change the
  // last bits of all others.
  const bool any_length = on_shm_ || (group_->getSize() == 2 && parameters_[0].parameter.is_cpu());
  report_in_bucket_ = !needs_usage && !options_.hook && !has_sparse_ && !buckets_.empty() && any_length;
  if (report_in_bucket_) {
    const at::Tensor& flat = buckets_.back().flat;
    report_ = flat.narrow(0, flat.numel() - 1, 1).zero_();
  } else {
    report_ = at::zeros({needs_usage ? static_cast<int64_t>(slots_.size()) + 1 : 1}, at::kInt);
  }
}

void BucketedReducer::CheckGradient(const Slot& slot) const {
  const auto& [name, parameter, sparse] = Named(slot);
  const at::Tensor& grad = parameter.grad();
  TORCH_CHECK(parameter.requires_grad(), "reducer: ", name,
              " was frozen between forward and backward; do it before forward");
  TORCH_CHECK(grad.defined(), "reducer: the gradient of ", name, " is not defined");
  TORCH_CHECK(grad.is_sparse() == sparse, "reducer: the gradient of ", name,
              sparse ? " was said to be sparse and is not"
                     : " is sparse, which the reducer must know beforehand: set NamedParameter::sparse, or build the "
                       "model from torch::nn::Embedding with sparse(true), which DistributedDataParallel knows");
}

void BucketedReducer::OnBackwardBegin() {
  if (!armed_) return;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.bucket == kNoBucket) continue;
    at::Tensor& grad = parameters_[slot.parameter].parameter.mutable_grad();
    if (grad.defined() && !grad.is_sparse() && grad.is_alias_of(slot.alias) &&
        grad.data_ptr() != slot.alias.data_ptr()) {
      grad = grad.clone();  // a user has put it there: it lies where another one's will be
    }
    if (!slot.lends) continue;
    // Only the first gradient of a parameter keeps its memory; others are added to it. A hook may keep the gradient,
    // which must not become the average then.
    const at::Tensor& parameter = Named(slot).parameter;
    memory_.Want(i, slot.expected == 1 && !IsLearning() && !parameter.grad().defined() &&
                        torch::autograd::impl::hooks(parameter).empty());
  }
  memory_.Open();
}

bool BucketedReducer::IsEmptyBackward() {
  memory_.Close();
  if (!armed_ || !options_.find_unused_parameters || options_.static_graph || !reached_.complete) return false;
  for (const Slot& slot : slots_) {
    if (reached_.leaves.count(Named(slot).parameter.unsafeGetTensorImpl()) > 0) return false;
  }
  return !slots_.empty();
}

void BucketedReducer::OnLocalGradient(size_t index) { slots_[index].used = true; }

void BucketedReducer::OnGradient(size_t index, const at::Tensor& incoming) {
  if (!armed_) Arm();  // a further backward of an earlier forward
  Slot& slot = slots_[index];
  CheckGradient(slot);
  slot.used = true;
  if (++slot.fired == 1) ready_order_.push_back(index);
  const bool first = !filled_;
  filled_ = true;
  if (IsLearning()) return;
  TORCH_CHECK(slot.expected > 0, "reducer: static_graph: parameter ", Named(slot).name,
              " got a gradient, which it had not in the first backward; use find_unused_parameters, without "
              "static_graph, where the graph changes");
  if (first) {
    for (Slot& other : slots_) {
      const bool unreached = options_.find_unused_parameters && !options_.static_graph && reached_.complete &&
                             !reached_.leaves.empty() &&
                             reached_.leaves.count(Named(other).parameter.unsafeGetTensorImpl()) == 0;
      if (&other == &slot || other.bucket == kNoBucket || (!unreached && other.expected > 0)) continue;
      other.assumed_unused = true;
      MarkUnused(static_cast<size_t>(&other - slots_.data()));
    }
  }
  if (slot.ready) {
    const bool launched = slot.bucket == kNoBucket || slot.bucket < next_bucket_;
    TORCH_CHECK(slot.assumed_unused, "reducer: parameter ", Named(slot).name,
                options_.static_graph
                    ? " got more gradients in one backward than in the first one; static_graph expects as many"
                    : " got a second gradient in one backward, as in an activation checkpoint that shares it; "
                      "set static_graph, which expects as many as in the first backward");
    TORCH_CHECK(!launched, "reducer: parameter ", Named(slot).name,
                " got a gradient although no output of forward depends on it; return all outputs that the loss is made "
                "of, or set static_graph");
    slot.ready = slot.assumed_unused = false;
    ++buckets_[slot.bucket].pending;
  }
  if (slot.fired < slot.expected) return;
  // One that was made in the bucket must be nobody else's, since the average will be there in a moment.
  if (slot.bucket != kNoBucket && slot.lends && memory_.IsOccupied(index) &&
      !IsSoleUser(Named(slot).parameter.grad(), incoming)) {
    MoveBucket(slot.bucket);
  }
  Fill(index);
  MarkReady(index);
}

/// Somebody's tensor that was made in this slot's part of the bucket may still be there.
void BucketedReducer::MakeWritable(size_t index) {
  if (slots_[index].lends && memory_.IsOccupied(index)) MoveBucket(slots_[index].bucket);
}

void BucketedReducer::Fill(size_t index) {
  Slot& slot = slots_[index];
  if (slot.bucket == kNoBucket) return;
  const at::NoGradGuard no_grad;
  at::Tensor& grad = parameters_[slot.parameter].parameter.mutable_grad();
  if (slot.lends) memory_.Want(index, false);
  bool in_place = grad.data_ptr() == slot.alias.data_ptr() && grad.numel() > 0;
  if (in_place && grad.strides() != slot.alias.strides()) {  // a user's own
    grad = grad.clone();
    in_place = false;
  }
  // One that autograd made there has a storage of its own.
  const bool lent = in_place && !grad.is_alias_of(slot.alias);
  if (!in_place) MakeWritable(index);
  if (ignore_) {
    slot.alias.zero_();
  } else if (!in_place) {
    factor_.defined() ? at::mul_out(slot.alias, grad, factor_) : slot.alias.copy_(grad);
  } else if (factor_.defined()) {
    slot.alias.mul_(factor_);
  }
  if (!in_place || lent) grad = slot.alias;
}

void BucketedReducer::MarkReady(size_t index) {
  Slot& slot = slots_[index];
  slot.ready = true;
  if (slot.bucket != kNoBucket && --buckets_[slot.bucket].pending == 0) LaunchReadyBuckets();
}

void BucketedReducer::MarkUnused(size_t index) {
  Slot& slot = slots_[index];
  const at::Tensor& grad = Named(slot).parameter.grad();
  if (grad.defined() && slot.bucket != kNoBucket) {  // from a backward before
    if (!slot.used) slot.kept = grad.clone();
    Fill(index);
  } else if (slot.bucket != kNoBucket) {
    if (slot.lends) memory_.Want(index, false);
    MakeWritable(index);
    slot.alias.zero_();
  }
  MarkReady(index);
}

void BucketedReducer::LaunchReadyBuckets() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].pending == 0) Launch(next_bucket_);
}

void BucketedReducer::Launch(size_t index) {
  Bucket& bucket = buckets_[index];
  statistics_.last.resize(index + 1);
  statistics_.last[index] = {static_cast<int64_t>(bucket.gradients.nbytes()), Clock::now(), {}};
  if (options_.hook) {
    std::vector<c10::IntArrayRef> sizes;
    std::vector<at::Tensor> parameters;
    for (size_t i : bucket.slots) {
      parameters.push_back(Named(slots_[i]).parameter);
      sizes.push_back(parameters_[slots_[i].parameter].parameter.sizes());
    }
    c10d::GradBucket argument(index, buckets_.size(), bucket.gradients, bucket.offsets, bucket.lengths, sizes,
                              std::move(parameters), std::nullopt);
    bucket.hook_result = options_.hook->runHook(argument);
    TORCH_CHECK(bucket.hook_result, "reducer: the communication hook returned no future");
    DoneTimes::Watch(done_times_, index, *bucket.hook_result);
  } else {
    const bool reports = report_in_bucket_ && index + 1 == buckets_.size();
    std::vector<at::Tensor> tensors = {AsReal(reports ? bucket.flat : bucket.gradients)};
    // Our own backend divides while it adds, in float for half types, which costs nothing.
    c10d::AllreduceOptions how;
    how.reduceOp = averages_ ? c10d::ReduceOp::AVG : c10d::ReduceOp::SUM;
    bucket.work = group_->allreduce(tensors, how);
    if (const auto future = bucket.work->getFuture()) DoneTimes::Watch(done_times_, index, *future);
  }
  next_bucket_ = index + 1;  // not when a hook has thrown: what it has not sent is still to be sent
}

void BucketedReducer::EndCollectives(bool problem) {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i + 1 < static_cast<size_t>(report_.numel()); ++i) report_.data_ptr<int>()[i] = slots_[i].used;
  if (problem && (!report_in_bucket_ || next_bucket_ < buckets_.size())) report_[report_.numel() - 1] = 1;
  while (next_bucket_ < buckets_.size()) {
    // What isn't there counts as zero; it is an error anyway.
    for (size_t i : buckets_[next_bucket_].slots) {
      if (slots_[i].ready) continue;
      MakeWritable(i);
      slots_[i].alias.zero_();
    }
    Launch(next_bucket_);
  }
  if (report_in_bucket_) return;
  std::vector<at::Tensor> tensors = {report_};
  report_work_ = group_->allreduce(tensors);
}

/// Returns whether a rank has reported a problem.
bool BucketedReducer::WaitForCollectives() {
  const at::NoGradGuard no_grad;
  for (Bucket& bucket : buckets_) {
    if (bucket.work) {
      bucket.work->wait();
      bucket.work.reset();
    } else if (bucket.hook_result) {
      bucket.hook_result->wait();
      const at::Tensor result = options_.hook->parseHookResult(bucket.hook_result->value());
      if (result.data_ptr() != bucket.gradients.data_ptr()) bucket.gradients.copy_(result.view(-1));
      bucket.hook_result.reset();
    }
  }
  if (report_work_) report_work_->wait();
  report_work_.reset();
  return AsReal(report_[report_.numel() - 1]).ne(0).any().item<bool>();
}

void BucketedReducer::OnBackwardEnd() {
  statistics_.backward_end = Clock::now();
  memory_.Close();
  std::string problem;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.ready) continue;
    if (IsLearning() && slot.fired > 0) {
      Fill(i);
      MarkReady(i);
    } else if (IsLearning() || (options_.find_unused_parameters && !options_.static_graph)) {
      MarkUnused(i);
    } else if (problem.empty() && slot.expected > 0) {
      problem = MissingGradients();
    }
  }
  Complete(problem);
}

/// The collectives that are left, and what follows from them. Throws on all ranks when one has a problem.
void BucketedReducer::Complete(const std::string& problem) {
  armed_ = false;
  EndCollectives(!problem.empty());
  if (WaitForCollectives()) AgreeOrThrow(problem, /*in_backward=*/true);
  TakeBackUnused();
  ReduceSparse();
  if (IsLearning()) Learn();
  for (Slot& slot : slots_) slot.used = false;
  reached_ = {};
  finished_ = true;
  CountTimes();
}

/// Parameters that this rank did not use have the others' gradient, or, if nobody used them, what they had before.
void BucketedReducer::TakeBackUnused() {
  if (!options_.find_unused_parameters && !options_.static_graph) return;
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.used || slot.bucket == kNoBucket) continue;
    if (report_.numel() > 1 ? report_.data_ptr<int>()[i] > 0 : slot.expected >= 0) {
      Named(slot).parameter.mutable_grad() = slot.alias;
    } else if (slot.kept.defined()) {
      slot.alias.copy_(slot.kept);
    }
  }
}

void BucketedReducer::ReduceSparse() {
  if (!has_sparse_) return;
  const at::NoGradGuard no_grad;
  const double weight = weight_.value_or(1.0 / group_->getSize());
  for (Slot& slot : slots_) {
    at::Tensor parameter = Named(slot).parameter;
    if (!Named(slot).sparse) continue;
    const at::Tensor grad = parameter.grad();
    const bool empty = ignore_ || !grad.defined();
    const at::Tensor sum = SparseAllReduce(
        empty ? at::zeros(parameter.sizes(), parameter.options().layout(at::kSparse).requires_grad(false))
              : grad * weight,
        group_);
    if (grad.defined() || sum._nnz() > 0) parameter.mutable_grad() = sum;
  }
}

/// static_graph: what the first backward has shown.
void BucketedReducer::Learn() {
  learned_ = true;
  const int* const usage = report_.data_ptr<int>();
  for (size_t i = 0; i < slots_.size(); ++i) slots_[i].expected = usage[i] > 0 ? slots_[i].fired : -1;
}

void BucketedReducer::CountTimes() {
  ++statistics_.backwards;
  statistics_.ready_order.clear();
  for (size_t i : ready_order_) statistics_.ready_order.push_back(Named(slots_[i]).name);
  Clock::time_point covered{};
  const auto seconds = [](Clock::duration d) { return std::max(0.0, std::chrono::duration<double>(d).count()); };
  for (size_t i = 0; i < statistics_.last.size(); ++i) {
    auto& event = statistics_.last[i];
    const Clock::rep done = done_times_->done[i];
    event.done = done != 0 ? Clock::time_point(Clock::duration(done)) : Clock::now();
    const auto from = std::max(event.launched, covered);
    statistics_.communication_seconds += seconds(event.done - from);
    statistics_.overlapped_seconds += seconds(std::min(event.done, statistics_.backward_end) - from);
    covered = std::max(covered, event.done);
  }
}

// When something is wrong.

std::string BucketedReducer::MissingGradients() const {
  std::string names;
  int missing = 0;
  for (const Slot& slot : slots_) {
    if (slot.ready || slot.expected <= 0 || missing++ >= 10) continue;
    names += (names.empty() ? "" : ", ") + Named(slot).name;
  }
  if (missing == 0) return "every parameter has its gradient";
  if (missing > 10) names += " and " + std::to_string(missing - 10) + " more";
  return "parameters without a gradient: " + names +
         (options_.static_graph
              ? "; with static_graph every backward uses the parameters that the first one used, as often"
              : "; every output of forward must take part in the loss, and every parameter in an output. Set "
                "find_unused_parameters where that changes from step to step, static_graph where it is always the same "
                "ones, or requires_grad to false for what is never trained");
}

void BucketedReducer::AgreeOrThrow(const std::string& problem, bool in_backward) {
  std::string mine = in_backward ? "b" : "f";
  for (const auto& named : parameters_) mine += named.parameter.requires_grad() ? '1' : '0';
  const std::vector<std::string> all = AllGatherString(mine + problem, group_);
  const auto problem_of = [&](size_t rank) { return all[rank].substr(mine.size()); };
  std::ostringstream text;
  for (size_t rank = 0; rank < all.size() && text.tellp() == 0; ++rank) {
    if (problem_of(rank).empty()) continue;
    std::vector<size_t> alike;
    for (size_t other = rank; other < all.size(); ++other) {
      if (problem_of(other) == problem_of(rank)) alike.push_back(other);
    }
    text << RankList(alike) << ": " << problem_of(rank);
  }
  for (size_t i = 0; i < parameters_.size() && text.tellp() == 0; ++i) {
    std::vector<size_t> with, without;
    for (size_t rank = 0; rank < all.size(); ++rank) (all[rank][i + 1] == '1' ? with : without).push_back(rank);
    if (with.empty() || without.empty()) continue;
    text << "parameter " << parameters_[i].name << " needs a gradient on " << RankList(with) << " and not on "
         << RankList(without) << "; freeze and unfreeze it on all ranks alike, before forward";
  }
  std::vector<size_t> late;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank][0] == 'b') late.push_back(rank);
  }
  if (text.tellp() == 0 && !late.empty()) {
    text << "parameters were frozen or unfrozen between forward and backward on " << RankList(late)
         << "; do it before forward";
  }
  if (text.tellp() == 0) return;
  for (Slot& slot : slots_) slot.used = false;
  reached_ = {};
  TORCH_CHECK(false, "reducer: ", text.str());
}

std::vector<std::vector<std::string>> BucketedReducer::bucket_names() const {
  std::vector<std::vector<std::string>> names;
  for (const Bucket& bucket : buckets_) {
    names.emplace_back();
    for (size_t i : bucket.slots) names.back().push_back(Named(slots_[i]).name);
  }
  return names;
}

ReducerStatistics BucketedReducer::statistics() const {
  std::lock_guard<std::recursive_mutex> lock(watch_.mutex());
  return statistics_;
}

}  // namespace lockstep
