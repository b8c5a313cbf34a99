#include "lockstep/launch/internal/launcher_options.h"

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>

#include "lockstep/base/cores.h"
#include "lockstep/base/host_name.h"
#include "lockstep/base/status_macros.h"
#include "lockstep/launch/internal/core_binding.h"
#include "lockstep/launch/internal/endpoint.h"
#include "lockstep/launch/internal/gpu_count.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

absl::Status Wrong(const Arguments& arguments, const std::string& name, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat(arguments.Quote(name), ": ", what));
}

/// Names of hosts come out of other programs, with blanks and ends of lines.
std::string Stripped(const Arguments& arguments, const std::string& name) {
  return std::string(absl::StripAsciiWhitespace(arguments.Get(name)));
}

absl::StatusOr<int> Number(const Arguments& arguments, const std::string& name, int low, int high) {
  int value = 0;
  if (!absl::SimpleAtoi(arguments.Get(name), &value) || value < low || value > high) {
    return Wrong(arguments, name, absl::StrCat("want a number from ", low, " to ", high));
  }
  return value;
}

absl::StatusOr<milliseconds> Seconds(const Arguments& arguments, const std::string& name) {
  double value = 0;
  if (!absl::SimpleAtod(arguments.Get(name), &value) || !(value >= 0 && value <= 1e7)) {
    return Wrong(arguments, name, "want seconds from 0 to 1e7");
  }
  return milliseconds(static_cast<int64_t>(value * 1000));
}

absl::Status OneOf(const Arguments& arguments, const std::string& name, const std::vector<std::string>& known) {
  const std::string& value = arguments.Get(name);
  if (std::find(known.begin(), known.end(), value) != known.end()) return absl::OkStatus();
  return Wrong(arguments, name, "want " + absl::StrJoin(known, " or "));
}

absl::StatusOr<int> RanksHere(const Arguments& arguments) {
  const std::string& text = arguments.Get("nproc_per_node");
  if (text == "cpu") return AvailableCores();
  if (text == "auto" || text == "gpu") {
    LOCKSTEP_ASSIGN_OR_RETURN(const int gpus, CountGpus());
    if (gpus > 0) return gpus;
    if (text == "auto") return AvailableCores();
    return Wrong(arguments, "nproc_per_node", "there is no GPU here; give a number, cpu or auto");
  }
  if (text == "xpu") return Wrong(arguments, "nproc_per_node", "only NVIDIA's GPUs are known; give a number");
  int value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 1 || value > 4096) {
    return Wrong(arguments, "nproc_per_node", "want a number from 1 to 4096, or gpu, cpu or auto");
  }
  return value;
}

absl::Status ReadSignals(const Arguments& arguments, LaunchPlan& plan) {
  static const std::map<std::string, int> kKnown = {{"SIGTERM", SIGTERM}, {"SIGINT", SIGINT},    {"SIGHUP", SIGHUP},
                                                    {"SIGQUIT", SIGQUIT}, {"SIGUSR1", SIGUSR1},  {"SIGUSR2", SIGUSR2},
                                                    {"SIGCONT", SIGCONT}, {"SIGWINCH", SIGWINCH}};
  plan.signals_text = arguments.Get("signals_to_handle");
  plan.signals = {SIGUSR1};
  for (const auto part : absl::StrSplit(plan.signals_text, ',')) {
    const std::string name(absl::StripAsciiWhitespace(part));
    const auto found = kKnown.find(name);
    if (found == kKnown.end()) {
      return Wrong(arguments, "signals_to_handle", absl::StrCat("'", name, "' is no signal that can be passed on"));
    }
    plan.signals.push_back(found->second);
  }
  return absl::OkStatus();
}

/// Texts between commas; two commas are one that belongs to a text.
std::vector<std::string> Filters(const std::string& text) {
  std::vector<std::string> filters;
  if (text.empty()) return filters;
  for (const auto part : absl::StrSplit(absl::StrReplaceAll(text, {{",,", std::string(1, '\0')}}), ',')) {
    filters.push_back(absl::StrReplaceAll(part, {{std::string(1, '\0'), ","}}));
  }
  return filters;
}

