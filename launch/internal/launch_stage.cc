#include "lockstep/launch/internal/launch_stage.h"

#include <absl/strings/str_cat.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <system_error>

#include "lockstep/launch/internal/rank_process.h"

namespace lockstep {

LaunchStage::LaunchStage(const LaunchPlan& plan) : plan_(plan), signals_(plan.signals) {
  const OutputPlan& output = plan.output;
  try {
    err_.emplace(STDERR_FILENO);
    if (output.Relayed()) out_.emplace(STDOUT_FILENO);
  } catch (const std::system_error& e) {
    ready_ = absl::ResourceExhaustedError("no thread can be had: " + NoProcess(e.code().value()));
    return;
  }
  if (plan.log_files) {
    const bool keep = output.redirects.Any() || output.tee.Any();
    auto logs = LogFiles::Create(output.log_dir, plan.spawn.launch_id, keep);
    if (!logs.ok() && output.log_dir.empty() && !keep) {  // nobody asked for files
      Say(absl::StrCat("lockstep: ranks have no error files: ", logs.status().message(), "\n"));
      logs = LogFiles::Create("/dev/null", plan.spawn.launch_id, keep);
    }
    if (!logs.ok()) {
      ready_ = logs.status();
      return;
    }
    logs_.emplace(*std::move(logs));
    if (keep && !logs_->folder().empty()) {
      Say(absl::StrCat("lockstep: output goes to ", logs_->folder(), "\n"));
    }
    setting_.logs = &*logs_;
  }
  setting_.out = out_ ? &*out_ : nullptr;
  setting_.err = &*err_;
  setting_.signals = &signals_;
  setting_.guardian = &guardian_;
  setting_.begin = std::chrono::steady_clock::now();
}

void LaunchStage::Report(const FirstFailure& failure) {
  if (!plan_.spawn.report_exit_codes || (failure.error_message.empty() && failure.last_lines.empty())) return;
  Say(Describe(failure));
}

void LaunchStage::Say(const std::string& text) {
  if (err_) {
    err_->Write(text);
  } else {  // no thread could be had
    std::fputs(text.c_str(), stderr);
  }
}

}  // namespace lockstep
