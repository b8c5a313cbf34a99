#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>

#include <cstring>
#include <memory>
#include <unordered_map>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/dtypes.h"
#include "lockstep/checkpoint/internal/pickle.h"

namespace lockstep::internal {
namespace {

/// An object of the pickle machine. Objects are shared between the stack, the memo and containers, which are filled
/// after they were memoised.
struct Node;
using Ref = std::shared_ptr<Node>;
struct Mark {};
struct Global {
  std::string name;  // module.name
};
struct Storage {
  at::Tensor tensor;
};
struct List {
  std::vector<Ref> items;
};
struct Tuple {
  std::vector<Ref> items;
};
struct Dict {
  std::vector<std::pair<Ref, Ref>> items;
  bool ordered = false;
};
struct Node {
  std::variant<Value, Mark, Global, Storage, List, Tuple, Dict> what;

  template <typename T>
  T* as() {
    return std::get_if<T>(&what);
  }
};

constexpr int kMaxDepth = 100;
constexpr int64_t kMaxValues = 50'000'000;

absl::Status Error(const std::string& what) { return absl::InvalidArgumentError("pickle: " + what); }

/// Copies the objects out. Limits stop cycles, and small files that share their parts to make an endless value.
class Converter {
 public:
  absl::StatusOr<Value> Convert(const Ref& node, int depth = 0) {
    if (depth > kMaxDepth) return Error("nested too deeply, or in a circle");
    if (++count_ > kMaxValues) return Error("too many values");
    if (auto* v = node->as<Value>()) return *v;
    if (auto* list = node->as<List>()) {
      LOCKSTEP_ASSIGN_OR_RETURN(ValueList items, ConvertAll(list->items, depth));
      return Value(std::move(items));
    }
    if (auto* tuple = node->as<Tuple>()) {
      LOCKSTEP_ASSIGN_OR_RETURN(ValueList items, ConvertAll(tuple->items, depth));
      return Value(ValueTuple{std::move(items)});
    }
    if (auto* dict = node->as<Dict>()) {
      ValueDict result;
      result.ordered = dict->ordered;
      for (const auto& [key, item] : dict->items) {
        LOCKSTEP_ASSIGN_OR_RETURN(Value k, Convert(key, depth + 1));
        LOCKSTEP_ASSIGN_OR_RETURN(Value v, Convert(item, depth + 1));
        result.items.emplace_back(std::move(k), std::move(v));
      }
      return Value(std::move(result));
    }
    return Error("something that is no value");
  }

 private:
  absl::StatusOr<ValueList> ConvertAll(const std::vector<Ref>& nodes, int depth) {
    ValueList values;
    for (const auto& node : nodes) {
      LOCKSTEP_ASSIGN_OR_RETURN(Value v, Convert(node, depth + 1));
      values.push_back(std::move(v));
    }
    return values;
  }
  int64_t count_ = 0;
};

/// Opcodes: https://github.com/python/cpython/blob/3.11/Lib/pickletools.py
class Unpickler {
 public:
  Unpickler(const std::string& bytes, const StorageReader& read_storage) : bytes_(bytes), read_storage_(read_storage) {}

  absl::StatusOr<Value> Run() {
    while (true) {
      LOCKSTEP_ASSIGN_OR_RETURN(const uint8_t op, Read<uint8_t>());
      if (op == '.') break;
      LOCKSTEP_RETURN_IF_ERROR(Execute(op));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Ref result, Pop());
    return Converter().Convert(result);
  }

 private:
  template <typename T>
  absl::StatusOr<T> Read() {
    if (bytes_.size() - at_ < sizeof(T)) return Error("truncated");
    T v;
    std::memcpy(&v, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return v;
  }
  absl::StatusOr<std::string> Read(uint64_t n) {
    if (bytes_.size() - at_ < n) return Error("truncated");
    std::string s = bytes_.substr(at_, n);
    at_ += n;
    return s;
  }
  absl::StatusOr<std::string> Line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string::npos) return Error("truncated");
    std::string s = bytes_.substr(at_, end - at_);
    at_ = end + 1;
    return s;
  }

