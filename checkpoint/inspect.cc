// Shows what is in a checkpoint, .pth of either format or safetensors:
//   ./bazelw run //checkpoint:inspect -- FILE [--json] [--stats]

#include <absl/flags/flag.h>
#include <absl/flags/parse.h>
#include <absl/flags/usage.h>
#include <absl/flags/usage_config.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/checkpoint/internal/dtypes.h"
#include "lockstep/checkpoint/pth.h"
#include "lockstep/checkpoint/safetensors.h"

ABSL_FLAG(bool, json, false, "one JSON object per line instead of a table");
ABSL_FLAG(bool, stats, false, "also each tensor's sum, least and largest number, and whether all are finite");

namespace {

using lockstep::Value;

struct Row {
  std::string key, type, shape;  // of what is no tensor, the value for a shape
  int64_t bytes = -1;
  nlohmann::ordered_json stats;
};

std::string Text(const Value& value) {
  if (value.string() != nullptr) {
    const std::string text =
        nlohmann::json(*value.string()).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return text.size() > 60 ? text.substr(0, 57) + "…\"" : text;
  }
  if (const auto* flag = std::get_if<bool>(&value.get())) return *flag ? "True" : "False";
  if (const auto* whole = std::get_if<int64_t>(&value.get())) return absl::StrCat(*whole);
  if (const auto* number = std::get_if<double>(&value.get())) return absl::StrCat(*number);
  if (const auto* dtype = std::get_if<at::ScalarType>(&value.get())) return lockstep::internal::DtypeName(*dtype);
  if (const auto* device = std::get_if<at::Device>(&value.get())) return device->str();
  if (value.items() != nullptr) return absl::StrCat(value.items()->size(), " items");
  if (value.dict() != nullptr) return absl::StrCat(value.dict()->items.size(), " items");
  if (const auto* bytes = std::get_if<lockstep::ValueBytes>(&value.get())) {
    return absl::StrCat(bytes->bytes.size(), " bytes");
  }
  if (const auto* complex = std::get_if<std::complex<double>>(&value.get())) {
    return absl::StrCat(complex->real(), complex->imag() < 0 ? "" : "+", complex->imag(), "j");
  }
  if (const auto* big = std::get_if<lockstep::ValueBigInt>(&value.get())) {  // two's complement, in hexadecimal
    std::string text = "0x";
    for (auto byte = big->bytes.rbegin(); byte != big->bytes.rend(); ++byte) {
      absl::StrAppend(&text, absl::Hex(static_cast<unsigned char>(*byte), absl::kZeroPad2));
    }
    return text;
  }
  return value.is_none() ? "None" : "";
}

nlohmann::ordered_json Stats(const at::Tensor& tensor) {
  nlohmann::ordered_json stats;
  if (tensor.numel() == 0) return {{"sum", 0}, {"min", nullptr}, {"max", nullptr}, {"finite", true}};
  const at::Tensor plain = tensor.detach().resolve_conj();
  if (plain.is_complex()) {
    const at::Tensor wide = at::view_as_real(plain.to(at::kComplexDouble));
    return {{"sum", nullptr}, {"min", nullptr}, {"max", nullptr}, {"finite", wide.isfinite().all().item<bool>()}};
  }
  const at::Tensor wide = plain.to(at::kDouble);
  return {{"sum", wide.sum().item<double>()},
          {"min", wide.min().item<double>()},
          {"max", wide.max().item<double>()},
          {"finite", wide.isfinite().all().item<bool>()}};
}

void Collect(const Value& value, const std::string& key, bool stats, std::vector<Row>& rows) {
  if (const at::Tensor* tensor = value.tensor()) {
    Row row{key,
            lockstep::internal::DtypeName(tensor->scalar_type()),
            absl::StrCat("[", absl::StrJoin(tensor->sizes(), ", "), "]"),
            static_cast<int64_t>(tensor->nbytes()),
            {}};
    if (stats) row.stats = Stats(*tensor);
    rows.push_back(std::move(row));
    return;
  }
  const auto below = [&](const std::string& name) { return key.empty() ? name : key + "." + name; };
  if (value.dict() != nullptr && !value.dict()->items.empty()) {
    for (const auto& [name, item] : value.dict()->items) {
      Collect(item, below(name.string() != nullptr ? *name.string() : Text(name)), stats, rows);
    }
    return;
  }
  if (value.items() != nullptr && !value.items()->empty()) {
    for (size_t i = 0; i < value.items()->size(); ++i) {
      Collect((*value.items())[i], below(absl::StrCat(i)), stats, rows);
    }
    return;
  }
  rows.push_back({key, value.type_name(), Text(value), -1, {}});
}

std::string Cell(const nlohmann::ordered_json& json) {
  return json.is_number_float() ? absl::StrCat(json.get<double>()) : json.dump();
}

void PrintTable(const std::vector<Row>& rows, bool stats) {
  std::vector<std::vector<std::string>> cells = {{"key", "dtype", "shape", "bytes"}};
  if (stats) cells[0].insert(cells[0].end(), {"sum", "min", "max", "finite"});
  int64_t bytes = 0, tensors = 0;
  for (const Row& row : rows) {
    cells.push_back({row.key, row.type, row.shape, row.bytes < 0 ? "" : absl::StrCat(row.bytes)});
    tensors += row.bytes < 0 ? 0 : 1;
    bytes += row.bytes < 0 ? 0 : row.bytes;
    for (const char* name : {"sum", "min", "max", "finite"}) {
      if (stats) cells.back().push_back(row.stats.is_null() ? "" : Cell(row.stats[name]));
    }
  }
  std::vector<size_t> widths(cells[0].size());
  for (const auto& row : cells) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const auto& row : cells) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) line += std::string(widths[i] - row[i].size() + 2, ' ');
    }
    std::printf("%s\n", line.substr(0, line.find_last_not_of(' ') + 1).c_str());
  }
  std::printf("%s tensors, %s bytes\n", absl::StrCat(tensors).c_str(), absl::StrCat(bytes).c_str());
}

