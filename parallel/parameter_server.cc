#include "lockstep/parallel/parameter_server.h"

#include <absl/strings/str_cat.h>
#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error_text.h"
#include "lockstep/base/prefixed.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/packed_value.h"
#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/parallel/internal/parameter_server_link.h"
#include "lockstep/parallel/internal/parameter_server_model.h"
#include "lockstep/parallel/internal/parameter_server_packets.h"
#include "lockstep/parallel/internal/parameter_server_shard.h"
#include "lockstep/parallel/internal/parameter_server_state.h"

#include "lockstep/base/logging.h"

namespace lockstep {

using internal::GradientPacket;
using internal::PackedTensors;
using internal::ServerLink;
using internal::ServerMessage;
using internal::ServerShard;

namespace {

/// What a link or a collective has thrown, without what all our errors begin with.
std::string Reason(const std::exception& e) {
  const std::string line = FirstLine(e.what());
  return line.rfind(internal::kErrorPrefix, 0) == 0 ? line.substr(sizeof(internal::kErrorPrefix) - 1) : line;
}

}  // namespace

class ParameterServer::Impl {
 public:
  Impl(const ProcessGroupPtr& group, const ParameterServerLayout& layout, torch::nn::Module& module,
       const ParameterServerOptions& options, internal::ServedModel model, std::vector<internal::ServedTensor> mine,
       internal::PartOptimizer part)
      : group_(group),
        layout_(layout),
        module_(module),
        options_(options),
        rank_(GetRank(group)),
        name_(layout.Name(rank_)),
        model_(std::move(model)),
        shard_(layout, layout.num_workers(GetWorldSize(group)), std::move(mine), std::move(part)) {}

  absl::Status Connect() {
    const auto open = [this](int other) -> absl::StatusOr<std::unique_ptr<ServerLink>> {
      return ServerLink::Open(group_, std::min(rank_, other), std::max(rank_, other), layout_.Name(other),
                              options_.connection);
    };
    // Server 0 brings together what is whole.
    for (int server = 1; server < layout_.servers; ++server) {
      if (rank_ != 0 && rank_ != server) continue;
      LOCKSTEP_ASSIGN_OR_RETURN(auto link, open(rank_ == 0 ? server : 0));
      servers_.push_back(std::move(link));
    }
    for (int rank = layout_.servers; rank < GetWorldSize(group_); ++rank) {
      LOCKSTEP_ASSIGN_OR_RETURN(auto link, open(rank));
      workers_.push_back(std::move(link));
    }
    const std::string description = model_.Describe(layout_);
    absl::Status same;
    for (const auto& link : workers_) {
      const auto hello = link->Receive();
      if (same.ok()) same = internal::CompareDescriptions(description, name_, hello.text(), link->peer_name());
    }
    for (const auto& link : workers_) {
      same.ok() ? link->Send(ServerMessage::kOk) : link->Send(ServerMessage::kError, std::string(same.message()));
    }
    return same;
  }

  absl::Status Restore(const Value& checkpoint) {
    const Value *const model = checkpoint.find("model"), *const optimizer = checkpoint.find("optimizer"),
                       *const steps = checkpoint.find("steps");
    if (model == nullptr || optimizer == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat(internal::kErrorPrefix, "the checkpoint has no '",
                                                     model == nullptr ? "model" : "optimizer", "'"));
    }
    LOCKSTEP_RETURN_IF_ERROR(Prefixed(internal::kErrorPrefix, CheckModuleState(*model, module_)));
    LOCKSTEP_RETURN_IF_ERROR(
        Prefixed(internal::kErrorPrefix, internal::LoadPartOptimizer(*optimizer, model_, shard_.part())));
    LOCKSTEP_RETURN_IF_ERROR(LoadModuleState(*model, module_));
    if (steps != nullptr && steps->count().ok()) shard_.set_steps(*steps->count());
    return absl::OkStatus();
  }

  absl::Status Serve() {
    if (rank_ == 0 && options_.checkpointer != nullptr && options_.save_every > 0) {
      shard_.set_after_step([this](int64_t steps) {
        if (steps % options_.save_every != 0) return;
        absl::Status saved;
        try {
          saved = Save(steps);
        } catch (const std::exception& e) {
          saved = absl::UnavailableError(Reason(e));  // not the fault of the worker whose thread this is
        }
        TORCH_CHECK(saved.ok(), std::string(saved.message()));
      });
    }
    std::vector<std::thread> threads;
    for (size_t w = 0; w < workers_.size(); ++w) threads.emplace_back([this, w] { ServeWorker(static_cast<int>(w)); });
    std::optional<std::thread> first;
    if (rank_ != 0) first.emplace([this] { ServeFirst(); });
    for (auto& thread : threads) thread.join();
    if (shard_.finished() == 0) shard_.Fail("all workers are gone");
    absl::Status end;
    if (rank_ == 0) end = EndAll();
    if (first) first->join();
    if (const auto why = shard_.failure()) return absl::UnavailableError(internal::kErrorPrefix + *why);
    VLOG(1) << name_ << ": " << shard_.steps() << " steps; " << shard_.staleness().ToString();
    return end;
  }