  template <typename T>
  absl::Status Push(T what) {
    stack_.push_back(std::make_shared<Node>(Node{std::move(what)}));
    return absl::OkStatus();
  }
  absl::StatusOr<Ref> Pop() {
    if (stack_.empty() || stack_.back()->as<Mark>() != nullptr) return Error("a value is missing");
    Ref top = std::move(stack_.back());
    stack_.pop_back();
    return top;
  }
  absl::StatusOr<std::vector<Ref>> PopMany(size_t n) {
    if (stack_.size() < n) return Error("a value is missing");
    std::vector<Ref> items(stack_.end() - n, stack_.end());
    stack_.resize(stack_.size() - n);
    return items;
  }
  /// The objects above the last mark, which is removed.
  absl::StatusOr<std::vector<Ref>> PopMark() {
    for (size_t i = stack_.size(); i-- > 0;) {
      if (stack_[i]->as<Mark>() == nullptr) continue;
      std::vector<Ref> items(stack_.begin() + i + 1, stack_.end());
      stack_.resize(i);
      return items;
    }
    return Error("a mark is missing");
  }

  template <typename T>
  static const T* Plain(const Ref& node) {
    const Value* v = node->as<Value>();
    return v == nullptr ? nullptr : std::get_if<T>(&v->get());
  }

  absl::Status SetItems(const std::vector<Ref>& items) {
    Dict* dict = stack_.empty() ? nullptr : stack_.back()->as<Dict>();
    if (dict == nullptr || items.size() % 2 != 0) return Error("entries for something that is no dict");
    for (size_t i = 0; i < items.size(); i += 2) dict->items.emplace_back(items[i], items[i + 1]);
    return absl::OkStatus();
  }
  absl::Status Appends(const std::vector<Ref>& items) {
    List* list = stack_.empty() ? nullptr : stack_.back()->as<List>();
    if (list == nullptr) return Error("items for something that is no list");
    list->items.insert(list->items.end(), items.begin(), items.end());
    return absl::OkStatus();
  }

  absl::Status PersistentLoad() {
    LOCKSTEP_ASSIGN_OR_RETURN(const Ref node, Pop());
    const Tuple* id = node->as<Tuple>();
    if (id == nullptr || id->items.size() != 5) return Error("a bad storage reference");
    const auto* kind = Plain<std::string>(id->items[0]);
    const Global* type = id->items[1]->as<Global>();
    const auto* key = Plain<std::string>(id->items[2]);
    const auto* numel = Plain<int64_t>(id->items[4]);
    if (kind == nullptr || *kind != "storage" || type == nullptr || key == nullptr || numel == nullptr || *numel < 0) {
      return Error("a bad storage reference");
    }
    const auto dtype = type->name.compare(0, 6, "torch.") == 0 ? StorageDtype(type->name.substr(6)) : std::nullopt;
    if (!dtype) return Error("storages of type " + type->name + " are not supported");
    auto found = storages_.find(*key);
    if (found == storages_.end()) {
      LOCKSTEP_ASSIGN_OR_RETURN(at::Tensor storage, read_storage_(*key, *dtype, *numel));
      found = storages_.emplace(*key, std::move(storage)).first;
    }
    if (found->second.scalar_type() != *dtype) return Error("a storage is used with two dtypes");
    return Push(Storage{found->second});
  }

  absl::Status Reduce() {
    LOCKSTEP_ASSIGN_OR_RETURN(const Ref arguments, Pop());
    LOCKSTEP_ASSIGN_OR_RETURN(const Ref function, Pop());
    const Tuple* args = arguments->as<Tuple>();
    const Global* global = function->as<Global>();
    if (args == nullptr || global == nullptr) return Error("a call of no function");
    if (global->name == "collections.OrderedDict" && args->items.empty()) {
      Dict dict;
      dict.ordered = true;
      return Push(std::move(dict));
    }
    if (global->name == "torch._utils._rebuild_tensor_v2" && args->items.size() >= 6) return RebuildTensor(args->items);
    if (global->name == "torch._utils._rebuild_parameter" && !args->items.empty()) {
      stack_.push_back(args->items[0]);
      return absl::OkStatus();
    }
    return Error("the call " + global->name + " is not supported");
  }