absl::Status IsLocalRank(const Arguments& arguments, const std::string& name, int rank, int ranks) {
  if (rank < ranks) return absl::OkStatus();
  return Wrong(arguments, name,
               absl::StrCat("there is no local rank ", rank, ", with --nproc_per_node=",
                            arguments.Get("nproc_per_node"), " the last one is ", ranks - 1));
}

absl::Status ReadOutput(const Arguments& arguments, bool alone, LaunchPlan& plan) {
  OutputPlan& output = plan.output;
  LOCKSTEP_RETURN_IF_ERROR(OneOf(arguments, "prefix", {"auto", "on", "off"}));
  const std::string& prefix = arguments.Get("prefix");
  output.prefix = prefix == "on" || (prefix == "auto" && (plan.spawn.num_ranks > 1 || !alone));
  LOCKSTEP_ASSIGN_OR_RETURN(output.redirects,
                            StreamChoice::Parse(arguments.Source("redirects"), arguments.Get("redirects")));
  LOCKSTEP_ASSIGN_OR_RETURN(output.tee, StreamChoice::Parse(arguments.Source("tee"), arguments.Get("tee")));
  const int ranks = plan.spawn.num_ranks;
  LOCKSTEP_RETURN_IF_ERROR(IsLocalRank(arguments, "redirects", output.redirects.Highest(), ranks));
  LOCKSTEP_RETURN_IF_ERROR(IsLocalRank(arguments, "tee", output.tee.Highest(), ranks));
  output.log_dir = arguments.Get("log_dir");
  if (const std::string& shown = arguments.Get("local_ranks_filter"); !shown.empty()) {
    for (const auto part : absl::StrSplit(shown, ',')) {
      int rank = 0;
      if (!absl::SimpleAtoi(part, &rank) || rank < 0) {
        return Wrong(arguments, "local_ranks_filter", "want local ranks such as 0,1");
      }
      LOCKSTEP_RETURN_IF_ERROR(IsLocalRank(arguments, "local_ranks_filter", rank, ranks));
      output.shown.push_back(rank);
    }
  }
  const char* line_prefix = std::getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  if (line_prefix != nullptr) output.line_prefix = line_prefix;
  output.stdout_filters = Filters(arguments.Get("duplicate_stdout_filters"));
  output.stderr_filters = Filters(arguments.Get("duplicate_stderr_filters"));
  for (const char* name : {"duplicate_stdout_filters", "duplicate_stderr_filters"}) {
    if (!arguments.Get(name).empty() && !output.tee.Any()) {
      return Wrong(arguments, name, "only lines of --tee are looked at; give --tee as well");
    }
  }
  plan.log_files = true;
  return absl::OkStatus();
}

