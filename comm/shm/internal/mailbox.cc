#include "lockstep/comm/shm/internal/mailbox.h"

#include <ATen/core/ivalue.h>
#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

namespace lockstep::shm {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two looks at who is gone and what is late.
constexpr auto kLook = std::chrono::milliseconds(100);

/// As much as fits; the number of bytes.
uint64_t Write(Pipe& pipe, const char* data, uint64_t bytes) {
  const uint64_t written = pipe.written.load(std::memory_order_relaxed);
  const uint64_t room = kPipeBytes - (written - pipe.read.load(std::memory_order_acquire));
  bytes = std::min(bytes, room);
  const uint64_t at = written % kPipeBytes, first = std::min(bytes, kPipeBytes - at);
  std::memcpy(pipe.bytes + at, data, first);
  std::memcpy(pipe.bytes, data + first, bytes - first);
  pipe.written.store(written + bytes, std::memory_order_release);
  return bytes;
}

uint64_t Read(Pipe& pipe, char* data, uint64_t bytes) {
  const uint64_t read = pipe.read.load(std::memory_order_relaxed);
  bytes = std::min(bytes, pipe.written.load(std::memory_order_acquire) - read);
  const uint64_t at = read % kPipeBytes, first = std::min(bytes, kPipeBytes - at);
  std::memcpy(data, pipe.bytes + at, first);
  std::memcpy(data + first, pipe.bytes, bytes - first);
  pipe.read.store(read + bytes, std::memory_order_release);
  return bytes;
}

}  // namespace

struct Mailbox::Header {
  int64_t bytes = 0;
  int32_t tag = 0;
  int32_t dtype = 0;
};

/// A message on its way in: to the tensor that waits for it, or to memory of its own.
struct Mailbox::Message {
  Header header;
  uint64_t header_bytes = 0;  ///< Received so far.
  int64_t body_bytes = 0;
  c10::intrusive_ptr<Transfer> receiver;
  std::vector<char> body;
  bool lost = false;      ///< There was no memory for it: it is only taken out of the pipe.
  bool unwanted = false;  ///< Likewise, since its receive has failed meanwhile.
  bool whole() const { return header_bytes == sizeof(Header) && body_bytes == header.bytes; }
};

class Mailbox::Transfer : public c10d::Work {
 public:
  Transfer(Mailbox& mailbox, int rank, c10d::OpType operation, at::Tensor data, int other, int tag_,
           std::chrono::milliseconds timeout, OnDone on_done)
      : Work(rank, operation),
        tensor(std::move(data)),
        peer(other),
        tag(tag_),
        limit(timeout),
        deadline(Clock::now() + timeout),
        mailbox_(mailbox),
        on_done_(std::move(on_done)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    if (!done.load(std::memory_order_acquire)) mailbox_.RunUntil(*this, timeout);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (exception_) std::rethrow_exception(exception_);
    return true;
  }
  bool isCompleted() override { return done.load(std::memory_order_acquire); }
  bool isSuccess() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return completed_ && !exception_;
  }
  int sourceRank() const override { return peer; }
  std::vector<at::Tensor> result() override { return {tensor}; }
  void synchronize() override {}
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    std::unique_lock<std::mutex> lock(mutex_);
    if (future_) return future_;
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    const bool completed = completed_;  // then nobody else completes the future
    lock.unlock();
    if (completed) CompleteFuture();
    return future_;
  }

  /// Under the mailbox's mutex, as all that follows.
  void Finish(std::exception_ptr error, const std::string& why = "") {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (completed_) return;  // it failed before its message was whole
      completed_ = true;
      exception_ = std::move(error);
      done.store(true, std::memory_order_release);
      // What hangs on the future may use this mailbox.
      if (future_) mailbox_.completed_.push_back(c10::intrusive_ptr<Transfer>::reclaim_copy(this));
    }
    cv_.notify_all();
    if (on_done_) on_done_(why);
  }
  void CompleteFuture() {
    if (exception_) {
      future_->setError(exception_);
    } else {
      future_->markCompleted(std::vector<at::Tensor>{tensor});
    }
  }
  void Fail(const std::string& why) {
    try {
      TORCH_CHECK_WITH(DistBackendError, false, "shm: ", Name(), why);
    } catch (...) {
      Finish(std::current_exception(), why);
    }
  }
  std::string Name() const {
    return absl::StrCat(c10d::opTypeToString(opType_), opType_ == c10d::OpType::SEND ? " to rank " : " from ",
                        opType_ == c10d::OpType::SEND ? ""
                        : peer < 0                    ? "any rank"
                                                      : "rank ",
                        peer < 0 ? "" : std::to_string(peer), " (tag ", tag, ", ", c10::toString(tensor.scalar_type()),
                        ", ", tensor.numel(), " elements)");
  }

  const at::Tensor tensor;
  int peer;  ///< Under the mailbox's mutex until it is done.
  const int tag;
  const std::chrono::milliseconds limit;
  const Clock::time_point deadline;
  uint64_t moved = 0;    ///< Of a send: bytes, with the header.
  bool matched = false;  ///< Of a receive: its message has begun to come.
  bool over = false;     ///< Nothing is left to move. A send that failed half-way goes on, for the sake of the next.
  std::atomic<bool> done{false};

 private:
  Mailbox& mailbox_;
  const OnDone on_done_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

