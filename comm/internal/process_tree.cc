#include "lockstep/comm/internal/process_tree.h"

#include <unistd.h>

#include <fstream>
#include <sstream>

namespace lockstep {
namespace {

std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();  // what can't be read, of a process that ends, is no exception
  return text.str();
}

/// The nth word of a process's status line, counted after its name, which may hold anything but is in parentheses.
std::string StatWord(const std::string& pid, int n) {
  const std::string text = Contents("/proc/" + pid + "/stat");
  const size_t name_end = text.rfind(')');
  std::istringstream words(name_end == std::string::npos ? "" : text.substr(name_end + 1));
  std::string word;
  for (int i = 0; i < n; ++i) words >> word;
  return word;
}

std::string Parent(const std::string& pid) { return StatWord(pid, 2); }

std::string Identity(const std::string& pid) { return pid + "-" + StatWord(pid, 20); }

}  // namespace

std::string ParentProcess() { return Identity(std::to_string(getppid())); }

std::string AncestorWithout(const std::string& variable) {
  const std::string wanted = '\0' + variable + "=";
  std::string pid = std::to_string(getppid());
  while (!pid.empty() && pid != "0" && pid != "1") {
    const std::string environment = '\0' + Contents("/proc/" + pid + "/environ");
    if (environment.find(wanted) == std::string::npos) break;
    pid = Parent(pid);
  }
  return Identity(pid);
}

}  // namespace lockstep