absl::Status ReadMeetingTimes(const Arguments& arguments, MeetingOptions& meeting) {
  std::map<std::string, double> seconds = {{"timeout", 900},           {"join_timeout", 600},
                                           {"last_call_timeout", 30},  {"read_timeout", 60},
                                           {"keep_alive_interval", 5}, {"keep_alive_max_attempt", 3}};
  for (const auto part : absl::StrSplit(arguments.Get("rdzv_conf"), ',', absl::SkipEmpty())) {
    const std::vector<std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    const std::string value = pair.size() == 2 ? pair[1] : "";
    if (pair[0] == "is_host") {
      if (value != "0" && value != "1" && value != "true" && value != "false") {
        return Wrong(arguments, "rdzv_conf", "is_host is 0 or 1");
      }
      meeting.is_host = value == "1" || value == "true";
      continue;
    }
    if (pair[0] == "store_type") {
      if (value == "tcp") continue;
      return Wrong(arguments, "rdzv_conf", "store_type is tcp, hosts meet at no file");
    }
    if (pair[0] == "close_timeout" || pair[0] == "heartbeat_timeout") {
      return Wrong(arguments, "rdzv_conf", pair[0] + " has no meaning here, no store is polled");
    }
    const auto found = seconds.find(pair[0]);
    if (found == seconds.end()) {
      return Wrong(arguments, "rdzv_conf", absl::StrCat("'", pair[0], "' is unknown; see lockstep_run --help"));
    }
    if (!absl::SimpleAtod(value, &found->second) || !(found->second > 0 && found->second <= 1e7)) {
      return Wrong(arguments, "rdzv_conf", pair[0] + " must be over 0 and at most 1e7");
    }
  }
  const double silence = seconds["keep_alive_interval"] * seconds["keep_alive_max_attempt"];
  if (seconds["keep_alive_interval"] < 0.01 || silence < 0.5) {
    return Wrong(arguments, "rdzv_conf",
                 absl::StrCat("a host would be given up after ", silence,
                              " s of silence; keep_alive_interval must be 0.01 or more, and keep_alive_interval x "
                              "keep_alive_max_attempt 0.5 or more"));
  }
  if (seconds["keep_alive_max_attempt"] < 2) {
    return Wrong(arguments, "rdzv_conf",
                 "keep_alive_max_attempt must be 2 or more, or a host that is a little late is lost");
  }
  const auto time = [&](const char* key) { return milliseconds(static_cast<int64_t>(seconds[key] * 1000)); };
  meeting.reach_timeout = time(meeting.elastic ? "read_timeout" : "timeout");
  meeting.join_timeout = time(meeting.elastic ? "join_timeout" : "timeout");
  meeting.last_call_timeout = time("last_call_timeout");
  meeting.beat_interval = time("keep_alive_interval");
  meeting.silence_limit = milliseconds(static_cast<int64_t>(silence * 1000));
  return absl::OkStatus();
}

absl::Status ReadNodes(const Arguments& arguments, MeetingOptions& meeting) {
  const std::vector<std::string> ends = absl::StrSplit(arguments.Get("nnodes"), ':');
  if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &meeting.min_nodes) ||
      !absl::SimpleAtoi(ends.back(), &meeting.max_nodes) || meeting.min_nodes < 1 ||
      meeting.max_nodes < meeting.min_nodes || meeting.max_nodes > 65536) {
    return Wrong(arguments, "nnodes", "want a number of hosts, or MIN:MAX");
  }
  if (!meeting.elastic && meeting.min_nodes != meeting.max_nodes) {
    return Wrong(arguments, "nnodes", "a range needs --rdzv_backend=c10d, where hosts get their numbers");
  }
  return absl::OkStatus();
}