Mailbox::Mailbox(Peers& peers) : peers_(peers), arriving_(peers.size()), arrived_(peers.size()) {}

Mailbox::~Mailbox() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  peers_.Leave();
  if (thread_.joinable()) thread_.join();
}

c10::intrusive_ptr<c10d::Work> Mailbox::Send(const at::Tensor& tensor, int to, int tag,
                                             std::chrono::milliseconds timeout, OnDone on_done) {
  return Begin(c10::make_intrusive<Transfer>(*this, peers_.rank(), c10d::OpType::SEND, tensor, to, tag, timeout,
                                             std::move(on_done)));
}

c10::intrusive_ptr<c10d::Work> Mailbox::Receive(const at::Tensor& tensor, int from, int tag,
                                                std::chrono::milliseconds timeout, OnDone on_done) {
  const auto operation = from < 0 ? c10d::OpType::RECVANYSOURCE : c10d::OpType::RECV;
  return Begin(
      c10::make_intrusive<Transfer>(*this, peers_.rank(), operation, tensor, from, tag, timeout, std::move(on_done)));
}

c10::intrusive_ptr<c10d::Work> Mailbox::Begin(c10::intrusive_ptr<Transfer> transfer) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    (transfer->retrieveOpType() == c10d::OpType::SEND ? sends_ : receives_).push_back(transfer);
    Progress();
    if (!transfer->done.load() && !thread_.joinable()) thread_ = std::thread([this] { ThreadMain(); });
  }
  wake_.notify_one();
  return transfer;
}

bool Mailbox::ProgressSend(Transfer& transfer) {
  Pipe& pipe = peers_.mine().pipes()[transfer.peer];
  const Header header{static_cast<int64_t>(transfer.tensor.nbytes()), transfer.tag,
                      static_cast<int32_t>(transfer.tensor.scalar_type())};
  const uint64_t before = transfer.moved, all = sizeof(header) + static_cast<uint64_t>(header.bytes);
  if (transfer.moved < sizeof(header)) {
    transfer.moved +=
        Write(pipe, reinterpret_cast<const char*>(&header) + transfer.moved, sizeof(header) - transfer.moved);
  }
  if (transfer.moved >= sizeof(header)) {
    const uint64_t body = transfer.moved - sizeof(header);
    transfer.moved += Write(pipe, static_cast<const char*>(transfer.tensor.data_ptr()) + body, all - transfer.moved);
  }
  if (transfer.moved != before) peers_.memory(transfer.peer).mail.Bump();
  if (transfer.moved == all) {
    transfer.over = true;
    transfer.Finish(nullptr);
  }
  return transfer.moved != before;
}

