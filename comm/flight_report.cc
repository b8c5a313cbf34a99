// Merges the files that the ranks' flight recorders left:
//
//   flight_report FOLDER
//
// says up to where the ranks' collectives were alike, and what each rank did where they part.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "lockstep/comm/flight_merge.h"

int main(int argc, char** argv) {
  if (argc != 2 || argv[1][0] == '-') {
    std::fprintf(stderr, "usage: flight_report FOLDER   (with the files flight_rank_<rank>.json)\n");
    return 2;
  }
  std::filesystem::path folder(argv[1]);
  const char* from = std::getenv("BUILD_WORKING_DIRECTORY");  // where `bazel run` was called
  if (folder.is_relative() && from != nullptr) folder = from / folder;
  std::vector<std::string> names, texts;
  std::error_code error;
  for (const auto& file : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = file.path().filename().string();
    if (name.rfind("flight_rank_", 0) == 0 && file.path().extension() == ".json") names.push_back(file.path().string());
  }
  if (names.empty()) {
    std::fprintf(stderr, "error: %s: %s\n", folder.c_str(),
                 error ? error.message().c_str() : "no file flight_rank_<rank>.json there");
    return 1;
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) {
    std::ifstream file(name);
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  const auto report = lockstep::MergeFlights(texts, names);
  if (!report.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(report.status().message()).c_str());
    return 1;
  }
  std::printf("%s", report->c_str());
  return 0;
}
