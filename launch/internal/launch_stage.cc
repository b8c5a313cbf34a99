#include "lockstep/launch/internal/launch_stage.h"

#include <unistd.h>

#include <cstdio>
#include <string>

namespace lockstep {

LaunchStage::LaunchStage(const LaunchPlan& plan) : plan_(plan), signals_(plan.signals) {
  const OutputPlan& output = plan.output;
  if (plan.log_files) {
    const bool keep = output.redirects.Any() || output.tee.Any();
    auto logs = LogFiles::Create(output.log_dir, plan.spawn.launch_id, keep);
    if (!logs.ok() && output.log_dir.empty() && !keep) {  // nobody asked for files
      std::fprintf(stderr, "lockstep: ranks have no error files: %s\n", std::string(logs.status().message()).c_str());
      logs = LogFiles::Create("/dev/null", plan.spawn.launch_id, keep);
    }
    if (!logs.ok()) {
      ready_ = logs.status();
      return;
    }
    logs_.emplace(*std::move(logs));
    if (keep && !logs_->folder().empty()) {
      std::fprintf(stderr, "lockstep: output goes to %s\n", logs_->folder().c_str());
    }
    setting_.logs = &*logs_;
  }
  if (output.Relayed()) {
    out_.emplace(STDOUT_FILENO);
    err_.emplace(STDERR_FILENO);
    setting_.out = &*out_;
    setting_.err = &*err_;
  }
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
  } else {
    std::fputs(text.c_str(), stderr);
  }
}

}  // namespace lockstep
