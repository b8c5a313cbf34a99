#include "lockstep/launch/internal/arguments.h"

#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "lockstep/base/status_macros.h"

namespace lockstep {
namespace {

enum Kind { kValue, kSwitch, kRefusedValue, kRefusedSwitch };

struct Option {
  const char* name;
  Kind kind;
  const char* fallback;
  const char* text;  // for --help; of a refused one: the reason
};

constexpr Option kOptions[] = {
    {"nproc_per_node", kValue, "1",
     "ranks to start on this host: a number, gpu (one per GPU), cpu (one per core), auto"},
    {"nnodes", kValue, "1", "hosts: a number, or MIN:MAX with --rdzv_backend=c10d"},
    {"node_rank", kValue, "0", "this host's number, from 0 on (static)"},
    {"master_addr", kValue, "127.0.0.1", "host number 0 (static)"},
    {"master_port", kValue, "29500", "its port (static; 0 on one host: a free one)"},
    {"standalone", kSwitch, "0", "one host and a free port, whatever the options for meeting say"},
    {"rdzv_backend", kValue, "static",
     "how hosts meet: static, or c10d (numbers are given out, hosts may come and go)"},
    {"rdzv_endpoint", kValue, "", "HOST[:PORT] where they meet (c10d; port 29400)"},
    {"rdzv_id", kValue, "none", "name of the run; only launchers with the same one meet"},
    {"rdzv_conf", kValue, "",
     "KEY=SECONDS,…: timeout (static, 900), join_timeout (600), last_call_timeout (30), read_timeout (60), "
     "keep_alive_interval (5), keep_alive_max_attempt (3); is_host=0|1"},
    {"local_addr", kValue, "", "this host's address for the others, where the one found is not right"},
    {"max_restarts", kValue, "0", "start all ranks again after a failure, so often"},
    {"monitor_interval", kValue, "0.1",
     "seconds between two looks at time limits and other hosts; ends are seen at once"},
    {"role", kValue, "default", "name of this host's ranks"},
    {"signals_to_handle", kValue, "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "passed on to the ranks (SIGUSR1 always is)"},
    {"log_dir", kValue, "", "folder for files of output and errors: <log_dir>/<run>_XXXXXX/attempt_<N>/<local rank>/"},
    {"redirects", kValue, "0",
     "output to files: 1 stdout, 2 stderr, 3 both, or for some local ranks 0:3,1:1 (also -r)"},
    {"tee", kValue, "0", "the same, and to the console (also -t)"},
    {"local_ranks_filter", kValue, "", "local ranks whose output comes to the console, such as 0,1 (default: all)"},
    {"duplicate_stdout_filters", kValue, "",
     "lines of --tee's stdout with one of these texts go to filtered_stdout.log"},
    {"duplicate_stderr_filters", kValue, "", "the same of stderr, to filtered_stderr.log; ,, is a comma"},
    {"virtual_local_rank", kSwitch, "0", "each rank sees its device alone and is local rank 0"},
    {"no_python", kSwitch, "0", "accepted: programs are run as they are"},
    {"start_method", kValue, "spawn", "spawn, since ranks are new processes"},
    {"event_log_handler", kValue, "null", "null, since events are not recorded"},
    // Ours alone.
    {"prefix", kValue, "auto", "each line of output begins with its rank: auto (with more than one rank), on, off"},
    {"bind", kValue, "none", "ranks to cores: none, cores (a share each), numa (the cores of one NUMA node each)"},
    {"stop_grace", kValue, "30",
     "seconds that ranks have to end by themselves after a signal; a second signal ends them"},
    {"expendable_from", kValue, "none",
     "ranks from this one on may fail while the others go on, and their codes don't count: workers of an asynchronous "
     "parameter server"},
    {"stop_exit_code", kValue, "75", "ranks that end with it were stopped and want to be started later: no failure"},
    // torchrun's that have no meaning here.
    {"module", kRefusedSwitch, "0",
     "programs are run as they are; give the interpreter: lockstep_run … python3 -m MODULE"},
    {"run_path", kRefusedSwitch, "0", "there is no Python in this launcher; give the interpreter: python3 SCRIPT"},
    {"logs_specs", kRefusedValue, "",
     "it names a Python class; --log_dir, --tee and --redirects say where output goes"},
    {"numa_binding", kRefusedValue, "", "it goes by the GPUs' places; use --bind=numa or --bind=cores"},
};

const Option* Find(const std::string& name) {
  for (const Option& option : kOptions) {
    if (name == option.name) return &option;
  }
  return nullptr;
}

bool IsSwitch(const Option& option) { return option.kind == kSwitch || option.kind == kRefusedSwitch; }
bool IsRefused(const Option& option) { return option.kind == kRefusedValue || option.kind == kRefusedSwitch; }

/// "PET_MASTER_ADDR" of "master_addr".
std::string EnvironmentName(const std::string& name) { return "PET_" + absl::AsciiStrToUpper(name); }

std::string LongName(const std::string& argument) {
  if (argument[1] == 'h') return "help";
  if (argument[1] == 'r') return "redirects";
  if (argument[1] == 't') return "tee";
  if (argument[1] == 'm') return "module";
  std::string name =
      argument.substr(2, argument.find('=') == std::string::npos ? std::string::npos : argument.find('=') - 2);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

}  // namespace

absl::StatusOr<Arguments> Arguments::Parse(int argc, char** argv) {
  Arguments result;
  int i = 1;
  for (; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--") {
      ++i;
      break;
    }
    if (argument.size() < 2 || argument[0] != '-') break;
    const bool has_value = (argument[1] == 'r' || argument[1] == 't') && argument.size() > 2;  // -t3, -t=3
    if (argument[1] != '-' && !has_value && (argument.size() != 2 || std::strchr("hrtm", argument[1]) == nullptr)) {
      return absl::InvalidArgumentError(absl::StrCat("unknown option ", argument, "; see lockstep_run --help"));
    }
    const std::string name = LongName(argument);
    if (name == "help") {
      result.help_ = true;
      return result;
    }
    const Option* option = Find(name);
    if (option == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("unknown option --", name, "; see lockstep_run --help"));
    }
    if (IsRefused(*option)) return absl::InvalidArgumentError(absl::StrCat("--", name, ": ", option->text));
    const size_t equals = argument.find('=');
    if (IsSwitch(*option)) {
      if (equals != std::string::npos) return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
      result.given_[name] = "1";
    } else if (has_value) {
      result.given_[name] = argument.substr(argument[2] == '=' ? 3 : 2);
    } else if (equals != std::string::npos) {
      result.given_[name] = argument.substr(equals + 1);
    } else if (++i < argc) {
      result.given_[name] = argv[i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
    }
  }
  for (const Option& option : kOptions) {
    const char* value = std::getenv(EnvironmentName(option.name).c_str());
    if (value == nullptr || *value == '\0') continue;  // scripts set variables to nothing that they have no value for
    if (IsSwitch(option) && std::strcmp(value, "0") != 0 && std::strcmp(value, "1") != 0) {
      return absl::InvalidArgumentError(absl::StrCat(EnvironmentName(option.name), "=", value, ": want 0 or 1"));
    }
    if (IsRefused(option) && std::strcmp(value, option.fallback) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(EnvironmentName(option.name), ": ", option.text));
    }
    result.from_environment_[option.name] = value;
  }
  if (i >= argc) return absl::InvalidArgumentError("no program to run; see lockstep_run --help");
  result.program_.assign(argv + i, argv + argc);
  return result;
}

const std::string& Arguments::Get(const std::string& name) const {
  if (const auto found = given_.find(name); found != given_.end()) return found->second;
  if (const auto found = from_environment_.find(name); found != from_environment_.end()) return found->second;
  static const std::map<std::string, std::string> fallbacks = [] {
    std::map<std::string, std::string> texts;
    for (const Option& option : kOptions) texts[option.name] = option.fallback;
    return texts;
  }();
  return fallbacks.at(name);
}

std::string Arguments::Source(const std::string& name) const {
  const bool from_environment = given_.count(name) == 0 && from_environment_.count(name) > 0;
  return from_environment ? EnvironmentName(name) : "--" + name;
}

std::string Arguments::Quote(const std::string& name) const { return absl::StrCat(Source(name), "=", Get(name)); }

std::string LauncherHelp() {
  std::string text =
      "usage: lockstep_run [options] PROGRAM [ARGUMENTS]\n"
      "Starts PROGRAM once for each rank of this host, with RANK, WORLD_SIZE, MASTER_ADDR and all else that torchrun "
      "sets.\n"
      "Options are torchrun's. Hyphens may stand for underscores, a value may be an argument of its own, and "
      "PET_<NAME> in\n"
      "the environment is an option's default.\n\n";
  for (const Option& option : kOptions) {
    if (IsRefused(option)) continue;
    std::string name = absl::StrCat("  --", option.name);
    if (!IsSwitch(option)) absl::StrAppend(&name, "=", *option.fallback == '\0' ? "…" : option.fallback);
    absl::StrAppend(&text, name, "\n      ", option.text, "\n");
  }
  return text;
}

}  // namespace lockstep
