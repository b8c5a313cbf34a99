#include "lockstep/comm/network_address.h"

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <set>

#include "lockstep/base/error_text.h"
#include "lockstep/base/host_name.h"
#include "lockstep/comm/environment.h"

namespace lockstep {
namespace {

constexpr char kAnyPort[] = "9";  // nothing is sent

std::string Text(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST] = {};
  return getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

AddressList Resolve(const std::string& host) {
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_DGRAM;
  if (getaddrinfo(host.c_str(), kAnyPort, &hints, &found) != 0) found = nullptr;
  return AddressList(found, [](addrinfo* list) {
    if (list != nullptr) freeaddrinfo(list);
  });
}

/// This host's address on the way to `host`; empty when there is no way.
std::string AddressTowards(const std::string& host) {
  const AddressList list = Resolve(host);
  for (const addrinfo* to = list.get(); to != nullptr; to = to->ai_next) {
    const int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage mine{};
    socklen_t length = sizeof(mine);
    // A datagram socket is connected without a word on the network: the kernel looks the way up.
    const bool found = connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
                       getsockname(fd, reinterpret_cast<sockaddr*>(&mine), &length) == 0;
    close(fd);
    if (found) return Text(reinterpret_cast<sockaddr*>(&mine), length);
  }
  return "";
}

/// What this host's own name stands for, if that is an address of this host.
std::string AddressOfName() {
  const std::string name = HostName();
  if (name.empty()) return "";
  const AddressList list = Resolve(name);
  for (const addrinfo* own = list.get(); own != nullptr; own = own->ai_next) {
    const int fd = socket(own->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool here = fd >= 0 && bind(fd, own->ai_addr, own->ai_addrlen) == 0;
    if (fd >= 0) close(fd);
    if (here) return Text(own->ai_addr, own->ai_addrlen);
  }
  return "";
}

struct Interface {
  std::string name, address;
  bool loopback;
};

/// Those that are up and have an address.
std::vector<Interface> Interfaces() {
  std::vector<Interface> interfaces;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return interfaces;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const std::string address =
        Text(i->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : static_cast<socklen_t>(sizeof(sockaddr_in6)));
    interfaces.push_back({i->ifa_name, address, (i->ifa_flags & IFF_LOOPBACK) != 0});
  }
  freeifaddrs(list);
  return interfaces;
}

/// Of the interface `name`; empty when it has none that means something on other hosts too.
std::string AddressOfInterface(const std::string& name) {
  for (const Interface& interface : Interfaces()) {
    if (interface.name == name && !absl::StrContains(interface.address, '%')) return interface.address;
  }
  return "";
}

/// Those who have not said their address.
std::string Missing(c10d::Store& store, int world_size, const std::function<std::string(int)>& key) {
  std::vector<int> missing;
  try {
    for (int r = 0; r < world_size; ++r) {
      if (!store.check({key(r)})) missing.push_back(r);
    }
  } catch (const std::exception&) {
    return "";  // the store is gone too
  }
  return missing.empty() ? "" : absl::StrCat("ranks ", absl::StrJoin(missing, ", "), " have not said their address: ");
}

/// The network that this process sees.
std::string NetworkName() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  char space[64] = {};
  const ssize_t length = readlink("/proc/self/ns/net", space, sizeof(space) - 1);
  return boot + (length > 0 ? space : "");
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ChosenInterfaces() {
  const char *variable = "LOCKSTEP_SOCKET_IFNAME", *value = std::getenv(variable);
  if (value == nullptr || *value == '\0') value = std::getenv(variable = "GLOO_SOCKET_IFNAME");
  if (value == nullptr || *value == '\0') return std::vector<std::string>();
  const std::vector<std::string> chosen = absl::StrSplit(value, ',', absl::SkipEmpty());
  std::set<std::string> there;
  for (const Interface& interface : Interfaces()) there.insert(interface.name);
  for (const std::string& name : chosen) {
    if (there.count(name) > 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(variable, "=", value, ": there is no interface ", name,
                                                   " with an address here; there are: ", absl::StrJoin(there, ", ")));
  }
  return chosen;
}

absl::StatusOr<std::string> AddressForRanks(c10d::Store& store, int rank, int world_size, const std::string& master,
                                            const std::vector<std::string>& interfaces,
                                            std::chrono::milliseconds timeout) {
  const bool chosen = !interfaces.empty();
  const std::string address = chosen           ? AddressOfInterface(interfaces[0])
                              : master.empty() ? AddressOfName()
                                               : AddressTowards(master);
  if (address.empty() && !chosen && !master.empty()) {
    return absl::UnavailableError(absl::StrCat("network: this host has no way to ", master));
  }
  const std::string network = NetworkName();
  const auto key = [](int r) { return absl::StrCat("address/", r); };
  bool alone = true;  // no rank of another host is known
  try {
    const std::string mine = network + " " + address;
    store.set(key(rank), std::vector<uint8_t>(mine.begin(), mine.end()));
    const bool usable = chosen || (!address.empty() && !IsLoopback(address));
    for (int r = 0; r < world_size && !usable; ++r) {
      store.wait({key(r)}, timeout);
      const std::vector<std::string> theirs = absl::StrSplit(store.get_to_str(key(r)), ' ');
      if (theirs[0] == network) continue;
      alone = false;
      if (theirs[1].empty() || IsLoopback(theirs[1])) continue;
      const std::string towards = AddressTowards(theirs[1]);
      if (!towards.empty() && !IsLoopback(towards)) return towards;
    }
    if (usable) return address;
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat("network: ", Missing(store, world_size, key), FirstLine(e.what())));
  }
  if (alone) return address.empty() ? "127.0.0.1" : address;
  // All the others say loopback too: the first interface that others may reach.
  for (const Interface& interface : Interfaces()) {
    if (!interface.loopback && !absl::StrContains(interface.address, '%')) return interface.address;
  }
  return absl::UnavailableError(
      "network: this host has no address but loopback, and there are ranks on others; set LOCKSTEP_SOCKET_IFNAME");
}

}  // namespace lockstep
