// One rank of a run in which rank 1 goes wrong after some collectives. The others print the error that they get, and
// when, in milliseconds of the machine's clock.
//
//   failure_program BACKEND MODE TIMEOUT_MS FOLDER    (in each of several ranks)

#include <ATen/Functions.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>

#include "lockstep/base/error_text.h"
#include "lockstep/comm/collectives.h"
#include "lockstep/comm/flight_recorder.h"
#include "lockstep/comm/process_group.h"

namespace {

void Say(const char* what, const std::string& text) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  std::printf("%lld %s %s\n",
              static_cast<long long>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()), what,
              text.c_str());
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argv[2];
  lockstep::ProcessGroupOptions options;
  options.backend = argv[1];
  options.timeout = std::chrono::milliseconds(std::atoi(argv[3]));
  options.check_collectives = mode == "different";
  const int rank = std::atoi(std::getenv("RANK")), world = std::atoi(std::getenv("WORLD_SIZE"));
  options.recorder = std::make_shared<lockstep::FlightRecorder>(rank, world, argc > 4 ? argv[4] : "");
  lockstep::DumpFlightRecordersOnSignal(SIGUSR2);
  const auto group = lockstep::InitProcessGroup(options).value();
  try {
    for (int i = 0; i < 200; ++i) {
      at::Tensor t = at::ones({mode == "large" ? 4 << 20 : 1000});
      if (rank == 1 && i == 100) {
        Say("end", mode);
        if (mode == "kill" || mode == "large") kill(getpid(), SIGKILL);
        if (mode == "stop") kill(getpid(), SIGSTOP);
        if (mode == "exit") std::_Exit(7);
        if (mode == "throw") throw std::runtime_error("out of luck");
        if (mode == "sleep") std::this_thread::sleep_for(std::chrono::seconds(60));
        if (mode == "different") t = at::ones({7});
      }
      if (mode == "receive" && i == 100) {
        if (rank == 1) kill(getpid(), SIGKILL);
        lockstep::Receive(t, 1, group);
      }
      lockstep::AllReduce(t, group);
    }
  } catch (const std::exception& e) {
    Say("error", lockstep::FirstLine(e.what()));
    std::fflush(stdout);
    std::_Exit(3);
  }
  std::_Exit(0);
}
