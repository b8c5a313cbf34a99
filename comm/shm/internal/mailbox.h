#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/comm/shm/internal/peers.h"

namespace lockstep::shm {

/// Send and receive. Messages from one rank to another go through a pipe in the sender's memory, in order; a receiver
/// that looks for another tag puts aside what comes before. All that is under way moves at the same time, so that ranks
/// may send to each other before they receive.
class Mailbox {
 public:
  explicit Mailbox(Peers& peers);
  /// Sends what it has begun to send to those who are still there; receives fail.
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  /// Called when a message is through, or has failed, with the reason; it must not use the mailbox.
  using OnDone = std::function<void(const std::string& error)>;

  /// `tensor` is contiguous and stays as it is until the work is done.
  c10::intrusive_ptr<c10d::Work> Send(const at::Tensor& tensor, int to, int tag, std::chrono::milliseconds timeout,
                                      OnDone on_done = nullptr);
  /// From any rank when `from` is -1. The message must have the dtype and the number of elements of `tensor`.
  c10::intrusive_ptr<c10d::Work> Receive(const at::Tensor& tensor, int from, int tag, std::chrono::milliseconds timeout,
                                         OnDone on_done = nullptr);

  void Abort() { aborted_ = true; }

 private:
  class Transfer;
  struct Header;
  struct Message;

  c10::intrusive_ptr<c10d::Work> Begin(c10::intrusive_ptr<Transfer> transfer);
  /// Moves what can be moved; whether anything did. Under mutex_.
  bool Progress();
  bool ProgressSend(Transfer& transfer);
  bool ProgressReceive(Transfer& transfer);
  bool Pump(int from);
  static void Deliver(const Message& message, int from, Transfer& transfer);
  void CompleteFutures();
  void Expire();
  /// Moves things in the calling thread until `transfer` is done.
  void RunUntil(Transfer& transfer, std::chrono::milliseconds timeout);
  void ThreadMain();

  Peers& peers_;
  std::mutex mutex_;
  std::list<c10::intrusive_ptr<Transfer>> sends_, receives_;   // under way, in order
  std::vector<std::unique_ptr<Message>> arriving_;             // by sender: begun, not whole yet
  std::vector<std::deque<std::unique_ptr<Message>>> arrived_;  // by sender: whole, not asked for yet
  std::vector<c10::intrusive_ptr<Transfer>> completed_;        // with futures that wait to be completed
  std::condition_variable wake_;
  std::thread thread_;
  bool stop_ = false;
  std::atomic<bool> aborted_{false};
  std::atomic<int> waiting_{0};  // callers that move things themselves
};

}  // namespace lockstep::shm
