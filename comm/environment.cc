#include "lockstep/comm/environment.h"

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <netdb.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "lockstep/base/status_macros.h"

namespace lockstep {
namespace {

std::string Get(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

absl::StatusOr<int> GetInt(const char* name, int low, int high) {
  const std::string text = Get(name);
  if (text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "environment: ", name, " is not set; a launcher (lockstep_run, torchrun) sets it, or set it by hand"));
  }
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < low || value > high) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment: ", name, "=", text, " must be a number from ", low, " to ", high));
  }
  return value;
}

/// The process that started this one, by its number and the time of its start.
std::string Parent() {
  const std::string parent = std::to_string(getppid());
  std::ifstream file("/proc/" + parent + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  // The name, which may hold anything, is in parentheses; the start is the 20th word after it.
  const size_t name_end = text.rfind(')');
  std::istringstream words(name_end == std::string::npos ? "" : text.substr(name_end + 1));
  std::string start;
  for (int i = 0; i < 20; ++i) words >> start;
  return parent + "-" + start;
}

}  // namespace

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host == "[::1]" || absl::StartsWith(host, "127.");
}

absl::Status CheckHostName(const std::string& host) {
  if (host == "localhost") return absl::OkStatus();  // meant even where nothing resolves it
  for (int attempt = 0;; ++attempt) {
    addrinfo* found = nullptr;
    const int code = getaddrinfo(host.c_str(), nullptr, nullptr, &found);
    if (code == 0) {
      freeaddrinfo(found);
      return absl::OkStatus();
    }
    if (attempt == 8) {
      return absl::UnavailableError(
          absl::StrCat("rendezvous: host ", host, " can't be resolved: ", gai_strerror(code)));
    }
    std::this_thread::sleep_for(std::chrono::seconds(1));
  }
}

absl::StatusOr<DistributedEnvironment> ReadEnvironment() {
  DistributedEnvironment env;
  if (Get("RANK").empty() && Get("WORLD_SIZE").empty()) return env;
  constexpr int kMaxWorld = 1 << 20;
  env.launched = true;
  LOCKSTEP_ASSIGN_OR_RETURN(env.world_size, GetInt("WORLD_SIZE", 1, kMaxWorld));
  LOCKSTEP_ASSIGN_OR_RETURN(env.rank, GetInt("RANK", 0, env.world_size - 1));
  env.master_addr = Get("MASTER_ADDR");
  if (!Get("MASTER_PORT").empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(env.master_port, GetInt("MASTER_PORT", 0, 65535));
  }
  env.agent_store = Get("TORCHELASTIC_USE_AGENT_STORE") == "True";
  env.launch_id = Get("TORCHELASTIC_RUN_ID");
  if (env.launch_id.empty() || env.launch_id == "none") env.launch_id = Parent();  // torchrun's for "not given"
  if (!Get("TORCHELASTIC_RESTART_COUNT").empty()) {
    LOCKSTEP_ASSIGN_OR_RETURN(env.restarts, GetInt("TORCHELASTIC_RESTART_COUNT", 0, 1 << 30));
  }

  const bool one_host = env.world_size == 1 || IsLoopback(env.master_addr);
  if (Get("LOCAL_WORLD_SIZE").empty()) {
    env.local_world_size = one_host ? env.world_size : 1;
  } else {
    LOCKSTEP_ASSIGN_OR_RETURN(env.local_world_size, GetInt("LOCAL_WORLD_SIZE", 1, env.world_size));
  }
  if (Get("LOCAL_RANK").empty()) {
    if (!one_host) {
      return absl::InvalidArgumentError(
          absl::StrCat("environment: LOCAL_RANK is not set, and MASTER_ADDR=", env.master_addr,
                       " may mean several hosts; set it to this process's number on its host"));
    }
    env.local_rank = env.rank;
  } else {
    const int high = Get("LOCAL_WORLD_SIZE").empty() ? env.world_size - 1 : env.local_world_size - 1;
    LOCKSTEP_ASSIGN_OR_RETURN(env.local_rank, GetInt("LOCAL_RANK", 0, high));
  }
  return env;
}

}  // namespace lockstep