absl::Status ReadMeeting(const Arguments& arguments, LauncherOptions& options) {
  MeetingOptions& meeting = options.meeting;
  const std::string& backend = arguments.Get("rdzv_backend");
  if (backend == "etcd" || backend == "etcd-v2") {
    return Wrong(arguments, "rdzv_backend", "no etcd is spoken here; use c10d, which needs no service");
  }
  LOCKSTEP_RETURN_IF_ERROR(OneOf(arguments, "rdzv_backend", {"static", "c10d"}));
  meeting.elastic = backend == "c10d";
  LOCKSTEP_RETURN_IF_ERROR(ReadNodes(arguments, meeting));
  LOCKSTEP_RETURN_IF_ERROR(ReadMeetingTimes(arguments, meeting));
  meeting.id = arguments.Get("rdzv_id");
  meeting.local_addr = Stripped(arguments, "local_addr");
  LOCKSTEP_ASSIGN_OR_RETURN(meeting.port, Number(arguments, "master_port", 0, 65535));
  meeting.host = WithoutBrackets(Stripped(arguments, "master_addr"));
  if (meeting.host.empty()) return Wrong(arguments, "master_addr", "want the name or an address of host number 0");
  const std::string endpoint = Stripped(arguments, "rdzv_endpoint");
  if (!endpoint.empty()) {
    const auto place = ParseEndpoint(endpoint, meeting.elastic ? 29400 : -1);
    if (!place) return Wrong(arguments, "rdzv_endpoint", "want HOST:PORT, [IPV6]:PORT");
    meeting.host = place->host;
    meeting.port = place->port;
  } else if (meeting.elastic) {
    if (meeting.max_nodes > 1) {
      return absl::InvalidArgumentError("--rdzv_backend=c10d: give --rdzv_endpoint=HOST:PORT, where the hosts meet");
    }
    meeting.host = "localhost";
    meeting.port = 0;
  }
  if (arguments.IsOn("standalone")) {
    meeting = MeetingOptions();
    meeting.host = "localhost";
  }
  options.alone = meeting.max_nodes == 1;
  LOCKSTEP_ASSIGN_OR_RETURN(meeting.node_rank, Number(arguments, "node_rank", 0, 65535));
  if (!options.alone && !meeting.elastic && meeting.node_rank >= meeting.max_nodes) {
    return Wrong(arguments, "node_rank", absl::StrCat("hosts are numbered from 0 to ", meeting.max_nodes - 1));
  }
  if (!options.alone && meeting.port == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--nnodes=", meeting.max_nodes,
                                                   ": hosts need a port to meet at; give --master_port or "
                                                   "--rdzv_endpoint=HOST:PORT with one from 1 to 65535"));
  }
  options.master_addr = meeting.host;
  options.master_port = meeting.port;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LauncherOptions> ReadLauncherOptions(const Arguments& arguments) {
  LauncherOptions options;
  LaunchPlan& plan = options.plan;
  plan.spawn.argv = arguments.program();
  LOCKSTEP_ASSIGN_OR_RETURN(plan.spawn.num_ranks, RanksHere(arguments));
  LOCKSTEP_ASSIGN_OR_RETURN(plan.spawn.max_restarts, Number(arguments, "max_restarts", 0, 1 << 30));
  if (arguments.Get("expendable_from") != "none") {  // rank 0 holds the store
    LOCKSTEP_ASSIGN_OR_RETURN(plan.spawn.expendable_from, Number(arguments, "expendable_from", 1, 1 << 20));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(plan.spawn.stop_code, Number(arguments, "stop_exit_code", 1, 255));
  LOCKSTEP_ASSIGN_OR_RETURN(plan.spawn.stop_grace, Seconds(arguments, "stop_grace"));
  LOCKSTEP_ASSIGN_OR_RETURN(plan.tick, Seconds(arguments, "monitor_interval"));
  if (plan.tick < milliseconds(1)) return Wrong(arguments, "monitor_interval", "want 0.001 seconds or more");
  LOCKSTEP_RETURN_IF_ERROR(OneOf(arguments, "start_method", {"spawn"}));
  LOCKSTEP_RETURN_IF_ERROR(OneOf(arguments, "event_log_handler", {"null"}));
  LOCKSTEP_RETURN_IF_ERROR(OneOf(arguments, "bind", {"none", "cores", "numa"}));
  LOCKSTEP_RETURN_IF_ERROR(ReadSignals(arguments, plan));
  LOCKSTEP_RETURN_IF_ERROR(ReadMeeting(arguments, options));
  LOCKSTEP_RETURN_IF_ERROR(ReadOutput(arguments, options.alone, plan));
  options.meeting.expendable_from = plan.spawn.expendable_from;
  plan.role = arguments.Get("role");
  plan.virtual_local_rank = arguments.IsOn("virtual_local_rank");
  if (const std::string& id = arguments.Get("rdzv_id"); id != "none" && !arguments.IsOn("standalone")) {
    plan.spawn.launch_id = id;
  }
  if (arguments.Get("bind") != "none") plan.cores = BindRanks(arguments.Get("bind") == "numa", plan.spawn.num_ranks);
  return options;
}

}  // namespace lockstep
