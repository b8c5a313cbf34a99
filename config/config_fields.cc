#include "lockstep/config/config_fields.h"

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include "lockstep/base/status_macros.h"
#include "lockstep/config/internal/closest_name.h"
#include "lockstep/config/internal/config_value.h"
#include "lockstep/config/internal/quote.h"
#include "lockstep/config/internal/yaml_source.h"
#include "lockstep/base/logging.h"

namespace lockstep {
namespace {

constexpr size_t kMostProblems = 20;  // that an error lists

bool IsNamePart(const std::string& part) {
  return !part.empty() &&
         std::all_of(part.begin(), part.end(), [](char c) { return absl::ascii_isalnum(c) || c == '_' || c == '-'; });
}

template <typename T>
nlohmann::ordered_json Json(const T& value) {
  return value;
}
template <typename T>
nlohmann::ordered_json Json(const std::optional<T>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

std::string TextOf(const ConfigFields::Target& target) {
  return std::visit([](const auto* value) { return internal::ToText(*value); }, target);
}

}  // namespace

/// Reads one source: notes every problem, and changes the variables only where there is none.
class ConfigFields::Reader {
 public:
  Reader(ConfigFields& fields, const internal::YamlSource& source) : fields_(fields), source_(source) {}

  /// The entries of a map, of names that begin with `prefix`. Only names that are known are followed, each once, so
  /// that no alias can make it endless.
  void ReadMap(const YAML::Node& map, const std::string& prefix) {
    for (const auto& entry : map) {
      if (!entry.first.IsScalar()) {
        Note(entry.first.Mark(), absl::StrCat("a key must be a name, found ", internal::Describe(entry.first)));
      } else {
        ReadEntry(entry.first.Mark(), prefix + entry.first.Scalar(), entry.second);
      }
    }
  }

  void ReadEntry(const YAML::Mark& mark, const std::string& name, const YAML::Node& value) {
    const auto [first, is_new] = seen_.emplace(name, mark);
    const auto known = fields_.index_.find(name);
    if (!is_new) {
      Note(mark, absl::StrCat("duplicate key ", internal::Quoted(name), ", first in line ", first->second.line + 1));
    } else if (known != fields_.index_.end()) {
      ReadField(fields_.fields_[known->second], mark, value);
    } else if (std::count(fields_.sections_.begin(), fields_.sections_.end(), name) == 0) {
      NoteUnknown(mark, name);
    } else if (value.IsMap()) {
      ReadMap(value, name + ".");
    } else {
      Note(mark, absl::StrCat(name, ": expected a map of its keys, found ", internal::Describe(value)));
    }
  }

  void Note(const YAML::Mark& mark, const std::string& problem) {
    if (++problem_count_ <= kMostProblems) problems_.push_back(source_.At(mark) + problem);
  }

  absl::Status Finish() {
    if (problems_.empty()) Apply();
    if (problems_.empty()) return absl::OkStatus();
    if (problem_count_ > problems_.size()) {
      problems_.push_back(absl::StrCat("… and ", problem_count_ - problems_.size(), " more"));
    }
    return absl::InvalidArgumentError(absl::StrJoin(problems_, "\n"));
  }

 private:
  void ReadField(Field& field, const YAML::Mark& mark, const YAML::Node& node) {
    std::visit(
        [&](auto* target) {
          const auto value = std::make_shared<std::remove_pointer_t<decltype(target)>>();
          const std::string wrong = internal::ReadValue(node, field.may_be_non_finite, *value);
          if (!wrong.empty()) return Note(mark, field.name + wrong);
          read_.push_back({&field, mark, [target, value] { std::swap(*target, *value); }});
        },
        field.target);
  }

  void NoteUnknown(const YAML::Mark& mark, const std::string& name) {
    if (name == "<<" || absl::EndsWith(name, ".<<")) {
      return Note(mark, "merge keys ('<<') can't be used; write the keys out");
    }
    std::vector<std::string> names;
    if (problem_count_ < kMostProblems) {  // else nobody sees it
      names = fields_.sections_;
      for (const auto& field : fields_.fields_) names.push_back(field.name);
    }
    const std::string closest = internal::ClosestName(name, names);
    Note(mark, absl::StrCat("unknown key ", internal::Quoted(name),
                            closest.empty() ? "" : absl::StrCat("; did you mean '", closest, "'?")));
  }

  void Apply() {
    for (const auto& item : read_) item.swap();
    for (const auto& item : read_) {
      for (const auto& check : item.field->checks) {
        if (const auto status = check(); !status.ok()) {
          Note(item.mark, absl::StrCat(item.field->name, ": ", std::string(status.message())));
        }
      }
    }
    for (const auto& item : read_) {
      if (problems_.empty()) {
        item.field->given = true;
      } else {
        item.swap();
      }
    }
  }

  struct Read {
    Field* field;
    YAML::Mark mark;
    std::function<void()> swap;  ///< The variable's value for the one that was read, and back.
  };

