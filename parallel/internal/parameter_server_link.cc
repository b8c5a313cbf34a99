#include "lockstep/parallel/internal/parameter_server_link.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <cstring>
#include <utility>

#include "lockstep/base/error_text.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/comm/liveness.h"

namespace lockstep::internal {
namespace {

enum Tag { kHeaderTag, kPayloadTag };

}  // namespace

at::Tensor TextPayload(std::string_view text) {
  at::Tensor payload = at::empty({static_cast<int64_t>(text.size())}, at::kByte);
  if (!text.empty()) std::memcpy(payload.mutable_data_ptr(), text.data(), text.size());
  return payload;
}

std::string_view ServerLink::Message::text() const {
  if (!payload.defined()) return {};
  return {static_cast<const char*>(payload.const_data_ptr()), payload.nbytes()};
}

absl::StatusOr<std::unique_ptr<ServerLink>> ServerLink::Open(const ProcessGroupPtr& world, int first, int second,
                                                             std::string peer_name,
                                                             const ProcessGroupOptions& options) {
  auto group = NewSubGroup(world, {first, second}, options);
  if (!group.ok()) {
    return absl::Status(group.status().code(), absl::StrCat(kErrorPrefix, "no connection with ", peer_name, ": ",
                                                            std::string(group.status().message())));
  }
  return std::unique_ptr<ServerLink>(new ServerLink(*std::move(group), std::move(peer_name), options.timeout));
}

template <typename F>
void ServerLink::Guarded(const F& communicate) {
  try {
    communicate();
  } catch (const std::exception& e) {
    // In a group of two there is only one that can be gone; the backend's text knows it by its rank there.
    const std::string what = FirstLine(e.what());
    const bool late = what.find("imed out") != std::string::npos;
    TORCH_CHECK_WITH(DistBackendError, !late, kErrorPrefix, peer_name_, " did not answer within ", timeout_.count(),
                     " ms");
    TORCH_CHECK_WITH(DistBackendError, !IsCommunicationError(what), kErrorPrefix, peer_name_, " is gone");
    TORCH_CHECK_WITH(DistBackendError, false, kErrorPrefix, peer_name_, ": ", what);
  }
}

void ServerLink::Post(ServerMessage kind, int64_t number, const at::Tensor& payload) {
  Guarded([&] {
    const int64_t bytes = payload.defined() ? static_cast<int64_t>(payload.nbytes()) : 0;
    const at::Tensor header = at::tensor({static_cast<int64_t>(kind), number, bytes}, at::kLong);
    const int peer = 1 - GetRank(group_);
    sending_.push_back(SendAsync(header, peer, group_, kHeaderTag));
    if (bytes > 0) sending_.push_back(SendAsync(payload, peer, group_, kPayloadTag));
  });
}

void ServerLink::Flush() {
  Guarded([&] {
    for (const WorkPtr& work : std::exchange(sending_, {})) work->wait();
  });
}

void ServerLink::Send(ServerMessage kind, int64_t number, const at::Tensor& payload) {
  Post(kind, number, payload);
  Flush();
}

void ServerLink::Send(ServerMessage kind, const std::string& text) { Send(kind, 0, TextPayload(text)); }

ServerLink::Message ServerLink::Receive(const at::Tensor& buffer) {
  Message message;
  Guarded([&] {
    for (const WorkPtr& work : std::exchange(sending_, {})) work->wait();
    const at::Tensor header = at::empty({3}, at::kLong);
    const int peer = 1 - GetRank(group_);
    lockstep::Receive(header, peer, group_, kHeaderTag);
    const int64_t* const fields = header.const_data_ptr<int64_t>();
    message.kind = static_cast<ServerMessage>(fields[0]);
    message.number = fields[1];
    if (fields[2] == 0) return;
    const bool fits = buffer.defined() && static_cast<int64_t>(buffer.nbytes()) == fields[2];
    message.payload = fits ? buffer : at::empty({fields[2]}, at::kByte);
    lockstep::Receive(message.payload, peer, group_, kPayloadTag);
  });
  return message;
}

ServerLink::Message ServerLink::ReceiveOk(const at::Tensor& buffer) {
  Message message = Receive(buffer);
  TORCH_CHECK_WITH(DistBackendError, message.kind == ServerMessage::kOk, kErrorPrefix, std::string(message.text()));
  return message;
}

}  // namespace lockstep::internal
