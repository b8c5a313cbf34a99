// Starts one process per rank on this host, as torchrun does:
//   lockstep_run --nproc_per_node=2 [--standalone] [--master_addr=HOST] [--master_port=PORT]
//     [--max_restarts=N] [--stop_grace=SECONDS] [--stop_exit_code=N] PROGRAM [ARGUMENTS]

#include <absl/status/status.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/base/cores.h"
#include "lockstep/launch/port.h"
#include "lockstep/launch/spawn.h"

namespace {

constexpr char kUsage[] =
    "usage: lockstep_run [options] PROGRAM [ARGUMENTS]\n"
    "  --nproc_per_node=N    ranks to start on this host (default 1; cpu: one per core)\n"
    "  --standalone          meet on a free port of this host, whatever --master_addr and --master_port say\n"
    "  --master_addr=HOST    host of rank 0 (default localhost)\n"
    "  --master_port=PORT    port of rank 0's store (default 29500; 0: a free one)\n"
    "  --max_restarts=N      start all ranks again after a failure, so often (default 0)\n"
    "  --stop_grace=SECONDS  that ranks have to end by themselves after SIGTERM, SIGINT or SIGHUP, which are passed on "
    "to\n"
    "                        them (default 30); a second signal ends them at once\n"
    "  --stop_exit_code=N    ranks that end with it have been stopped and want to be started again later, which is no\n"
    "                        failure (default 75)\n"
    "Hyphens may stand for underscores, and a value may be an argument of its own.\n";

int Fail(const std::string& message) {
  std::fprintf(stderr, "error: %s\n", message.c_str());
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> values = {
      {"nproc_per_node", "1"}, {"master_addr", "localhost"}, {"master_port", "29500"}, {"standalone", ""},
      {"max_restarts", "0"},   {"stop_grace", "30"},         {"stop_exit_code", "75"}};
  int i = 1;
  for (; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      std::fputs(kUsage, stdout);
      return 0;
    }
    if (argument == "--") {
      ++i;
      break;
    }
    if (argument.rfind("--", 0) != 0) break;
    const auto equals = argument.find('=');
    std::string name = argument.substr(2, equals == std::string::npos ? std::string::npos : equals - 2);
    std::replace(name.begin(), name.end(), '-', '_');
    const auto found = values.find(name);
    if (found == values.end()) return Fail(absl::StrCat("unknown option --", name, "; see lockstep_run --help"));
    if (name == "standalone") {
      if (equals != std::string::npos) return Fail("--standalone takes no value");
      found->second = "yes";
    } else if (equals != std::string::npos) {
      found->second = argument.substr(equals + 1);
    } else if (++i < argc) {
      found->second = argv[i];
    } else {
      return Fail(absl::StrCat("--", name, " needs a value"));
    }
  }
  if (i >= argc) return Fail("no program to run; see lockstep_run --help");

  lockstep::SpawnOptions options;
  if (values["nproc_per_node"] == "cpu" || values["nproc_per_node"] == "auto") {
    options.num_ranks = lockstep::AvailableCores();
  } else if (!absl::SimpleAtoi(values["nproc_per_node"], &options.num_ranks) || options.num_ranks < 1 ||
             options.num_ranks > 4096) {
    return Fail(absl::StrCat("--nproc_per_node=", values["nproc_per_node"], ": want a number from 1 to 4096, or cpu"));
  }
  if (!absl::SimpleAtoi(values["max_restarts"], &options.max_restarts) || options.max_restarts < 0) {
    return Fail(absl::StrCat("--max_restarts=", values["max_restarts"], ": want a number from 0 on"));
  }
  if (!absl::SimpleAtoi(values["stop_exit_code"], &options.stop_code) || options.stop_code < 1 ||
      options.stop_code > 255) {
    return Fail(absl::StrCat("--stop_exit_code=", values["stop_exit_code"], ": want a number from 1 to 255"));
  }
  double stop_grace = 0;
  if (!absl::SimpleAtod(values["stop_grace"], &stop_grace) || !(stop_grace >= 0 && stop_grace <= 1e7)) {
    return Fail(absl::StrCat("--stop_grace=", values["stop_grace"], ": want seconds from 0 to 1e7"));
  }
  options.stop_grace = std::chrono::milliseconds(static_cast<int64_t>(stop_grace * 1000));
  int port = 0;
  if (!absl::SimpleAtoi(values["master_port"], &port) || port < 0 || port > 65535) {
    return Fail(absl::StrCat("--master_port=", values["master_port"], ": want a number from 0 to 65535"));
  }
  const bool standalone = !values["standalone"].empty();
  const auto reserved = lockstep::ReservedPort::Reserve(standalone ? 0 : port);
  if (!reserved.ok()) return Fail(std::string(reserved.status().message()));
  options.master_addr = standalone ? "localhost" : values["master_addr"];
  options.master_port = reserved->port();
  options.argv.assign(argv + i, argv + argc);
  return lockstep::SpawnRanks(options);
}
