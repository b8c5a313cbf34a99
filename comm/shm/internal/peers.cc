#include "lockstep/comm/shm/internal/peers.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <c10/util/Exception.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>
#include <utility>

#include "lockstep/base/error_text.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/comm/meeting.h"

namespace lockstep::shm {
namespace {

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

std::string Problem(const char* what) { return absl::StrCat(what, ": ", std::strerror(errno)); }

/// An address without a file, in this network namespace.
socklen_t AbstractAddress(const std::string& name, sockaddr_un& address) {
  address = {};
  address.sun_family = AF_UNIX;
  const size_t length = std::min(name.size(), sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length);
}

struct Hello {
  uint64_t token = 0;  ///< Of the rank that is spoken to: nobody else can know it.
  int32_t rank = -1;
};

/// A descriptor that becomes readable when the process at the other end has ended, also when a child of it holds its
/// end of the socket; -1 where that can't be had.
int OpenProcess(int socket) {
  ucred credentials{};
  socklen_t length = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0 || credentials.pid <= 0) return -1;
  return static_cast<int>(syscall(SYS_pidfd_open, credentials.pid, 0));
}

bool SendWithFd(int socket, const void* data, size_t bytes, int fd, int flags) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | flags);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(bytes);
}

bool ReceiveWithFd(int socket, void* data, size_t bytes, int* fd, int flags) {
  *fd = -1;
  iovec part{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received;
  do {
    received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | flags);
  } while (received < 0 && errno == EINTR);
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS) {
      std::memcpy(fd, CMSG_DATA(header), sizeof(int));
    }
  }
  return received == static_cast<ssize_t>(bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Peers>> Peers::Connect(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                      int world_size, std::chrono::milliseconds timeout,
                                                      std::vector<int> names) {
  if (world_size > kMaxRanks) {
    return absl::FailedPreconditionError(absl::StrCat("shm: ", world_size, " ranks; at most ", kMaxRanks));
  }
  Meeting meeting(*store, "shm", rank, world_size, Meeting::Clock::now() + timeout, names);
  std::unique_ptr<Peers> peers(new Peers(rank, world_size, std::move(names)));
  std::random_device random;
  const auto number = [&] { return (static_cast<uint64_t>(random()) << 32) | random(); };
  const uint64_t token = number();
  std::string problem;

  // 1. Everyone has memory and listens.
  const std::string listens_at = absl::StrCat("lockstep-", absl::Hex(number(), absl::kZeroPad16), "-", rank);
  File listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address;
  const socklen_t length = AbstractAddress(listens_at, address);
  if (listener.get() < 0) {
    problem = Problem("socket");
  } else if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    problem = Problem("bind");
  } else if (listen(listener.get(), world_size) != 0) {
    problem = Problem("listen");
  }
  if (problem.empty()) {
    try {
      peers->segments_[rank] = Segment::Create(RankMemory::Bytes(world_size));
      RankMemory* memory = new (peers->segments_[rank].data()) RankMemory;
      for (int r = 0; r < world_size; ++r) new (&memory->pipes()[r]) Pipe;
      memory->token = token;
      sched_getaffinity(0, sizeof(memory->cores), &memory->cores);
      peers->memories_[rank] = memory;
    } catch (const std::exception& e) {
      problem = FirstLine(e.what());
    }
  }
  LOCKSTEP_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                            meeting.Exchange("here", absl::StrCat(token, " ", listens_at, " ", problem)));
  std::vector<uint64_t> tokens(world_size);
  std::vector<std::string> addresses(world_size);
  for (int r = 0; r < world_size; ++r) {
    const std::vector<std::string> parts = absl::StrSplit(all[r], absl::MaxSplits(' ', 2));
    if (parts.size() != 3)
      return absl::InternalError(absl::StrCat("shm: what rank ", peers->name(r), " left in the store is no address"));
    tokens[r] = std::strtoull(parts[0].c_str(), nullptr, 10);
    addresses[r] = parts[1];
    if (!parts[2].empty())
      return absl::FailedPreconditionError(absl::StrCat("shm: rank ", peers->name(r), ": ", parts[2]));
  }

  // 2. Everyone connects to the ranks below; the kernel keeps the connections until they are accepted.
  for (int r = 0; r < rank && problem.empty(); ++r) {
    peers->sockets_[r] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const socklen_t peer_length = AbstractAddress(addresses[r], address);
    const Hello hello{tokens[r], rank};
    if (peers->sockets_[r] < 0 ||
        connect(peers->sockets_[r], reinterpret_cast<sockaddr*>(&address), peer_length) != 0 ||
        !SendWithFd(peers->sockets_[r], &hello, sizeof(hello), -1, 0)) {
      problem = Problem(absl::StrCat("rank ", peers->name(r), " is out of reach on this host").c_str());
    }
  }
  LOCKSTEP_RETURN_IF_ERROR(meeting.Agree("connected", problem));

  // 3. Everyone accepts the ranks above, then passes its memory around.
  try {
    for (int left = world_size - 1 - rank; left > 0;) {
      File accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      TORCH_CHECK(accepted.get() >= 0 || errno == EINTR, Problem("accept"));
      if (accepted.get() < 0) continue;
      int fd = -1;
      Hello hello;  // it is there already
      const bool greeted = ReceiveWithFd(accepted.get(), &hello, sizeof(hello), &fd, MSG_DONTWAIT);
      if (fd >= 0) close(fd);
      const bool known = greeted && hello.token == token && hello.rank > rank && hello.rank < world_size;
      if (!known || peers->sockets_[hello.rank] >= 0) continue;  // a stranger
      peers->sockets_[hello.rank] = accepted.release();
      --left;
    }
    const timeval patience{std::chrono::duration_cast<std::chrono::seconds>(timeout).count() + 1, 0};
    for (int r = 0; r < world_size; ++r) {
      if (r == rank) continue;
      setsockopt(peers->sockets_[r], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
      peers->processes_[r] = OpenProcess(peers->sockets_[r]);
    }
    // One to each, in turn: a user's descriptors on their way are limited.
    for (int distance = 1; distance < world_size; ++distance) {
      const int to = (rank + distance) % world_size, from = (rank + world_size - distance) % world_size;
      const Hello mine{tokens[to], rank};
      TORCH_CHECK(SendWithFd(peers->sockets_[to], &mine, sizeof(mine), peers->segments_[rank].fd(), 0),
                  Problem("passing memory"));
      int fd = -1;
      Hello hello;
      TORCH_CHECK(ReceiveWithFd(peers->sockets_[from], &hello, sizeof(hello), &fd, 0), "no memory from rank ",
                  peers->name(from));
      TORCH_CHECK(fd >= 0, "the descriptor of rank ", peers->name(from),
                  "'s memory did not arrive; is the limit of open files "
                  "(ulimit -n) reached?");
      peers->segments_[from] = Segment::Map(fd, RankMemory::Bytes(world_size));
      peers->memories_[from] = reinterpret_cast<RankMemory*>(peers->segments_[from].data());
      TORCH_CHECK(peers->memories_[from]->token == tokens[from], "what rank ", peers->name(from),
                  " passed is not its memory");
    }
  } catch (const std::exception& e) {
    problem = FirstLine(e.what());
    // So that nobody waits for what won't come.
    close(listener.release());
    for (int& socket : peers->sockets_) {
      if (socket >= 0) close(std::exchange(socket, -1));
    }
  }
  peers->segments_[rank].CloseFd();
  LOCKSTEP_RETURN_IF_ERROR(meeting.Agree("mapped", problem));

  cpu_set_t cores;
  CPU_ZERO(&cores);
  for (RankMemory* memory : peers->memories_) CPU_OR(&cores, &cores, &memory->cores);
  const char* local = std::getenv("LOCAL_WORLD_SIZE");  // a sub-group isn't alone on its host
  const int ranks = std::max(world_size, local == nullptr ? 0 : std::atoi(local));
  peers->fit_cores_ = ranks <= CPU_COUNT(&cores);
  return peers;
}