  const ServerShard& shard() const { return shard_; }

 private:
  /// A worker's thread.
  void ServeWorker(int worker) {
    ServerLink& link = *workers_[worker];
    Guarded([&] { Answer(worker, link); }, link,
            [&](const std::string& why) {
              shard_.Lose(worker, why);
              if (layout_.mode == ParameterServerLayout::Mode::kSynchronous) return;
              LOG(WARNING) << name_ << ": " << why << "; the other workers go on";
            });
  }

  /// Runs what serves a link; `lost` is called when that is broken.
  template <typename Serve, typename Lost>
  void Guarded(const Serve& serve, ServerLink& link, const Lost& lost) {
    try {
      serve();
    } catch (const ServerShard::Failure& failure) {
      Tell(link, failure.why);
    } catch (const c10::DistBackendError& e) {
      lost(Reason(e));
    } catch (const std::exception& e) {
      shard_.Fail(absl::StrCat(name_, ": ", FirstLine(e.what())));
      Tell(link, *shard_.failure());
    }
  }

  static void Tell(ServerLink& link, const std::string& why) {
    try {
      link.Send(ServerMessage::kError, why);
    } catch (const c10::Error&) {
      // It is gone as well.
    }
  }

  void Answer(int worker, ServerLink& link) {
    const size_t groups = model_.optimizer()->param_groups().size();
    const GradientPacket gradient(shard_.tensors(), groups);
    PackedTensors values(internal::MovedTensors(shard_.tensors()));
    while (true) {
      const auto message = link.Receive(gradient.packed.bytes());
      switch (message.kind) {
        case ServerMessage::kStep: {
          const bool wanted = message.number == 1;
          const int64_t staleness = shard_.Step(worker, gradient, wanted ? &values : nullptr);
          link.Send(ServerMessage::kOk, staleness, wanted ? values.bytes() : at::Tensor());
          break;
        }
        case ServerMessage::kPull: {
          std::vector<at::Tensor> tensors;
          for (const auto& served : shard_.tensors()) tensors.push_back(served.tensor);
          PackedTensors all(tensors);
          shard_.Read(worker, all);
          link.Send(ServerMessage::kOk, 0, all.bytes());
          break;
        }
        case ServerMessage::kGetState: SendState(link, message.number); break;
        case ServerMessage::kSetState: TakeState(link, message.text()); break;
        case ServerMessage::kFinish:
          shard_.Finish(worker);
          link.Send(ServerMessage::kOk);
          return;
        case ServerMessage::kAbandon:
          shard_.Lose(worker, absl::StrCat(link.peer_name(), " gave up: ", std::string(message.text())));
          return;
        default: TORCH_CHECK(false, link.peer_name(), " sent a message of kind ", static_cast<int64_t>(message.kind));
      }
    }
  }

  void SendState(ServerLink& link, int64_t min_steps) {
    absl::StatusOr<std::string> packed = absl::UnknownError("");
    shard_.Use(min_steps, [&] { packed = internal::PackValue(shard_.State()); });
    TORCH_CHECK(packed.ok(), std::string(packed.status().message()));
    link.Send(ServerMessage::kOk, 0, internal::TextPayload(*packed));
  }

  void TakeState(ServerLink& link, std::string_view text) {
    const auto state = internal::UnpackValue(text);
    TORCH_CHECK(state.ok(), std::string(state.status().message()));
    absl::Status taken;
    const bool in_time = shard_.UseUnlessBegun([&] { taken = Restore(*state); });
    TORCH_CHECK(taken.ok(), std::string(taken.message()));
    link.Send(ServerMessage::kOk, in_time ? 0 : 1);
  }

  /// On the other servers: what server 0 wants of them.
  void ServeFirst() {
    ServerLink& link = *servers_[0];
    const auto serve = [&] {
      while (true) {
        const auto message = link.Receive();
        if (message.kind == ServerMessage::kFinish) return;
        if (message.kind == ServerMessage::kAbandon) {
          shard_.Fail(std::string(message.text()));
          return;
        }
        try {
          SendState(link, message.number);
        } catch (const ServerShard::Failure& failure) {
          Tell(link, failure.why);  // and hears of the end
        }
      }
    };
    Guarded(serve, link, [this](const std::string& why) { shard_.Fail(why); });
  }

