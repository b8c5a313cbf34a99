#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <ATen/core/Tensor.h>

#include <deque>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/checkpoint/internal/pickle.h"
#include "lockstep/checkpoint/value.h"

namespace lockstep::internal {

// The objects of the pickle machine. They are shared between the stack, the memo and containers, which are filled after
// they were memoised, and may be nested without end: an arena owns them all.

struct Node;
using Ref = Node*;

struct Mark {};
struct Global {
  std::string name;  // module.name
};
struct Storage {
  at::Tensor bytes;  // undefined where tensors are left out
  at::ScalarType dtype;
};
struct List {
  std::vector<Ref> items;
};
struct Tuple {
  std::vector<Ref> items;
  bool is_size = false;
};
struct Set {
  std::vector<Ref> items;
};
struct Dict {
  std::vector<std::pair<Ref, Ref>> items;
  ValueDict::Kind kind = ValueDict::Kind::kPlain;
  Ref attributes = nullptr;
};
/// numpy.dtype: of scalars and arrays.
struct NumpyDtype {
  char kind;    // f, i, u, b, c
  size_t size;  // bytes
  bool swapped = false;
};

/// A numpy array that waits for its state, which makes a tensor of it.
struct NumpyArray {};

struct Node {
  std::variant<Value, Mark, Global, Storage, List, Tuple, Set, Dict, NumpyDtype, NumpyArray> what;

  template <typename T>
  T* as() {
    return std::get_if<T>(&what);
  }
  /// A plain value of that type, or null.
  template <typename T>
  const T* plain() const {
    const Value* v = std::get_if<Value>(&what);
    return v == nullptr ? nullptr : std::get_if<T>(&v->get());
  }
};

inline absl::Status PickleError(const std::string& what) { return absl::InvalidArgumentError("pickle: " + what); }

/// Memory that a pickle may make us take.
class Budget {
 public:
  explicit Budget(size_t pickle) : left_((size_t{64} << 20) + 64 * pickle) {}
  absl::Status Take(size_t bytes) {
    if (bytes > left_) return PickleError("its values would take too much memory for its size");
    left_ -= bytes;
    return absl::OkStatus();
  }

 private:
  size_t left_;
};

/// Whether the machine may hold a global of this name at all.
bool IsKnownGlobal(const std::string& name, NumpyArrays arrays);
/// The reason why a global that Python knows has no meaning here; empty for others.
std::string WhyRefused(const std::string& name, NumpyArrays arrays);

/// What calling `global` with `arguments` gives: what Reduce and NewObject push.
absl::StatusOr<Node> Call(const std::string& global, const std::vector<Ref>& arguments);
/// What setting `state` on `object` makes of it, in place.
absl::Status Build(Node& object, Ref state);

/// Copies the objects out.
absl::StatusOr<Value> ToValue(Ref node, Budget& budget);

}  // namespace lockstep::internal