Peers::~Peers() {
  if (memories_[rank_] != nullptr) {
    if (mine().state.load() != RankState::kFailed) mine().state.store(RankState::kLeft);
  }
  for (int process : processes_) {
    if (process >= 0) close(process);
  }
  for (int socket : sockets_) {
    if (socket >= 0) close(socket);
  }
}

std::optional<std::string> Peers::WhyGone(int peer) {
  pollfd ends[] = {{sockets_[peer], POLLRDHUP, 0}, {processes_[peer], POLLIN, 0}};
  const bool ended = poll(ends, 2, 0) > 0 &&
                     ((ends[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0 || (ends[1].revents & POLLIN) != 0);
  switch (memory(peer).state.load(std::memory_order_acquire)) {
    case RankState::kFailed: return absl::StrCat("rank ", memory(peer).culprit, " gave up: ", memory(peer).reason);
    case RankState::kLeft: return absl::StrCat("rank ", name(peer), " has left the group");
    case RankState::kHere:
    case RankState::kLeaving: break;
  }
  if (!ended) return std::nullopt;
  return absl::StrCat("rank ", name(peer), " is gone (its process has ended)");
}

void Peers::Fail(const std::string& reason) {
  const std::lock_guard<std::mutex> lock(fail_mutex_);
  if (mine().state.load() != RankState::kHere) return;
  // Who fails because another has failed passes on what that one said.
  const RankMemory* first = nullptr;
  for (const RankMemory* memory : memories_) {
    if (memory->state.load(std::memory_order_acquire) == RankState::kFailed) first = memory;
  }
  mine().culprit = first != nullptr ? first->culprit : name(rank_);
  const std::string text = first != nullptr ? first->reason : reason;
  text.copy(mine().reason, sizeof(mine().reason) - 1);
  mine().state.store(RankState::kFailed, std::memory_order_release);
  mine().round.WakeAll();
  for (RankMemory* memory : memories_) memory->mail.Bump();
}

void Peers::Leave() {
  RankState here = RankState::kHere;
  mine().state.compare_exchange_strong(here, RankState::kLeaving);
  for (RankMemory* memory : memories_) memory->mail.Bump();
}

bool Peers::Send(int peer, const Message& message, int fd) {
  return SendWithFd(sockets_[peer], &message, sizeof(message), fd, MSG_DONTWAIT);
}

Peers::Message Peers::Receive(int peer, int* fd) {
  Message message;
  TORCH_CHECK_WITH(DistBackendError, ReceiveWithFd(sockets_[peer], &message, sizeof(message), fd, 0),
                   "shm: ", WhyGone(peer).value_or(absl::StrCat("rank ", name(peer), " does not answer")));
  return message;
}

}  // namespace lockstep::shm