  ConfigFields& fields_;
  const internal::YamlSource& source_;
  std::map<std::string, YAML::Mark> seen_;
  std::vector<Read> read_;
  std::vector<std::string> problems_;
  size_t problem_count_ = 0;
};

void ConfigFields::Add(const std::string& name, Target target, const std::string& doc) {
  const std::vector<std::string> parts = absl::StrSplit(name, '.');
  CHECK(std::all_of(parts.begin(), parts.end(), IsNamePart)) << "'" << name << "' is no name for a field";
  CHECK(std::visit([](const auto* value) { return value != nullptr; }, target)) << name << " has no variable";
  CHECK(index_.emplace(name, fields_.size()).second) << name << " is added twice";
  for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const std::string section = name.substr(0, dot);
    if (std::count(sections_.begin(), sections_.end(), section) == 0) sections_.push_back(section);
  }
  for (const auto& section : sections_) CHECK(index_.count(section) == 0) << section << " is a field and a map";
  const bool finite = std::visit([](const auto* value) { return internal::IsFinite(*value); }, target);
  fields_.push_back({name, target, doc, TextOf(target), !finite});
}

ConfigFields::Field& ConfigFields::Known(const std::string& name) {
  const auto found = index_.find(name);
  CHECK(found != index_.end()) << "there is no field " << name;
  return fields_[found->second];
}

void ConfigFields::Check(const std::string& name, std::function<absl::Status()> check) {
  Known(name).checks.push_back(std::move(check));
}

bool ConfigFields::Given(const std::string& name) const { return const_cast<ConfigFields*>(this)->Known(name).given; }

absl::Status ConfigFields::Load(const std::string& path) {
  LOCKSTEP_ASSIGN_OR_RETURN(const auto source, internal::YamlSource::File(path));
  return Load(source);
}

absl::Status ConfigFields::LoadText(const std::string& text, const std::string& source) {
  return Load(internal::YamlSource::Text(source, text));
}

std::vector<ConfigFields::Difference> ConfigFields::DifferencesFrom(const ConfigFields& before) const {
  std::vector<Difference> differences;
  for (const auto& field : fields_) {
    const auto other = before.index_.find(field.name);
    if (other == before.index_.end()) continue;
    const std::string then = TextOf(before.fields_[other->second].target), now = TextOf(field.target);
    if (then != now) differences.push_back({field.name, then, now});
  }
  return differences;
}

absl::Status ConfigFields::Load(const internal::YamlSource& source) {
  LOCKSTEP_ASSIGN_OR_RETURN(const YAML::Node root, source.Parse());
  Reader reader(*this, source);
  if (root.IsMap()) {
    reader.ReadMap(root, "");
  } else if (root.IsNull()) {
    reader.Note(YAML::Mark::null_mark(), "has no keys; a file that sets nothing is written {}");
  } else {
    reader.Note(root.Mark(), absl::StrCat("expected lines of 'key: value', found ", internal::Describe(root)));
  }
  return reader.Finish();
}

absl::Status ConfigFields::Set(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  const std::string name(absl::StripAsciiWhitespace(assignment.substr(0, equals)));
  if (equals == std::string::npos || name.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--set ", internal::Quoted(assignment), ": expected KEY=VALUE"));
  }
  const auto source = internal::YamlSource::Argument(absl::StrCat("--set ", internal::Shortened(assignment)),
                                                     assignment.substr(equals + 1));
  LOCKSTEP_ASSIGN_OR_RETURN(const YAML::Node value, source.Parse());
  Reader reader(*this, source);
  reader.ReadEntry(value.Mark(), name, value);
  return reader.Finish();
}

void ConfigFields::AppendYaml(const std::string& prefix, const std::string& indent, std::string& yaml) const {
  std::set<std::string> done;
  for (const auto& field : fields_) {
    if (!absl::StartsWith(field.name, prefix)) continue;
    const size_t dot = field.name.find('.', prefix.size());
    const std::string key = field.name.substr(prefix.size(), dot - prefix.size());
    if (dot == std::string::npos) {
      absl::StrAppend(&yaml, indent, key, ": ", TextOf(field.target), "\n");
    } else if (done.insert(key).second) {
      absl::StrAppend(&yaml, indent, key, ":\n");
      AppendYaml(field.name.substr(0, dot + 1), indent + "  ", yaml);
    }
  }
}

std::string ConfigFields::ToYaml() const {
  if (fields_.empty()) return "{}\n";
  std::string yaml;
  AppendYaml("", "", yaml);
  return yaml;
}

std::string ConfigFields::ToJson() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& field : fields_) {
    nlohmann::ordered_json* at = &json;
    for (const auto& key : absl::StrSplit(field.name, '.')) at = &(*at)[std::string(key)];
    std::visit([at](const auto* value) { *at = Json(*value); }, field.target);
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string ConfigFields::Help() const {
  std::string help;
  for (const auto& field : fields_) {
    const std::string type = std::visit([](const auto* value) { return internal::DescribeType(value); }, field.target);
    absl::StrAppend(&help, "  ", field.name, " (", type, "; default: ", field.initial, ")\n      ", field.doc, "\n");
  }
  return help;
}

}  // namespace lockstep
