#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include <cstring>
#include <unordered_map>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/dtypes.h"
#include "lockstep/checkpoint/internal/pickle.h"
#include "lockstep/checkpoint/internal/pickle_nodes.h"

namespace lockstep::internal {
namespace {

/// Opcodes: https://github.com/python/cpython/blob/3.11/Lib/pickletools.py
class Unpickler {
 public:
  Unpickler(std::string_view bytes, const StorageReader& read_storage, NumpyArrays arrays)
      : bytes_(bytes), read_storage_(read_storage), arrays_(arrays), nodes_budget_(bytes.size()) {}

  absl::StatusOr<Unpickled> Run() {
    while (true) {
      LOCKSTEP_ASSIGN_OR_RETURN(const uint8_t op, Read<uint8_t>());
      if (op == '.') break;
      LOCKSTEP_RETURN_IF_ERROR(Execute(op));
    }
    LOCKSTEP_ASSIGN_OR_RETURN(const Ref result, Pop());
    Budget budget(bytes_.size());
    LOCKSTEP_ASSIGN_OR_RETURN(Value value, ToValue(result, budget));
    return Unpickled{std::move(value), at_, std::move(asked_)};
  }

 private:
  template <typename T>
  absl::StatusOr<T> Read() {
    if (bytes_.size() - at_ < sizeof(T)) return PickleError("truncated");
    T v;
    std::memcpy(&v, bytes_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return v;
  }
  absl::StatusOr<std::string> Read(uint64_t n) {
    if (bytes_.size() - at_ < n) return PickleError("truncated");
    std::string s(bytes_.substr(at_, n));
    at_ += n;
    return s;
  }
  absl::StatusOr<std::string> Line() {
    const auto end = bytes_.find('\n', at_);
    if (end == std::string_view::npos) return PickleError("truncated");
    std::string s(bytes_.substr(at_, end - at_));
    at_ = end + 1;
    return s;
  }

  absl::Status Push(Node node) {
    LOCKSTEP_RETURN_IF_ERROR(nodes_budget_.Take(sizeof(Node)));
    nodes_.push_back(std::move(node));
    stack_.push_back(&nodes_.back());
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status Push(T what) {
    return Push(Node{std::move(what)});
  }
  absl::StatusOr<Ref> Pop() {
    if (stack_.empty() || stack_.back()->as<Mark>() != nullptr) return PickleError("a value is missing");
    const Ref top = stack_.back();
    stack_.pop_back();
    return top;
  }
  absl::StatusOr<Ref> Top() {
    if (stack_.empty() || stack_.back()->as<Mark>() != nullptr) return PickleError("a value is missing");
    return stack_.back();
  }
  absl::StatusOr<std::vector<Ref>> PopMany(size_t n) {
    if (stack_.size() < n) return PickleError("a value is missing");
    std::vector<Ref> items(stack_.end() - static_cast<std::ptrdiff_t>(n), stack_.end());
    for (const Ref item : items) {
      if (item->as<Mark>() != nullptr) return PickleError("a value is missing");
    }
    stack_.resize(stack_.size() - n);
    return items;
  }
  /// The objects above the last mark, which is removed.
  absl::StatusOr<std::vector<Ref>> PopMark() {
    for (size_t i = stack_.size(); i-- > 0;) {
      if (stack_[i]->as<Mark>() == nullptr) continue;
      std::vector<Ref> items(stack_.begin() + static_cast<std::ptrdiff_t>(i) + 1, stack_.end());
      stack_.resize(i);
      return items;
    }
    return PickleError("a mark is missing");
  }

  absl::Status SetItems(absl::StatusOr<std::vector<Ref>> items) {
    LOCKSTEP_RETURN_IF_ERROR(items.status());
    Dict* dict = stack_.empty() ? nullptr : stack_.back()->as<Dict>();
    if (dict == nullptr || items->size() % 2 != 0) return PickleError("entries for something that is no dict");
    for (size_t i = 0; i < items->size(); i += 2) dict->items.emplace_back((*items)[i], (*items)[i + 1]);
    return absl::OkStatus();
  }
  template <typename Container>
  absl::Status Append(absl::StatusOr<std::vector<Ref>> items) {
    LOCKSTEP_RETURN_IF_ERROR(items.status());
    Container* list = stack_.empty() ? nullptr : stack_.back()->as<Container>();
    if (list == nullptr) return PickleError("items for something that holds none");
    list->items.insert(list->items.end(), items->begin(), items->end());
    return absl::OkStatus();
  }

  /// ("storage", type, key, location, elements[, view]).
  absl::Status PersistentLoad() {
    LOCKSTEP_ASSIGN_OR_RETURN(const Ref node, Pop());
    const absl::Status bad = PickleError("a bad storage reference");
    const Tuple* id = node->as<Tuple>();
    if (id == nullptr || id->items.size() < 5 || id->items.size() > 6) return bad;
    const auto* kind = id->items[0]->plain<std::string>();
    const Global* type = id->items[1]->as<Global>();
    const auto* key = id->items[2]->plain<std::string>();
    const auto* numel = id->items[4]->plain<int64_t>();
    if (kind == nullptr || *kind != "storage" || type == nullptr || key == nullptr || numel == nullptr || *numel < 0) {
      return bad;
    }
    auto dtype = type->name.rfind("torch.", 0) == 0 ? StorageDtype(type->name.substr(6)) : std::nullopt;
    if (type->name == "torch.storage.UntypedStorage") dtype = at::kByte;
    if (!dtype) return PickleError("storages of type " + type->name + " are not supported");
    const auto itemsize = static_cast<int64_t>(c10::elementSize(*dtype));
    if (*numel > INT64_MAX / itemsize) return bad;
    const int64_t size = *numel * itemsize;
    const auto [asked, first] = asked_.emplace(*key, size);
    if (!first && asked->second != size) return PickleError("storage " + *key + " has two sizes");
    if (!read_storage_) return Push(Storage{{}, *dtype});
    if (first) {
      LOCKSTEP_ASSIGN_OR_RETURN(storages_[*key], read_storage_(*key, size));
    }
    at::Tensor storage = storages_.at(*key);
    if (id->items.size() == 6 && id->items[5]->as<Tuple>() != nullptr) {
      const auto& view = id->items[5]->as<Tuple>()->items;  // key, offset, elements
      const auto* offset = view.size() == 3 ? view[1]->plain<int64_t>() : nullptr;
      const auto* elements = view.size() == 3 ? view[2]->plain<int64_t>() : nullptr;
      if (offset == nullptr || elements == nullptr || *offset < 0 || *elements < 0 || *offset > *numel ||
          *elements > *numel - *offset) {
        return bad;
      }
      storage = storage.narrow(0, *offset * itemsize, *elements * itemsize).clone();
    }
    return Push(Storage{storage, *dtype});
  }

  absl::Status CallTop() {
    LOCKSTEP_ASSIGN_OR_RETURN(const auto operands, PopMany(2));
    const Global* global = operands[0]->as<Global>();
    const Tuple* arguments = operands[1]->as<Tuple>();
    if (arguments == nullptr || global == nullptr) return PickleError("a call of no function");
    LOCKSTEP_ASSIGN_OR_RETURN(Node result, Call(global->name, arguments->items));
    LOCKSTEP_RETURN_IF_ERROR(TakeArray(result));
    return Push(std::move(result));
  }

  absl::Status BuildTop() {
    LOCKSTEP_ASSIGN_OR_RETURN(const Ref state, Pop());
    LOCKSTEP_ASSIGN_OR_RETURN(const Ref object, Top());
    LOCKSTEP_RETURN_IF_ERROR(Build(*object, state));
    return TakeArray(*object);
  }
  /// Arrays have their bytes for themselves, though a pickle may name the same ones again and again.
  absl::Status TakeArray(const Node& made) {
    const auto* tensor = arrays_ == NumpyArrays::kRead ? made.plain<at::Tensor>() : nullptr;
    return tensor == nullptr ? absl::OkStatus() : nodes_budget_.Take(tensor->nbytes());
  }

  absl::Status Long(uint64_t n) {
    LOCKSTEP_ASSIGN_OR_RETURN(std::string raw, Read(n));
    if (n > 8) return Push(Value(ValueBigInt{std::move(raw)}));
    int64_t v = n > 0 && (raw[n - 1] & 0x80) != 0 ? -1 : 0;
    std::memcpy(&v, raw.data(), n);
    return Push(Value(v));
  }

  template <typename Length, typename Kind = std::string>
  absl::Status Text() {
    LOCKSTEP_ASSIGN_OR_RETURN(const Length n, Read<Length>());
    LOCKSTEP_ASSIGN_OR_RETURN(std::string s, Read(uint64_t{n}));
    return Push(Value(Kind{std::move(s)}));
  }
  template <typename T>
  absl::Status Int() {
    LOCKSTEP_ASSIGN_OR_RETURN(const T v, Read<T>());
    return Push(Value(int64_t{v}));
  }
  absl::Status Put(uint64_t index) {
    LOCKSTEP_ASSIGN_OR_RETURN(const Ref top, Top());
    LOCKSTEP_RETURN_IF_ERROR(nodes_budget_.Take(64));
    memo_[index] = top;
    return absl::OkStatus();
  }
  template <typename T>
  absl::Status Put() {
    LOCKSTEP_ASSIGN_OR_RETURN(const T index, Read<T>());
    return Put(index);
  }
  template <typename T>
  absl::Status Get() {
    LOCKSTEP_ASSIGN_OR_RETURN(const T index, Read<T>());
    const auto found = memo_.find(index);
    if (found == memo_.end()) return PickleError("a reference to nothing");
    stack_.push_back(found->second);
    return absl::OkStatus();
  }
  absl::Status MakeTuple(absl::StatusOr<std::vector<Ref>> items) {
    LOCKSTEP_RETURN_IF_ERROR(items.status());
    return Push(Tuple{*std::move(items)});
  }
  absl::Status PushGlobal(std::string module, const std::string& name) {
    if (module == "__builtin__") module = "builtins";  // Python 2's name, which protocol 2 keeps
    const std::string full = module + "." + name;
    if (const std::string why = WhyRefused(full, arrays_); !why.empty()) {
      return PickleError(full + " can't be read: " + why);
    }
    if (!IsKnownGlobal(full, arrays_)) return PickleError("the global " + full + " is not allowed");
    const auto dtype = module == "torch" ? DtypeOf(name) : std::nullopt;
    return dtype ? Push(Value(*dtype)) : Push(Global{full});
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
      case 0x8f: return Push(Set{});
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
      case 0x8b: {  // LONG4
        LOCKSTEP_ASSIGN_OR_RETURN(const uint32_t n, Read<uint32_t>());
        return Long(n);
      }
      case 'G': {  // BINFLOAT, big-endian
        LOCKSTEP_ASSIGN_OR_RETURN(const uint64_t big, Read<uint64_t>());
        const uint64_t bits = __builtin_bswap64(big);
        double v;
        std::memcpy(&v, &bits, 8);
        return Push(Value(v));
      }
      case 'X': return Text<uint32_t>();
      case 0x8c: return Text<uint8_t>();
      case 0x8d: return Text<uint64_t>();
      case 'U': return Text<uint8_t>();  // SHORT_BINSTRING and BINSTRING: Python 2's str
      case 'T': return Text<uint32_t>();
      case 'C': return Text<uint8_t, ValueBytes>();
      case 'B': return Text<uint32_t, ValueBytes>();
      case 0x8e: return Text<uint64_t, ValueBytes>();
      case 0x96: return Text<uint64_t, ValueBytes>();  // BYTEARRAY8
      case 'c': {
        LOCKSTEP_ASSIGN_OR_RETURN(const std::string module, Line());
        LOCKSTEP_ASSIGN_OR_RETURN(const std::string name, Line());
        return PushGlobal(module, name);
      }
      case 'q': return Put<uint8_t>();
      case 'r': return Put<uint32_t>();
      case 0x94: return Put(memo_.size());  // MEMOIZE
      case 0x93: {                          // STACK_GLOBAL
        LOCKSTEP_ASSIGN_OR_RETURN(const auto names, PopMany(2));
        const auto *module = names[0]->plain<std::string>(), *name = names[1]->plain<std::string>();
        if (module == nullptr || name == nullptr) return PickleError("a global without a name");
        return PushGlobal(*module, *name);
      }
      case 'h': return Get<uint8_t>();
      case 'j': return Get<uint32_t>();
      case 'Q': return PersistentLoad();
      case 'R':
      case 0x81: return CallTop();  // REDUCE, NEWOBJ
      case 'b': return BuildTop();
      case 's': return SetItems(PopMany(2));
      case 'u': return SetItems(PopMark());
      case 'a': return Append<List>(PopMany(1));
      case 'e': return Append<List>(PopMark());
      case 0x90: return Append<Set>(PopMark());
      default: return PickleError(absl::StrCat("opcode 0x", absl::Hex(op, absl::kZeroPad2), " is not supported"));
    }
  }

  const std::string_view bytes_;
  const StorageReader& read_storage_;
  const NumpyArrays arrays_;
  Budget nodes_budget_;
  size_t at_ = 0;
  std::deque<Node> nodes_;
  std::vector<Ref> stack_;
  std::unordered_map<uint64_t, Ref> memo_;
  std::unordered_map<std::string, at::Tensor> storages_;
  std::map<std::string, int64_t> asked_;
};

}  // namespace

absl::StatusOr<Unpickled> Unpickle(std::string_view bytes, const StorageReader& read_storage, NumpyArrays arrays) {
  return Unpickler(bytes, read_storage, arrays).Run();
}

}  // namespace lockstep::internal
