#include "lockstep/parallel/parameter_server_optimizer.h"

#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error_text.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/packed_value.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/parallel/internal/parameter_server_link.h"
#include "lockstep/parallel/internal/parameter_server_model.h"
#include "lockstep/parallel/internal/parameter_server_options.h"
#include "lockstep/parallel/internal/parameter_server_packets.h"
#include "lockstep/parallel/internal/parameter_server_shard.h"
#include "lockstep/parallel/internal/parameter_server_state.h"

namespace lockstep {

using internal::GradientPacket;
using internal::kErrorPrefix;
using internal::PackedTensors;
using internal::ServedTensor;
using internal::ServerLink;
using internal::ServerMessage;

class ParameterServerOptimizer::Impl {
 public:
  Impl(const ProcessGroupPtr& group, const ParameterServerLayout& layout, torch::nn::Module& module,
       internal::ServedModel model)
      : group_(group),
        layout_(layout),
        worker_(layout.worker_index(GetRank(group))),
        module_(module),
        model_(std::move(model)),
        options_(*model_.optimizer()) {}

  ~Impl() {
    if (!over_) Abandon("it ended before Finish");
  }

  absl::Status Connect(const ProcessGroupOptions& options) {
    const auto shards = model_.Shards(layout_);
    const size_t groups = model_.optimizer()->param_groups().size();
    for (int server = 0; server < layout_.servers; ++server) {
      LOCKSTEP_ASSIGN_OR_RETURN(auto link,
                                ServerLink::Open(group_, server, GetRank(group_), layout_.Name(server), options));
      servers_.push_back(std::make_unique<Server>(std::move(link), model_.Pick(shards[server]), groups));
    }
    const at::Tensor description = internal::TextPayload(model_.Describe(layout_));
    for (const auto& server : servers_) server->Ask(ServerMessage::kHello, 0, description);
    absl::Status same;
    for (const auto& server : servers_) {
      const auto answer = server->link->Receive();
      server->asked = false;
      if (answer.kind != ServerMessage::kOk) same.Update(absl::InvalidArgumentError(std::string(answer.text())));
    }
    over_ = !same.ok();
    LOCKSTEP_RETURN_IF_ERROR(same);
    Pull();
    return absl::OkStatus();
  }

  torch::optim::Optimizer& whole() const { return *model_.optimizer(); }

  void Exchange(const torch::optim::Optimizer& optimizer, bool pull) {
    options_.CheckOnlyRatesDiffer(optimizer);
    const at::Tensor rates = options_.Rates(optimizer);
    for (const auto& server : servers_) server->Fill(rates);
    Communicate([&] {
      for (const auto& server : servers_) {
        server->Ask(ServerMessage::kStep, pull && Reads(*server) ? 1 : 0, server->gradient.packed.bytes());
      }
      last_staleness_ = 0;
      for (const auto& server : servers_) {
        const auto answer = server->Answer(server->values.bytes());
        last_staleness_ = std::max(last_staleness_, answer.number);
        if (pull && Reads(*server)) server->values.CopyTo(server->moved);
      }
    });
    ++steps_;
  }

  void Pull() {
    Communicate([&] {
      for (const auto& server : servers_) {
        if (Reads(*server)) server->Ask(ServerMessage::kPull);
      }
      for (const auto& server : servers_) {
        if (!Reads(*server)) continue;
        const PackedTensors all(server->all);
        server->Answer(all.bytes());
        all.CopyTo(server->all);
      }
    });
  }

  void Finish() {
    Communicate([&] {
      for (const auto& server : servers_) server->Ask(ServerMessage::kFinish);
      for (const auto& server : servers_) server->Answer();
    });
    over_ = true;
  }

