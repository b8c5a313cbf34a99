#include "lockstep/comm/rendezvous.h"

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error_text.h"
#include "lockstep/base/host_name.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/comm/environment.h"
#include "lockstep/comm/internal/quiet_c10.h"

#include "lockstep/base/logging.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

/// Between two tries to reach a host that doesn't answer; of one try, until the log has said that there are several;
/// and before it does, since a try may give up somewhat early.
constexpr std::chrono::milliseconds kPause(500), kFirstTries(5000), kSayAfter(4000);

/// A try to connect to a closed port may take twice the time that it was given, and so much more: it sleeps longer and
/// longer in between. When it must be over at the latest, after all the time there is.
constexpr std::chrono::milliseconds kLate(2000), kLatest(10000);

/// Fills rank and world size from "rank=R&world_size=N".
absl::Status ReadQuery(const std::string& query, const std::string& url, int* rank, int* world_size) {
  for (const auto part : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> item = absl::StrSplit(part, absl::MaxSplits('=', 1));
    int* target = item.first == "rank" ? rank : item.first == "world_size" ? world_size : nullptr;
    if (target == nullptr || !absl::SimpleAtoi(item.second, target)) {
      return absl::InvalidArgumentError(
          absl::StrCat("rendezvous ", url, ": '", std::string(part), "' is neither rank=R nor world_size=N"));
    }
  }
  return absl::OkStatus();
}

using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// Connects to a store in a thread of its own, which may be left to itself: c10d waits without a limit for the first
/// word of what has taken its connection, and that may be another program.
std::future<StorePtr> Connect(const std::string& host, const c10d::TCPStoreOptions& options) {
  std::packaged_task<StorePtr()> task([=]() -> StorePtr { return c10::make_intrusive<c10d::TCPStore>(host, options); });
  std::future<StorePtr> store = task.get_future();
  std::thread(std::move(task)).detach();
  return store;
}

absl::StatusOr<StorePtr> OpenTcp(const std::string& host, int port, bool server, int world_size,
                                 std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  LOCKSTEP_RETURN_IF_ERROR(CheckHostName(host, timeout));
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(port);
  options.isServer = server;
  options.numWorkers = world_size;
  options.waitWorkers = false;  // the backend's own start waits for every rank
  const auto time_left = [&] { return std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()); };
  // Never 0, which would mean no limit.
  options.timeout = std::max(server ? time_left() : std::min(time_left(), kFirstTries), kPause);
  bool said = false;
  const QuietC10 quiet;
  while (true) {
    try {
      // Small systems know no name for the loopback interface.
      std::future<StorePtr> connecting = Connect(host == "localhost" ? "127.0.0.1" : host, options);
      const auto answer_by = std::min(Clock::now() + 2 * options.timeout + kLate, deadline + kLatest);
      if (connecting.wait_until(answer_by) != std::future_status::ready) {
        if (!server && time_left() > kPause && !std::exchange(said, true)) {
          LOG(INFO) << "rendezvous: no word from " << host << ":" << port
                    << " so far; is rank 0's store there? waiting for another " << time_left().count() / 1000 << " s";
        }
        if (connecting.wait_until(deadline) != std::future_status::ready) {
          return absl::UnavailableError(
              absl::StrCat("rendezvous: no word from ", host, ":", port, " within ", timeout.count(),
                           " ms: rank 0's store isn't there, or another program has its port"));
        }
      }
      StorePtr store = connecting.get();
      store->setTimeout(timeout);
      return store;
    } catch (const std::exception& e) {
      const std::string what = FirstLine(e.what());
      if (absl::StrContains(what, "EADDRINUSE") || absl::StrContains(what, "address already in use")) {
        return absl::UnavailableError(absl::StrCat("rendezvous: port ", port, " on ", host,
                                                   " is in use; choose another one, or 0 for a free one"));
      }
      // c10d tries again where the port is closed, but not where the host doesn't answer, which may come up later too.
      const auto left = time_left();
      if (server) {
        return absl::UnavailableError(
            absl::StrCat("rendezvous: rank 0 can't hold the store at port ", port, " of this host: ", what));
      }
      if (left <= kPause) {
        return absl::UnavailableError(absl::StrCat("rendezvous: no store at ", host, ":", port, " within ",
                                                   timeout.count(), " ms: ", what,
                                                   "; rank 0 holds it: does it run there?"));
      }
      if (Clock::now() + timeout >= deadline + kSayAfter && !std::exchange(said, true)) {
        LOG(INFO) << "rendezvous: no store at " << host << ":" << port << " so far: " << what
                  << "; rank 0 holds it; trying for another " << left.count() / 1000 << " s";
      }
      options.timeout = said ? left - kPause : std::min(left - kPause, kFirstTries);
      std::this_thread::sleep_for(kPause);
    }
  }
}

/// Who this process is, for another one to read.
std::string Myself() { return absl::StrCat(HostName(), " (process ", getpid(), ")"); }