/// Takes what `from` has sent, whoever it is for.
bool Mailbox::Pump(int from) {
  Pipe& pipe = peers_.memory(from).pipes()[peers_.rank()];
  bool moved = false;
  while (true) {
    std::unique_ptr<Message>& message = arriving_[from];
    uint64_t bytes = 0;
    if (!message) message = std::make_unique<Message>();
    if (message->header_bytes < sizeof(Header)) {
      bytes = Read(pipe, reinterpret_cast<char*>(&message->header) + message->header_bytes,
                   sizeof(Header) - message->header_bytes);
      message->header_bytes += bytes;
      if (message->header_bytes == sizeof(Header)) {
        // To the first receive that fits, else to be put aside.
        for (const auto& transfer : receives_) {
          if (!transfer->matched && !transfer->done.load() && transfer->tag == message->header.tag &&
              (transfer->peer == from || transfer->peer < 0)) {
            transfer->matched = true;
            transfer->peer = from;
            message->receiver = transfer;
            break;
          }
        }
        const bool fits =
            message->receiver && message->header.bytes == static_cast<int64_t>(message->receiver->tensor.nbytes());
        if (!fits) {
          try {
            message->body.resize(static_cast<size_t>(message->header.bytes));
          } catch (const std::bad_alloc&) {
            message->lost = true;
          }
        }
      }
    }
    if (message->header_bytes == sizeof(Header) && !message->whole()) {
      char nowhere[4096];
      uint64_t room = static_cast<uint64_t>(message->header.bytes - message->body_bytes);
      char* to = nowhere;
      if (message->lost || message->unwanted) {
        room = std::min<uint64_t>(room, sizeof(nowhere));
      } else {
        to = (message->body.empty() ? static_cast<char*>(message->receiver->tensor.data_ptr()) : message->body.data()) +
             message->body_bytes;
      }
      const uint64_t part = Read(pipe, to, room);
      message->body_bytes += static_cast<int64_t>(part);
      bytes += part;
    }
    moved |= bytes > 0;
    if (!message->whole()) {
      if (bytes > 0) continue;
      break;
    }
    std::unique_ptr<Message> whole = std::move(message);
    if (whole->receiver) {
      Deliver(*whole, from, *whole->receiver);
    } else if (!whole->unwanted) {
      arrived_[from].push_back(std::move(whole));
      // Its receive may have been begun since it began to come; no later message may overtake it.
      for (const auto& transfer : receives_) ProgressReceive(*transfer);
    }
  }
  if (moved) peers_.memory(from).mail.Bump();
  return moved;
}

/// Ends a receive with its whole message.
void Mailbox::Deliver(const Message& message, int from, Transfer& transfer) {
  const Header& header = message.header;
  if (header.bytes != static_cast<int64_t>(transfer.tensor.nbytes()) ||
      header.dtype != static_cast<int32_t>(transfer.tensor.scalar_type())) {
    transfer.Fail(absl::StrCat(": rank ", from, " sent ", header.bytes, " bytes of ",
                               c10::toString(static_cast<c10::ScalarType>(header.dtype))));
  } else if (message.lost) {
    transfer.Fail(absl::StrCat(": rank ", from, " sent ", header.bytes,
                               " bytes before this was called, for which there was no memory"));
  } else {
    if (!message.body.empty()) std::memcpy(transfer.tensor.data_ptr(), message.body.data(), message.body.size());
    transfer.Finish(nullptr);
  }
}

/// Looks among what was put aside.
bool Mailbox::ProgressReceive(Transfer& transfer) {
  if (transfer.matched || transfer.done.load()) return false;
  for (int from = 0; from < peers_.size(); ++from) {
    if (transfer.peer >= 0 && transfer.peer != from) continue;
    for (auto message = arrived_[from].begin(); message != arrived_[from].end(); ++message) {
      if ((*message)->header.tag != transfer.tag) continue;
      transfer.matched = true;
      transfer.peer = from;
      Deliver(**message, from, transfer);
      arrived_[from].erase(message);
      return true;
    }
  }
  return false;
}

bool Mailbox::Progress() {
  bool moved = false;
  // One message at a time goes to each rank, the first of the list.
  std::vector<bool> busy(peers_.size(), false);
  for (const auto& transfer : sends_) {
    if (busy[transfer->peer]) continue;
    moved |= ProgressSend(*transfer);
    busy[transfer->peer] = !transfer->over;
  }
  for (const auto& transfer : receives_) moved |= ProgressReceive(*transfer);
  for (int r = 0; r < peers_.size(); ++r) {
    const bool wanted = std::any_of(receives_.begin(), receives_.end(), [&](const auto& transfer) {
      return !transfer->done.load() && (transfer->peer < 0 || transfer->peer == r);
    });
    if (wanted) moved |= Pump(r);
  }
  sends_.remove_if([](const auto& transfer) { return transfer->over; });
  receives_.remove_if([](const auto& transfer) { return transfer->done.load(); });
  CompleteFutures();
  if (moved && waiting_.load() > 0) peers_.mine().mail.Bump();
  return moved;
}

