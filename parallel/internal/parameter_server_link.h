#pragma once

#include <absl/status/statusor.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::internal {

/// What servers and workers say to each other, and servers among themselves.
enum class ServerMessage : int64_t {
  kHello,     ///< First of a link. Text: what the worker serves or wants served. Answer: kOk.
  kStep,      ///< A gradient, and number 1 if the parameters are wanted. Answer: kOk with the gradient's staleness.
  kPull,      ///< Answer: kOk with all parameters and buffers.
  kGetState,  ///< Number: not before so many steps. Answer: kOk with a packed Value.
  kSetState,  ///< A packed Value. Answer: kOk, number 1 if it came too late.
  kFinish,    ///< The worker is done. Answer: kOk.
  kAbandon,   ///< The worker gives up; text: why. No answer.
  kOk,
  kError,  ///< Instead of kOk; text: why. The last message.
};

/// What all errors of servers and workers begin with.
constexpr char kErrorPrefix[] = "parameter server: ";

/// One end of a connection between two ranks: a process group of these two, so that it lives and dies with them alone.
/// For one thread. What fails throws c10::DistBackendError, which names the other end.
class ServerLink {
 public:
  struct Message {
    ServerMessage kind;
    int64_t number;
    at::Tensor payload;  ///< Bytes.
    std::string_view text() const;
  };

  /// `first` has rank 0 in the group, whichever end this is. `peer_name` is for errors. Collective for the two.
  static absl::StatusOr<std::unique_ptr<ServerLink>> Open(const ProcessGroupPtr& world, int first, int second,
                                                          std::string peer_name, const ProcessGroupOptions& options);

  /// Begins to send; `payload`, bytes, stays as it is until Flush or Receive returns.
  void Post(ServerMessage kind, int64_t number = 0, const at::Tensor& payload = {});
  void Flush();
  void Send(ServerMessage kind, int64_t number = 0, const at::Tensor& payload = {});
  void Send(ServerMessage kind, const std::string& text);
  /// Into `buffer` where a payload is as large as that, else into new memory.
  Message Receive(const at::Tensor& buffer = {});
  /// An answer that must be kOk: kError throws what it says.
  Message ReceiveOk(const at::Tensor& buffer = {});

  const std::string& peer_name() const { return peer_name_; }

 private:
  ServerLink(ProcessGroupPtr group, std::string peer_name, std::chrono::milliseconds timeout)
      : group_(std::move(group)), peer_name_(std::move(peer_name)), timeout_(timeout) {}

  template <typename F>
  void Guarded(const F& communicate);

  const ProcessGroupPtr group_;
  const std::string peer_name_;
  const std::chrono::milliseconds timeout_;
  std::vector<WorkPtr> sending_;
};

/// Text as bytes.
at::Tensor TextPayload(std::string_view text);

}  // namespace lockstep::internal