  absl::StatusOr<Whole> WholeState() {
    Whole whole;
    if (layout_.mode == ParameterServerLayout::Mode::kSynchronous && worker_ != 0) return whole;
    std::vector<Value> parts;
    absl::Status unpacked;
    Communicate([&] {
      for (const auto& server : servers_) {
        if (Reads(*server)) server->Ask(ServerMessage::kGetState);
      }
      for (const auto& server : servers_) {
        if (!Reads(*server)) continue;
        const auto answer = server->Answer();
        auto part = internal::UnpackValue(answer.text());
        if (!part.ok()) unpacked = part.status();
        if (part.ok()) parts.push_back(*std::move(part));
      }
    });
    LOCKSTEP_RETURN_IF_ERROR(unpacked);
    LOCKSTEP_ASSIGN_OR_RETURN(whole.state, internal::WholeOptimizer(parts, model_));
    return whole;
  }

  absl::Status LoadWholeState(const Value& state, torch::optim::Optimizer& optimizer) {
    // Here first, so that what doesn't fit is no failure of the servers; and for this side's learning rates.
    LOCKSTEP_RETURN_IF_ERROR(LoadOptimizerState(state, *model_.optimizer()));
    Value all((ValueDict()));
    all.set("model", ModuleState(module_));
    all.set("optimizer", state);
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string packed, internal::PackValue(all));
    const at::Tensor payload = internal::TextPayload(packed);
    bool late = false;
    Communicate([&] {
      for (const auto& server : servers_) server->Ask(ServerMessage::kSetState, 0, payload);
      for (const auto& server : servers_) late |= server->Answer().number != 0;
    });
    if (late && steps_ > 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          kErrorPrefix, "a state can be loaded before the first step only; this worker has made ", steps_));
    }
    for (size_t g = 0; g < optimizer.param_groups().size(); ++g) {
      optimizer.param_groups()[g].set_options(model_.optimizer()->param_groups()[g].options().clone());
    }
    options_ = internal::GroupOptions(optimizer);
    model_.optimizer()->state().clear();  // the servers have it
    Pull();
    return absl::OkStatus();
  }

  int64_t last_staleness() const { return last_staleness_; }

 private:
  /// A server and what goes to and fro.
  struct Server {
    Server(std::unique_ptr<ServerLink> to, std::vector<ServedTensor> tensors, size_t groups)
        : link(std::move(to)),
          served(std::move(tensors)),
          moved(internal::MovedTensors(served)),
          gradient(served, groups),
          values(moved) {
      for (const auto& each : served) all.push_back(each.tensor);
    }

    void Ask(ServerMessage kind, int64_t number = 0, const at::Tensor& payload = {}) {
      link->Post(kind, number, payload);
      asked = true;
    }
    /// Throws what a server says instead, which is its last word.
    ServerLink::Message Answer(const at::Tensor& buffer = {}) {
      auto answer = link->Receive(buffer);
      asked = false;
      over = answer.kind != ServerMessage::kOk;
      TORCH_CHECK_WITH(DistBackendError, !over, kErrorPrefix, std::string(answer.text()));
      return answer;
    }
    /// As far as there is still somebody to tell. An answer that is due is taken first: until then a server doesn't
    /// listen.
    void Abandon(const std::string& why) {
      try {
        if (asked) Answer();
        if (!over) link->Send(ServerMessage::kAbandon, why);
      } catch (const std::exception&) {
        // It has ended before.
      }
    }

    void Fill(const at::Tensor& rates) {
      const at::NoGradGuard no_grad;
      at::Tensor(gradient.rates()).copy_(rates);
      bool* const present = gradient.present().mutable_data_ptr<bool>();
      size_t i = 0;
      for (const auto& each : served) {
        if (each.kind == ServedTensor::Kind::kFrozen) {
          TORCH_CHECK(!each.tensor.requires_grad(), kErrorPrefix, "parameter '", each.name,
                      "' needs a gradient now and did not when the servers were connected, so that they don't train "
                      "it; freeze it after Connect instead, on the workers");
          continue;
        }
        const bool buffer = each.kind == ServedTensor::Kind::kBuffer;
        const at::Tensor from = buffer ? each.tensor : each.tensor.grad();
        present[i] = from.defined();
        at::Tensor to = gradient.moved(i++);
        if (!from.defined()) {
          to.zero_();
          continue;
        }
        TORCH_CHECK(!from.is_sparse(), kErrorPrefix, "the gradient of '", each.name,
                    "' is sparse, which servers don't take; make its embedding with sparse(false)");
        to.copy_(from);
      }
    }

    std::unique_ptr<ServerLink> link;
    std::vector<ServedTensor> served;
    std::vector<at::Tensor> moved, all;
    GradientPacket gradient;
    PackedTensors values;
    bool asked = false;  // and not answered yet
    bool over = false;
  };

  /// Of servers that all have the same this worker reads from one.
  bool Reads(const Server& server) const {
    return layout_.placement == ParameterServerLayout::Placement::kSharded ||
           &server == servers_[worker_ % servers_.size()].get();
  }

  template <typename F>
  void Communicate(const F& communicate) {
    TORCH_CHECK_WITH(DistBackendError, !over_, kErrorPrefix,
                     over_reason_.empty() ? "this worker has finished" : over_reason_);
    try {
      communicate();
    } catch (const std::exception& e) {
      const std::string line = FirstLine(e.what());
      over_reason_ = line.rfind(kErrorPrefix, 0) == 0 ? line.substr(sizeof(kErrorPrefix) - 1) : line;
      Abandon(over_reason_);
      throw;
    }
  }

  void Abandon(const std::string& why) {
    over_ = true;
    for (const auto& server : servers_) server->Abandon(why);
  }

  const ProcessGroupPtr group_;
  const ParameterServerLayout layout_;
  const int worker_;
  torch::nn::Module& module_;
  const internal::ServedModel model_;
  internal::GroupOptions options_;  // as the servers know them
  std::vector<std::unique_ptr<Server>> servers_;
  int64_t steps_ = 0, last_staleness_ = 0;
  bool over_ = false;
  std::string over_reason_;  // where it wasn't Finish
};