  static absl::StatusOr<std::vector<int64_t>> Ints(const Ref& node) {
    const Tuple* tuple = node->as<Tuple>();
    if (tuple == nullptr) return Error("a tensor's sizes are no tuple");
    std::vector<int64_t> ints;
    for (const auto& item : tuple->items) {
      const auto* n = Plain<int64_t>(item);
      if (n == nullptr || *n < 0) return Error("a tensor's sizes are not whole numbers");
      ints.push_back(*n);
    }
    return ints;
  }

  absl::Status RebuildTensor(const std::vector<Ref>& args) {
    const Storage* storage = args[0]->as<Storage>();
    const auto* offset = Plain<int64_t>(args[1]);
    if (storage == nullptr || offset == nullptr || *offset < 0) return Error("a bad tensor");
    LOCKSTEP_ASSIGN_OR_RETURN(const auto sizes, Ints(args[2]));
    LOCKSTEP_ASSIGN_OR_RETURN(const auto strides, Ints(args[3]));
    if (sizes.size() != strides.size() || sizes.size() > 64) return Error("a bad tensor");
    // The last element must lie inside the storage. Doubles can't overflow, and are exact where it matters.
    double last = static_cast<double>(*offset);
    bool empty = false;
    for (size_t d = 0; d < sizes.size(); ++d) {
      empty = empty || sizes[d] == 0;
      last += (static_cast<double>(sizes[d]) - 1) * static_cast<double>(strides[d]);
    }
    if (!empty && last >= static_cast<double>(storage->tensor.numel())) {
      return Error("a tensor reaches past the end of its storage");
    }
    return Push(Value(at::empty({0}, storage->tensor.options())
                          .set_(storage->tensor.storage(), empty ? 0 : *offset, sizes, strides)));
  }

  absl::Status Long(uint64_t n) {
    LOCKSTEP_ASSIGN_OR_RETURN(const std::string raw, Read(n));
    if (n > 8) return Error("an integer of more than 64 bits");
    int64_t v = n > 0 && (raw[n - 1] & 0x80) != 0 ? -1 : 0;
    std::memcpy(&v, raw.data(), n);
    return Push(Value(v));
  }

