#include "lockstep/trainer/progress.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_replace.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace lockstep {
namespace {

double Get(const EpochInfo& info, const std::string& name) {
  const auto found = info.metrics.find(name);
  return found == info.metrics.end() ? 0 : found->second;
}

}  // namespace

ProgressPrinter::ProgressPrinter(int rank, int world_size, std::FILE* out)
    : active_(rank == 0), world_size_(world_size), out_(out), terminal_(isatty(fileno(out)) == 1) {}

void ProgressPrinter::OnFitStart() {
  if (!active_) return;
  absl::FPrintF(out_, "%7s %11s %10s %9s %9s %9s %9s %8s\n", "epoch", "train_loss", "train_acc", "val_loss", "val_acc",
                "images/s", "seconds", "stop");
  std::fflush(out_);
}

void ProgressPrinter::OnStepEnd(StepInfo& info) {
  if (!active_ || !terminal_) return;
  const bool last = info.step == info.steps;
  if (bar_ && info.seconds - last_drawn_ < 0.1 && info.seconds >= last_drawn_ && !last) return;
  last_drawn_ = info.seconds;
  bar_ = true;
  const double rate = info.samples * world_size_ / std::max(info.seconds, 1e-9);
  constexpr int kWidth = 30;
  const size_t step = std::min(info.step, info.steps);  // the number of steps is an estimate
  const int done = info.steps == 0 ? 0 : static_cast<int>(kWidth * step / info.steps);
  const double left = info.steps == 0 ? 0 : info.seconds * (info.steps - step) / info.step;
  std::string scaling;
  if (info.scaler != nullptr && info.scaler->dynamic()) {
    scaling = absl::StrFormat("  scale %g, %d skipped", info.scaler->scale(), info.skipped);
  }
  absl::FPrintF(out_, "\repoch %d/%d [%s%s] %d/%d  %.0f images/s  %.0f s left%s \x1b[K", info.epoch, info.epochs,
                std::string(done, '='), std::string(kWidth - done, ' '), info.step, info.steps, rate, left, scaling);
  std::fflush(out_);
}

void ProgressPrinter::ClearBar() {
  if (bar_) std::fputs("\r\x1b[K", out_);
  bar_ = false;
}

void ProgressPrinter::OnEpochEnd(const EpochInfo& info) {
  if (!active_) return;
  ClearBar();
  std::string scaling;
  if (info.metrics.count("loss_scale") > 0) {
    scaling = absl::StrFormat("  scale %g, %.0f skipped", Get(info, "loss_scale"), Get(info, "skipped_steps"));
  }
  absl::FPrintF(out_, "%7s %11.4f %10.4f %9.4f %9.4f %9.0f %9.1f %8.0f%s%s\n",
                absl::StrCat(info.epoch, "/", info.epochs), Get(info, "train_loss"), Get(info, "train_accuracy"),
                Get(info, "val_loss"), Get(info, "val_accuracy"), Get(info, "images_per_second"), Get(info, "seconds"),
                Get(info, "stop_counter"), scaling, info.improved ? "  best" : "");
  std::fflush(out_);
}

void ProgressPrinter::OnStopped(const std::string& reason) {
  if (!active_) return;
  absl::FPrintF(out_, "stopped early: %s\n", reason);
}

void ProgressPrinter::OnException(const std::string& what) {
  if (active_) ClearBar();
}

void MeanPrinter::OnStepEnd(StepInfo& info) {
  if (every_ == 0 || info.step % every_ != 0) return;
  std::string line = absl::StrCat("epoch: ", info.epoch, ", step: ", info.step);
  if (info.steps > 0) absl::StrAppend(&line, "/", info.steps);
  const auto means = info.sums->Reduce(group_).means;  // without samples: a step that no rank's batch counts in
  if (const auto loss = means.find("loss"); loss != means.end())
    absl::StrAppendFormat(&line, ", loss: %.4f", loss->second);
  for (const auto& [name, mean] : means) {
    if (name != "loss") absl::StrAppendFormat(&line, ", %s: %.4f", name, mean);
  }
  absl::StrAppendFormat(&line, ", lr: %.4g", info.learning_rate);
  Print(line);
}

void MeanPrinter::OnEpochEnd(const EpochInfo& info) {
  std::string line = absl::StrCat("epoch: ", info.epoch, "/", info.epochs);
  for (const auto& [name, value] : info.metrics) {
    absl::StrAppendFormat(&line, value == std::floor(value) || std::abs(value) >= 1000 ? ", %s: %.0f" : ", %s: %.4g",
                          absl::StrReplaceAll(name, {{"_", " "}}), value);
  }
  Print(line + (info.improved ? ", best" : ""));
}

void MeanPrinter::OnStopped(const std::string& reason) { Print("stopped early: " + reason); }

void MeanPrinter::Print(const std::string& line) {
  if (GetRank(group_) != 0) return;
  absl::FPrintF(out_, "%s\n", line);
  std::fflush(out_);
}

void LinePrinter::OnStepEnd(StepInfo& info) {
  if (info.step % every_ != 0) return;
  absl::FPrintF(out_, "epoch: %d, step: %d, loss: %.6f, rank: %d%s\n", info.epoch, info.step, info.LossValue(), rank_,
                info.stepped ? "" : ", skipped");
  std::fflush(out_);
}

void LinePrinter::OnEpochEnd(const EpochInfo& info) {
  if (rank_ != 0) return;
  absl::FPrintF(out_, "epoch: %d, early-stopping counter: %.0f, accuracy: %.4f\n", info.epoch,
                Get(info, "stop_counter"), Get(info, "val_accuracy"));
  std::fflush(out_);
}

void LinePrinter::OnStopped(const std::string& reason) {
  if (rank_ == 0) absl::FPrintF(out_, "stopped early: %s\n", reason);
}

}  // namespace lockstep