ParameterServerOptimizer::ParameterServerOptimizer(std::unique_ptr<Impl> impl)
    : Optimizer(impl->whole().param_groups(), impl->whole().defaults().clone()), impl_(std::move(impl)) {}

ParameterServerOptimizer::~ParameterServerOptimizer() = default;

absl::StatusOr<std::unique_ptr<ParameterServerOptimizer>> ParameterServerOptimizer::Connect(
    const ProcessGroupPtr& group, const ParameterServerLayout& layout, torch::nn::Module& module,
    const OptimizerFactory& make_optimizer, const ProcessGroupOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(layout.Validate(GetWorldSize(group)));
  if (layout.is_server(GetRank(group))) {
    return absl::InvalidArgumentError(
        absl::StrCat(kErrorPrefix, "rank ", GetRank(group), " is a server, not a worker"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(internal::ServedModel model, internal::ServedModel::Make(module, make_optimizer));
  auto impl = std::make_unique<Impl>(group, layout, module, std::move(model));
  try {
    LOCKSTEP_RETURN_IF_ERROR(impl->Connect(options));
  } catch (const c10::DistBackendError& e) {
    return absl::UnavailableError(FirstLine(e.what()));
  }
  return std::unique_ptr<ParameterServerOptimizer>(new ParameterServerOptimizer(std::move(impl)));
}

at::Tensor ParameterServerOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const c10::AutoGradMode with_gradients(true);
    loss = closure();
  }
  impl_->Exchange(*this, /*pull=*/true);
  return loss;
}

void ParameterServerOptimizer::Push() { impl_->Exchange(*this, /*pull=*/false); }
void ParameterServerOptimizer::Pull() { impl_->Pull(); }
void ParameterServerOptimizer::Finish() { impl_->Finish(); }
int64_t ParameterServerOptimizer::last_staleness() const { return impl_->last_staleness(); }

absl::StatusOr<ShardedState::Whole> ParameterServerOptimizer::WholeState() { return impl_->WholeState(); }

absl::Status ParameterServerOptimizer::LoadWholeState(const Value& state, const Value*) {
  return impl_->LoadWholeState(state, *this);
}

}  // namespace lockstep