  /// On server 0: the servers' parts, the other servers' not before so many steps.
  std::vector<Value> Parts(Value mine, int64_t min_steps) {
    std::vector<Value> parts = {std::move(mine)};
    if (layout_.placement == ParameterServerLayout::Placement::kReplicated) return parts;
    for (const auto& link : servers_) link->Post(ServerMessage::kGetState, min_steps);
    std::exception_ptr error;  // thrown when all answers are there: who waits to give one doesn't listen
    for (const auto& link : servers_) {
      try {
        const auto answer = link->ReceiveOk();
        auto part = internal::UnpackValue(answer.text());
        TORCH_CHECK(part.ok(), link->peer_name(), ": ", std::string(part.status().message()));
        parts.push_back(*std::move(part));
      } catch (const std::exception&) {
        if (!error) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
    return parts;
  }

  /// On server 0, while no step can be taken here.
  absl::Status Save(int64_t steps) {
    // Asynchronous servers take steps in orders of their own, so that there is no common moment.
    const bool together = layout_.mode == ParameterServerLayout::Mode::kSynchronous;
    const auto parts = Parts(shard_.State(), together ? steps : 0);
    LOCKSTEP_RETURN_IF_ERROR(internal::LoadTensors(parts, model_));
    if (options_.checkpointer == nullptr) return absl::OkStatus();
    Value checkpoint((ValueDict()));
    checkpoint.set("model", ModuleState(module_));
    LOCKSTEP_ASSIGN_OR_RETURN(Value optimizer, internal::WholeOptimizer(parts, model_));
    checkpoint.set("optimizer", std::move(optimizer));
    checkpoint.set("steps", steps);
    return options_.checkpointer->Save(checkpoint, {0, static_cast<size_t>(steps)});
  }

  /// On server 0, when no worker is left.
  absl::Status EndAll() {
    absl::Status end;
    if (!shard_.failure()) {
      try {
        end = Save(shard_.steps());
        if (end.ok() && options_.checkpointer != nullptr) end = options_.checkpointer->Wait();
      } catch (const std::exception& e) {
        shard_.Fail(Reason(e));
      }
    }
    const auto why = shard_.failure();
    for (const auto& link : servers_) {
      try {
        why ? link->Send(ServerMessage::kAbandon, *why) : link->Send(ServerMessage::kFinish);
      } catch (const c10::Error&) {
        // It has ended by itself, with an error of its own.
      }
    }
    return end;
  }

  const ProcessGroupPtr group_;
  const ParameterServerLayout layout_;
  torch::nn::Module& module_;
  const ParameterServerOptions options_;
  const int rank_;
  const std::string name_;
  const internal::ServedModel model_;
  ServerShard shard_;
  std::vector<std::unique_ptr<ServerLink>> servers_;  // on server 0, the others; on those, server 0
  std::vector<std::unique_ptr<ServerLink>> workers_;
};

ParameterServer::ParameterServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ParameterServer::~ParameterServer() = default;

absl::StatusOr<std::unique_ptr<ParameterServer>> ParameterServer::Connect(const ProcessGroupPtr& group,
                                                                          const ParameterServerLayout& layout,
                                                                          torch::nn::Module& module,
                                                                          const OptimizerFactory& make_optimizer,
                                                                          const ParameterServerOptions& options) {
  LOCKSTEP_RETURN_IF_ERROR(layout.Validate(GetWorldSize(group)));
  const int rank = GetRank(group);
  if (!layout.is_server(rank)) {
    return absl::InvalidArgumentError(
        absl::StrCat(internal::kErrorPrefix, "rank ", rank, " is a worker, not a server"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(internal::ServedModel model, internal::ServedModel::Make(module, make_optimizer));
  auto mine = model.Pick(model.Shards(layout)[rank]);
  for (const auto& served : mine) {
    if (!served.tensor.is_cpu()) {
      return absl::InvalidArgumentError(absl::StrCat(internal::kErrorPrefix, "'", served.name, "' is on ",
                                                     served.tensor.device().str(), "; servers are on the CPU"));
    }
  }
  LOCKSTEP_ASSIGN_OR_RETURN(auto part, internal::MakePartOptimizer(mine, make_optimizer));
  if (options.checkpointer != nullptr) {
    LOCKSTEP_RETURN_IF_ERROR(Prefixed(internal::kErrorPrefix,
                                      internal::WholeOptimizer({internal::PartState(mine, part, 0)}, model).status()));
  }
  auto impl =
      std::make_unique<Impl>(group, layout, module, options, std::move(model), std::move(mine), std::move(part));
  try {
    LOCKSTEP_RETURN_IF_ERROR(impl->Connect());
  } catch (const c10::DistBackendError& e) {
    return absl::UnavailableError(FirstLine(e.what()));
  }
  return std::unique_ptr<ParameterServer>(new ParameterServer(std::move(impl)));
}

absl::Status ParameterServer::Restore(const Value& checkpoint) { return impl_->Restore(checkpoint); }
absl::Status ParameterServer::Serve() { return impl_->Serve(); }
int64_t ParameterServer::steps() const { return impl_->shard().steps(); }
ParameterServerStaleness ParameterServer::staleness() const { return impl_->shard().staleness(); }

}  // namespace lockstep
