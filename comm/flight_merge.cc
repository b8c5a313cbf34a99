#include "lockstep/comm/flight_merge.h"

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

namespace lockstep {
namespace {

struct Entry {
  std::string call;  ///< "ALLREDUCE (sum of Float [3, 4])"
  std::string state;
  std::string error;
  int64_t asked_us = 0, ended_us = 0;
  bool done() const { return state == "done"; }
};

using Entries = std::map<uint64_t, Entry>;  // by sequence

struct Flight {
  int rank = 0, world_size = 0;
  std::map<std::string, Entries> groups;
};

absl::StatusOr<Flight> Parse(const std::string& text, const std::string& name) {
  try {
    const auto json = nlohmann::json::parse(text);
    Flight flight{json.at("rank").get<int>(), json.at("world_size").get<int>(), {}};
    for (const auto& group : json.at("groups")) flight.groups[group.get<std::string>()];
    for (const auto& item : json.at("entries")) {
      Entry entry;
      entry.call = item.at("operation").get<std::string>();
      if (entry.call == "SEND" || entry.call.rfind("RECV", 0) == 0) continue;  // they have no number that all share
      if (item.contains("dtype")) {
        absl::StrAppend(&entry.call, " (", item.value("reduction", ""), item.contains("reduction") ? " of " : "",
                        item.at("dtype").get<std::string>());
        // Of all-to-all the ranks may give different sizes.
        if (entry.call.rfind("ALLTOALL", 0) != 0) {
          const auto shape = item.at("shape").get<std::vector<int64_t>>();
          absl::StrAppend(&entry.call, " [", absl::StrJoin(shape, ", "), "]");
        }
        absl::StrAppend(&entry.call, ")");
      }
      entry.state = item.at("state").get<std::string>();
      entry.error = item.value("error", "");
      entry.asked_us = item.at("asked_us").get<int64_t>();
      entry.ended_us = item.value("ended_us", int64_t{0});
      flight.groups[item.at("group").get<std::string>()][item.at("sequence").get<uint64_t>()] = entry;
    }
    return flight;
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": no file of a flight recorder: ", e.what()));
  }
}

std::string Time(int64_t us, int64_t last_us) {
  return absl::StrFormat("%.3f s before the last event", static_cast<double>(last_us - us) / 1e6);
}

std::string Describe(const Entry& entry, int64_t last_us) {
  std::string text = absl::StrCat(entry.call, ", ", entry.state, ", asked for ", Time(entry.asked_us, last_us));
  if (entry.ended_us != 0) absl::StrAppend(&text, ", over ", Time(entry.ended_us, last_us));
  if (!entry.error.empty()) absl::StrAppend(&text, ": ", entry.error);
  return text;
}

std::string DescribeGroup(const std::string& name, const std::map<int, const Entries*>& ranks, int64_t last_us) {
  // What one rank has forgotten can't be compared.
  uint64_t first = 0, last = 0;
  for (const auto& [rank, entries] : ranks) {
    if (entries->empty()) continue;
    first = std::max(first, entries->begin()->first);
    last = std::max(last, entries->rbegin()->first);
  }
  std::string text = absl::StrCat("group ", name.empty() ? "without a name" : name, ": ");
  for (uint64_t sequence = first; sequence <= last; ++sequence) {
    std::set<std::string> calls;
    bool all = true;
    for (const auto& [rank, entries] : ranks) {
      const auto entry = entries->find(sequence);
      all = all && entry != entries->end() && entry->second.done();
      if (entry != entries->end()) calls.insert(entry->second.call);
    }
    if (all && calls.size() == 1) continue;
    if (sequence > first) absl::StrAppend(&text, "alike from #", first, " to #", sequence - 1, "; ");
    absl::StrAppend(&text, "they part at #", sequence, ":\n");
    for (const auto& [rank, entries] : ranks) {
      const auto entry = entries->find(sequence);
      absl::StrAppend(&text, "  rank ", rank, ": ");
      if (entry != entries->end()) {
        absl::StrAppend(&text, Describe(entry->second, last_us), "\n");
      } else if (entries->empty()) {
        absl::StrAppend(&text, "never called anything\n");
      } else {
        const auto& [number, newest] = *entries->rbegin();
        absl::StrAppend(&text, "never called it; its last is #", number, " ", Describe(newest, last_us), "\n");
      }
    }
    return text;
  }
  if (last == 0) return absl::StrCat(text, "nothing was called\n");
  return absl::StrCat(text, "alike from #", first, " to #", last, ", all done\n");
}

}  // namespace

absl::StatusOr<std::string> MergeFlights(const std::vector<std::string>& texts, const std::vector<std::string>& names) {
  std::map<int, Flight> flights;
  int world_size = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    absl::StatusOr<Flight> flight = Parse(texts[i], names[i]);
    if (!flight.ok()) return flight.status();
    if (flights.count(flight->rank) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(names[i], ": rank ", flight->rank, " is there twice"));
    }
    world_size = std::max(world_size, flight->world_size);
    const int rank = flight->rank;
    flights[rank] = *std::move(flight);
  }
  int64_t last_us = 0;
  std::map<std::string, std::map<int, const Entries*>> groups;
  for (const auto& [rank, flight] : flights) {
    for (const auto& [name, entries] : flight.groups) {
      groups[name][rank] = &entries;
      for (const auto& [sequence, entry] : entries) last_us = std::max({last_us, entry.asked_us, entry.ended_us});
    }
  }
  std::string text = absl::StrCat(flights.size(), " of ", world_size, " ranks");
  std::string missing;
  for (int rank = 0; rank < world_size; ++rank) {
    if (flights.count(rank) == 0) absl::StrAppend(&missing, missing.empty() ? "; no file of rank " : ", ", rank);
  }
  absl::StrAppend(&text, missing, "\n");
  for (const auto& [name, ranks] : groups) absl::StrAppend(&text, DescribeGroup(name, ranks, last_us));
  return text;
}

}  // namespace lockstep