/// Fails what can't be done any more.
void Mailbox::Expire() {
  const auto now = Clock::now();
  const auto why_not = [&](const Transfer& transfer) -> std::optional<std::string> {
    const bool sends = transfer.retrieveOpType() == c10d::OpType::SEND;
    if (aborted_.load()) return ": aborted";
    if (stop_ && !sends) return ": its group is gone";
    if (transfer.peer >= 0 && transfer.peer != peers_.rank()) {
      if (sends && peers_.memory(transfer.peer).state.load() == RankState::kLeaving) {
        return absl::StrCat(": rank ", transfer.peer, " has left the group");
      }
      if (const auto why = peers_.WhyGone(transfer.peer)) return ": " + *why;
    } else if (transfer.peer < 0) {  // from anyone: as long as there is anyone
      std::optional<std::string> why;
      for (int r = 0; r < peers_.size(); ++r) {
        if (r == peers_.rank()) continue;
        why = peers_.WhyGone(r);
        if (!why) break;
      }
      if (why) return ": " + *why;
    }
    if (now < transfer.deadline) return std::nullopt;
    return absl::StrCat(" timed out after ", transfer.limit.count(), " ms");
  };
  std::vector<std::pair<c10::intrusive_ptr<Transfer>, std::string>> failed;
  for (auto* list : {&sends_, &receives_}) {
    for (const auto& transfer : *list) {
      if (const auto why = why_not(*transfer)) failed.emplace_back(transfer, *why);
    }
  }
  if (failed.empty()) return;
  while (Progress()) {  // what came before the end counts
  }
  for (const auto& [transfer, why] : failed) {
    if (transfer->done.load() && transfer->retrieveOpType() != c10d::OpType::SEND) continue;
    transfer->Fail(why);
    // What is still to come must not be written to a tensor that is the caller's again.
    for (const auto& message : arriving_) {
      if (message && message->receiver == transfer) {
        message->receiver.reset();
        message->unwanted = true;
      }
    }
    // Half a message must become whole, if there is still anybody to read it.
    transfer->over = transfer->moved == 0 || stop_ || aborted_.load() || peers_.WhyGone(transfer->peer).has_value();
  }
  sends_.remove_if([](const auto& transfer) { return transfer->over; });
  receives_.remove_if([](const auto& transfer) { return transfer->done.load(); });
  CompleteFutures();
}

void Mailbox::RunUntil(Transfer& transfer, std::chrono::milliseconds timeout) {
  const Waiter waiter(peers_.fit_cores());
  const auto begin = Clock::now();
  auto next_look = begin + kLook;
  struct Counted {
    explicit Counted(std::atomic<int>& counter) : count(counter) { ++count; }
    ~Counted() { --count; }
    std::atomic<int>& count;
  } counted(waiting_);
  while (!transfer.done.load(std::memory_order_acquire)) {
    const uint32_t mail = peers_.mine().mail.value.load();
    bool moved;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      moved = Progress();
      if (const auto now = Clock::now(); now >= next_look) {
        next_look = now + kLook;
        Expire();
      }
    }
    if (moved || transfer.done.load()) continue;
    if (timeout != kNoTimeout && Clock::now() >= begin + timeout) break;
    waiter.WaitOnce(peers_.mine().mail, mail + 1);
  }
  TORCH_CHECK_WITH(DistBackendError, transfer.done.load(), "shm: ", transfer.Name(), ": wait timed out after ",
                   timeout.count(), " ms");
}

/// Under the mutex. In a thread of its own: what hangs on a future may wait for another message.
void Mailbox::CompleteFutures() {
  if (completed_.empty()) return;
  std::thread([completed = std::move(completed_)] {
    for (const auto& transfer : completed) transfer->CompleteFuture();
  }).detach();
  completed_.clear();
}

void Mailbox::ThreadMain() {
  c10::setThreadName("lockstep_shm");
  const Waiter waiter(/*spin=*/false);
  std::unique_lock<std::mutex> lock(mutex_);
  auto next_look = Clock::now() + kLook;
  while (true) {
    if (sends_.empty() && receives_.empty()) {
      if (stop_) return;
      wake_.wait(lock);
      continue;
    }
    if (waiting_.load() > 0) {  // they move things for all
      wake_.wait_for(lock, std::chrono::milliseconds(1));
      continue;
    }
    const uint32_t mail = peers_.mine().mail.value.load();
    const bool moved = Progress();
    if (const auto now = Clock::now(); stop_ || now >= next_look) {
      next_look = now + kLook;
      Expire();
    }
    if (moved) continue;
    lock.unlock();
    waiter.WaitOnce(peers_.mine().mail, mail + 1);
    lock.lock();
  }
}

}  // namespace lockstep::shm