  template <typename T>
  absl::Status String() {
    LOCKSTEP_ASSIGN_OR_RETURN(const T n, Read<T>());
    LOCKSTEP_ASSIGN_OR_RETURN(std::string s, Read(uint64_t{n}));
    return Push(Value(std::move(s)));
  }
  template <typename T>
  absl::Status Int() {
    LOCKSTEP_ASSIGN_OR_RETURN(const T v, Read<T>());
    return Push(Value(int64_t{v}));
  }
  template <typename T>
  absl::Status Put() {
    LOCKSTEP_ASSIGN_OR_RETURN(const T index, Read<T>());
    if (stack_.empty()) return Error("a value is missing");
    memo_[index] = stack_.back();
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status Get() {
    LOCKSTEP_ASSIGN_OR_RETURN(const T index, Read<T>());
    const auto found = memo_.find(index);
    if (found == memo_.end()) return Error("a reference to nothing");
    stack_.push_back(found->second);
    return absl::OkStatus();
  }
  absl::Status MakeTuple(absl::StatusOr<std::vector<Ref>> items) {
    LOCKSTEP_RETURN_IF_ERROR(items.status());
    return Push(Tuple{*std::move(items)});
  }
  absl::Status PushGlobal(const std::string& name) {
    const bool known = name == "collections.OrderedDict" || name == "torch._utils._rebuild_tensor_v2" ||
                       name == "torch._utils._rebuild_parameter" ||
                       (name.compare(0, 6, "torch.") == 0 && StorageDtype(name.substr(6)));
    if (!known) return Error("the global " + name + " is not allowed");
    return Push(Global{name});
  }

  absl::Status Execute(uint8_t op) {
    switch (op) {
      case 0x80: return Read<uint8_t>().status();   // PROTO
      case 0x95: return Read<uint64_t>().status();  // FRAME
      case '(': return Push(Mark{});
      case 'N': return Push(Value());
      case 0x88: return Push(Value(true));
      case 0x89: return Push(Value(false));
      case '}': return Push(Dict{});
      case ']': return Push(List{});
      case ')': return Push(Tuple{});
      case 0x85: return MakeTuple(PopMany(1));
      case 0x86: return MakeTuple(PopMany(2));
      case 0x87: return MakeTuple(PopMany(3));
      case 't': return MakeTuple(PopMark());
      case '0': return Pop().status();
      case 'J': return Int<int32_t>();
      case 'K': return Int<uint8_t>();
      case 'M': return Int<uint16_t>();
      case 0x8a: {  // LONG1
        LOCKSTEP_ASSIGN_OR_RETURN(const uint8_t n, Read<uint8_t>());
        return Long(n);
      }
      case 'G': {  // BINFLOAT, big-endian
        LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t big, Read<uint64_t>());
        const uint64_t bits = __builtin_bswap64(big);
        double v;
        std::memcpy(&v, &bits, 8);
        return Push(Value(v));
      }
      case 'X': return String<uint32_t>();
      case 0x8c: return String<uint8_t>();
      case 'c': {
        LOCKSTEP_ASSIGN_OR_RETURN(const std::string module, Line());
        LOCKSTEP_ASSIGN_OR_RETURN(const std::string name, Line());
        return PushGlobal(module + "." + name);
      }
      case 'q': return Put<uint8_t>();
      case 'r': return Put<uint32_t>();
      case 0x94:  // MEMOIZE
        if (stack_.empty()) return Error("a value is missing");
        memo_[memo_.size()] = stack_.back();
        return absl::OkStatus();
      case 0x93: {  // STACK_GLOBAL
        LOCKSTEP_ASSIGN_OR_RETURN(const auto names, PopMany(2));
        const auto *module = Plain<std::string>(names[0]), *name = Plain<std::string>(names[1]);
        if (module == nullptr || name == nullptr) return Error("a global without a name");
        return PushGlobal(*module + "." + *name);
      }
      case 'h': return Get<uint8_t>();
      case 'j': return Get<uint32_t>();
      case 'Q': return PersistentLoad();
      case 'R': return Reduce();
      case 'b': {  // BUILD: the attributes of an OrderedDict (a state_dict's _metadata) carry no weights
        LOCKSTEP_RETURN_IF_ERROR(Pop().status());
        if (stack_.empty() || stack_.back()->as<Dict>() == nullptr)
          return Error("attributes for something that is no dict");
        return absl::OkStatus();
      }
      case 's': {
        LOCKSTEP_ASSIGN_OR_RETURN(const auto items, PopMany(2));
        return SetItems(items);
      }
      case 'u': {
        LOCKSTEP_ASSIGN_OR_RETURN(const auto items, PopMark());
        return SetItems(items);
      }
      case 'a': {
        LOCKSTEP_ASSIGN_OR_RETURN(const auto items, PopMany(1));
        return Appends(items);
      }
      case 'e': {
        LOCKSTEP_ASSIGN_OR_RETURN(const auto items, PopMark());
        return Appends(items);
      }
      default: return Error(absl::StrCat("opcode 0x", absl::Hex(op, absl::kZeroPad2), " is not supported"));
    }
  }

  const std::string& bytes_;
  const StorageReader& read_storage_;
  size_t at_ = 0;
  std::vector<Ref> stack_;
  std::unordered_map<uint64_t, Ref> memo_;
  std::unordered_map<std::string, at::Tensor> storages_;
};

}  // namespace

absl::StatusOr<Value> Unpickle(const std::string& bytes, const StorageReader& read_storage) {
  return Unpickler(bytes, read_storage).Run();
}

}  // namespace lockstep::internal