/// What goes wrong where ranks are started by hand: two of one number, or another idea of how many there are. In a
/// store that rank 0 has made for this run.
absl::Status CheckIn(c10d::Store& store, int rank, int world_size) {
  const std::string world = std::to_string(world_size), world_key = "check_in/world_size", me = Myself();
  try {
    if (rank == 0) store.set(world_key, std::vector<uint8_t>(world.begin(), world.end()));
    if (const std::string first = store.get_to_str(world_key); first != world) {
      return absl::InvalidArgumentError(
          absl::StrCat("rendezvous: the world size is ", world_size, " here, and ", first, " on rank 0"));
    }
    const auto bytes = store.compareSet("check_in/rank/" + std::to_string(rank), std::vector<uint8_t>(),
                                        std::vector<uint8_t>(me.begin(), me.end()));
    const std::string other(bytes.begin(), bytes.end());
    if (other != me) {
      return absl::AlreadyExistsError(
          absl::StrCat("rendezvous: rank ", rank, " is there twice: ", other, ", and ", me));
    }
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("rendezvous: ", FirstLine(e.what())));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Rendezvous> OpenRendezvous(const std::string& init_method, int rank, int world_size,
                                          std::chrono::milliseconds timeout) {
  const std::pair<std::string, std::string> url = absl::StrSplit(init_method, absl::MaxSplits('?', 1));
  LOCKSTEP_RETURN_IF_ERROR(ReadQuery(url.second, init_method, &rank, &world_size));

  // env:// needs the whole environment; the other two only what the caller and the URL left open.
  DistributedEnvironment env;
  const bool from_env = url.first == "env://";
  if (from_env || rank < 0 || world_size < 0) {
    LOCKSTEP_ASSIGN_OR_RETURN(env, ReadEnvironment());
    if (!env.launched && (rank < 0 || world_size < 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("rendezvous ", init_method, ": ", rank < 0 ? "rank" : "world_size",
                       " is not given: say it in the options, in "
                       "the URL (?rank=R&world_size=N) or as RANK and WORLD_SIZE in the environment"));
    }
    if (rank < 0) rank = env.rank;
    if (world_size < 0) world_size = env.world_size;
  }
  if (world_size < 1 || rank < 0 || rank >= world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rendezvous ", init_method, ": rank ", rank, " is not in a world of ", world_size));
  }

  Rendezvous result;
  result.rank = rank;
  result.world_size = world_size;
  std::string_view rest = url.first;
  if (from_env) {
    if (env.master_addr.empty() || env.master_port == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("rendezvous env://: ", env.master_addr.empty() ? "MASTER_ADDR" : "MASTER_PORT", " is not set"));
    }
    result.host = WithoutBrackets(env.master_addr);
    LOCKSTEP_ASSIGN_OR_RETURN(
        result.store, OpenTcp(result.host, env.master_port, rank == 0 && !env.agent_store, world_size, timeout));
    // The launcher's store outlives the ranks: what those before a restart have left in it is none of ours.
    if (!env.agent_store) {
      LOCKSTEP_RETURN_IF_ERROR(CheckIn(*result.store, rank, world_size));
    } else {
      result.store =
          c10::make_intrusive<c10d::PrefixStore>(absl::StrCat("lockstep/restart_", env.restarts), result.store);
    }
    return result;
  }
  if (rest.substr(0, 6) == "tcp://") {
    rest.remove_prefix(6);
    if (!rest.empty() && rest.back() == '/') rest.remove_suffix(1);
    const auto colon = rest.rfind(':');
    int port = -1;
    if (colon == std::string_view::npos || colon == 0 ||
        !absl::SimpleAtoi(std::string(rest.substr(colon + 1)), &port) || port < 1 || port > 65535) {
      return absl::InvalidArgumentError(
          absl::StrCat("rendezvous ", init_method, ": want tcp://HOST:PORT with a port from 1 to 65535"));
    }
    const std::string host(rest.substr(0, colon));
    result.host = WithoutBrackets(host);
    if (result.host == host && host.find(':') != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat("rendezvous ", init_method,
                                                     ": an IPv6 address goes in brackets, as "
                                                     "in tcp://[::1]:29500"));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(result.store, OpenTcp(result.host, port, rank == 0, world_size, timeout));
    LOCKSTEP_RETURN_IF_ERROR(CheckIn(*result.store, rank, world_size));
    return result;
  }
  if (rest.substr(0, 7) == "file://") {
    rest.remove_prefix(7);
    if (rest.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("rendezvous ", init_method, ": want file:///PATH"));
    }
    // FileStore would try for minutes to open a file in a folder that isn't there.
    const std::string folder = std::filesystem::path(std::string(rest)).parent_path().string();
    if (access(folder.c_str(), W_OK | X_OK) != 0) {
      return absl::UnavailableError(
          absl::StrCat("rendezvous ", init_method, ": folder ", folder, ": ", std::strerror(errno)));
    }
    try {
      result.store = c10::make_intrusive<c10d::FileStore>(std::string(rest), world_size);
    } catch (const std::exception& e) {
      return absl::UnavailableError(absl::StrCat("rendezvous ", init_method, ": ", FirstLine(e.what())));
    }
    result.store->setTimeout(timeout);
    return result;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rendezvous ", init_method, ": unknown method; known: env://, tcp://HOST:PORT, file:///PATH"));
}

}  // namespace lockstep
