// Prints the seconds that reading a CSV file of pictures takes, once for each line on stdin.

#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>

#include "lockstep/data/mnist.h"

int main(int argc, char** argv) {
  for (std::string line; argc > 1 && std::getline(std::cin, line);) {
    const auto start = std::chrono::steady_clock::now();
    const auto data = lockstep::LoadMnistCsv(argv[1]);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    if (!data.ok()) {
      std::fprintf(stderr, "%s\n", std::string(data.status().message()).c_str());
      return 1;
    }
    std::printf("%.6f\n", seconds.count());
    std::fflush(stdout);
  }
  return 0;
}
