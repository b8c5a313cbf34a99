#pragma once

#include <absl/status/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace lockstep {
namespace internal {
class YamlSource;
}

/// A program's options, bound once to its variables, and read from YAML files and from a command line's `--set`.
///
///     ConfigFields fields;
///     fields.Add("lr", &config.lr, "SGD's learning rate");
///     fields.Add("trainer.max_steps", &config.trainer.max_steps, "stop after so many steps");
///     LOCKSTEP_RETURN_IF_ERROR(fields.Load("cifar10.yaml"));
///     LOCKSTEP_RETURN_IF_ERROR(fields.Set("lr=0.05"));
///
/// What is not given keeps the variable's value. The variables must live as long as this. Not thread-safe.
class ConfigFields {
 public:
  /// nullopt is YAML's null.
  using Target =
      std::variant<double*, int64_t*, size_t*, int*, bool*, std::string*, std::vector<double>*, std::vector<int64_t>*,
                   std::vector<size_t>*, std::vector<int>*, std::vector<bool>*, std::vector<std::string>*,
                   std::optional<double>*, std::optional<int64_t>*, std::optional<size_t>*, std::optional<int>*,
                   std::optional<bool>*, std::optional<std::string>*>;

  /// Binds a name to a variable, whose value now is the default. Names are letters, digits, `_` and `-`; dots make them
  /// keys of nested maps. A name that is taken, or is a map and a value at once, breaks an invariant. Numbers must be
  /// finite in files unless the default isn't.
  void Add(const std::string& name, Target target, const std::string& doc);

  /// `check` is called whenever a file or Set has given the field, after all variables have their new values. Its error
  /// is reported with the place of the field, and the variables get their former values back.
  void Check(const std::string& name, std::function<absl::Status()> check);

  /// Reads a file of one YAML map (JSON is YAML too). Every problem of the file is a line of the one error, with line
  /// and column, and no variable is changed then. Errors: NotFound; Unavailable with what the system says;
  /// InvalidArgument for all else.
  absl::Status Load(const std::string& path);

  /// The same of `text`, which errors call `source`.
  absl::Status LoadText(const std::string& text, const std::string& source);

  /// Reads `name=value`, the value in YAML (`device=[cuda:0,cuda:1]`, `trainer={max_steps: 3}`). What comes later wins.
  /// InvalidArgument.
  absl::Status Set(const std::string& assignment);

  /// Whether there is such a field.
  bool Has(const std::string& name) const { return index_.count(name) > 0; }

  /// Whether a file or Set gave the field.
  bool Given(const std::string& name) const;

  /// A field whose value differs between two configurations of the same fields.
  struct Difference {
    std::string name, before, now;  ///< The values as YAML.
  };
  /// In the order of Add; fields that `before` doesn't have are left out.
  std::vector<Difference> DifferencesFrom(const ConfigFields& before) const;

  /// The values now, in the order of Add, as a file that Load reads back to the same values.
  std::string ToYaml() const;

  /// The same as JSON, for other programs to read; numbers that are not finite are null.
  std::string ToJson() const;

  /// A paragraph for each field: name, type, default, what it is.
  std::string Help() const;

 private:
  class Reader;
  absl::Status Load(const internal::YamlSource& source);
  struct Field {
    std::string name;
    Target target;
    std::string doc;
    std::string initial;  ///< The default, as text.
    bool may_be_non_finite = false;
    bool given = false;
    std::vector<std::function<absl::Status()>> checks{};
  };
  Field& Known(const std::string& name);
  void AppendYaml(const std::string& prefix, const std::string& indent, std::string& yaml) const;

  std::vector<Field> fields_;
  std::map<std::string, size_t> index_;  ///< Of the fields by name.
  std::vector<std::string> sections_;    ///< The names of the maps.
};

}  // namespace lockstep