void PrintJson(const std::vector<Row>& rows) {
  for (const Row& row : rows) {
    nlohmann::ordered_json line = {{"key", row.key}, {"dtype", row.type}};
    if (row.bytes >= 0) {
      line["shape"] = nlohmann::json::parse(row.shape);
      line["bytes"] = row.bytes;
      if (!row.stats.is_null()) line.update(row.stats);
    } else {
      line["value"] = row.shape;
    }
    std::printf("%s\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
  }
}

/// By what the file begins with: zip files and pickles are .pth.
absl::StatusOr<Value> Load(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  char begin[2] = {};
  file.read(begin, 2);
  if (file && ((begin[0] == 'P' && begin[1] == 'K') || begin[0] == '\x80')) return lockstep::LoadPth(path);
  auto loaded = lockstep::LoadSafetensors(path);
  if (loaded.status().code() == absl::StatusCode::kInvalidArgument && file && !absl::EndsWith(path, ".safetensors")) {
    return absl::InvalidArgumentError("file " + path + ": neither .pth nor safetensors");
  }
  if (!loaded.ok()) return loaded.status();
  return std::move(loaded->tensors);
}

}  // namespace

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "shows what is in a checkpoint: .pth of either format, or safetensors.\nFILE [--json] [--stats]");
  absl::FlagsUsageConfig usage;
  usage.contains_helpshort_flags = [](absl::string_view file) { return absl::StrContains(file, "inspect.cc"); };
  usage.contains_help_flags = usage.contains_helpshort_flags;
  absl::SetFlagsUsageConfig(usage);
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() != 2) {
    std::fprintf(stderr, "error: give one file; --help shows the flags\n");
    return 1;
  }
  std::string path = rest[1];
  const char* folder = std::getenv("BUILD_WORKING_DIRECTORY");  // `bazel run` begins somewhere else
  if (folder != nullptr && path[0] != '/') path = absl::StrCat(folder, "/", path);
  const auto value = Load(path);
  if (!value.ok()) {
    std::fprintf(stderr, "error: %s\n", std::string(value.status().message()).c_str());
    return 1;
  }
  const at::NoGradGuard no_grad;
  std::vector<Row> rows;
  Collect(*value, "", absl::GetFlag(FLAGS_stats), rows);
  if (absl::GetFlag(FLAGS_json)) {
    PrintJson(rows);
  } else {
    PrintTable(rows, absl::GetFlag(FLAGS_stats));
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}
