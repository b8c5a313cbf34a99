#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <ATen/Functions.h>

#include <cstring>
#include <unordered_map>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/dtypes.h"
#include "lockstep/checkpoint/internal/pickle.h"

namespace lockstep::internal {
namespace {

/// Opcodes: https://github.com/python/cpython/blob/3.11/Lib/pickletools.py
class Pickler {
 public:
  absl::StatusOr<Pickled> Run(const Value& value) {
    result_.bytes = "\x80\x02";
    LOCKSTEP_RETURN_IF_ERROR(Push(value));
    result_.bytes += '.';
    return std::move(result_);
  }

 private:
  void Op(char op) { result_.bytes += op; }
  template <typename T>
  void Raw(T v) {
    result_.bytes.append(reinterpret_cast<const char*>(&v), sizeof(v));
  }

  void Int(int64_t v) {
    if (v >= INT32_MIN && v <= INT32_MAX) {
      Op('J');
      Raw(static_cast<int32_t>(v));
    } else {
      Op('\x8a');  // LONG1, little-endian two's complement
      Op(8);
      Raw(v);
    }
  }

  absl::Status BigInt(const std::string& bytes) {
    if (bytes.size() > 255) return absl::InvalidArgumentError("checkpoint: an integer of more than 2,040 bits");
    Op('\x8a');
    Op(static_cast<char>(bytes.size()));
    result_.bytes += bytes;
    return absl::OkStatus();
  }

  /// As protocol 2 has them: a string of the characters 0 to 255, to be encoded.
  void Bytes(const std::string& bytes) {
    std::string utf8;
    for (const char c : bytes) {
      const auto byte = static_cast<unsigned char>(c);
      if (byte < 0x80) {
        utf8 += c;
      } else {
        utf8 += static_cast<char>(0xC0 | (byte >> 6));
        utf8 += static_cast<char>(0x80 | (byte & 0x3F));
      }
    }
    Global("_codecs", "encode");
    String(utf8);
    String("latin1");
    Op('\x86');
    Op('R');
  }

  void Double(double v) {
    Op('G');  // big-endian
    char bytes[8];
    std::memcpy(bytes, &v, 8);
    for (int i = 7; i >= 0; --i) Op(bytes[i]);
  }

  void String(const std::string& v) {
    Op('X');
    Raw(static_cast<uint32_t>(v.size()));
    result_.bytes += v;
  }

  void Global(const std::string& module, const std::string& name) {
    absl::StrAppend(&result_.bytes, "c", module, "\n", name, "\n");
  }

  void Ints(at::IntArrayRef values) {
    Op('(');
    for (int64_t v : values) Int(v);
    Op('t');
  }

  void EmptyOrderedDict() {
    Global("collections", "OrderedDict");
    Op(')');
    Op('R');
  }

  absl::Status Tensor(const at::Tensor& original) {
    if (!original.defined()) {
      Op('N');
      return absl::OkStatus();
    }
    if (original.layout() != at::kStrided || original.is_quantized() || original.is_meta()) {
      return absl::InvalidArgumentError(
          "checkpoint: a tensor that is sparse, quantised or without numbers can't be saved");
    }
    const at::Tensor tensor = original.detach().cpu().resolve_conj().resolve_neg();
    const std::string storage_name = StorageName(tensor.scalar_type()), dtype_name = DtypeName(tensor.scalar_type());
    if (dtype_name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint: a tensor of dtype ", c10::toString(tensor.scalar_type()), " can't be saved"));
    }
    const bool typed = !storage_name.empty();
    // Tensors of the same storage share a record; the storage of a CUDA tensor's copy is its own.
    const auto* key = tensor.storage().unsafeGetStorageImpl();
    const auto [found, is_new] = keys_.emplace(key, result_.storages.size());
    const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
    if (is_new) {
      // Keeps the storage, and with it its address, alive until the file is written.
      result_.storages.push_back(at::empty({0}, at::kByte).set_(tensor.storage(), 0, {bytes}, {1}));
    }

    Global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    Op('(');
    Op('(');
    String("storage");
    Global(typed ? "torch" : "torch.storage", typed ? storage_name : "UntypedStorage");
    String(std::to_string(found->second));
    String("cpu");
    Int(typed ? bytes / static_cast<int64_t>(tensor.itemsize()) : bytes);
    Op('t');
    Op('Q');  // BINPERSID
    Int(tensor.storage_offset());
    Ints(tensor.sizes());
    Ints(tensor.strides());
    Op('\x89');  // requires_grad: a state_dict's tensors are detached
    EmptyOrderedDict();
    if (!typed) Global("torch", dtype_name);
    Op('t');
    Op('R');
    return absl::OkStatus();
  }

  absl::Status Items(const ValueList& items) {
    Op('(');
    for (const auto& item : items) LOCKSTEP_RETURN_IF_ERROR(Push(item));
    return absl::OkStatus();
  }

  absl::Status Pairs(const std::vector<std::pair<Value, Value>>& pairs) {
    Op('(');
    for (const auto& [key, item] : pairs) {
      LOCKSTEP_RETURN_IF_ERROR(Push(key));
      LOCKSTEP_RETURN_IF_ERROR(Push(item));
    }
    Op('u');
    return absl::OkStatus();
  }

  absl::Status PushDict(const ValueDict& dict) {
    switch (dict.kind) {
      case ValueDict::Kind::kOrdered: EmptyOrderedDict(); break;
      case ValueDict::Kind::kCounter: Global("collections", "Counter"); [[fallthrough]];
      default: Op('}');
    }
    LOCKSTEP_RETURN_IF_ERROR(Pairs(dict.items));
    if (dict.kind == ValueDict::Kind::kCounter) {
      Op('\x85');
      Op('R');
    }
    if (!dict.attributes.empty()) {
      Op('}');
      LOCKSTEP_RETURN_IF_ERROR(Pairs(dict.attributes));
      Op('b');
    }
    return absl::OkStatus();
  }

  absl::Status Push(const Value& value) {
    const auto& v = value.get();
    if (std::holds_alternative<std::monostate>(v)) {
      Op('N');
    } else if (const auto* b = std::get_if<bool>(&v)) {
      Op(*b ? '\x88' : '\x89');
    } else if (const auto* i = std::get_if<int64_t>(&v)) {
      Int(*i);
    } else if (const auto* d = std::get_if<double>(&v)) {
      Double(*d);
    } else if (const auto* s = std::get_if<std::string>(&v)) {
      String(*s);
    } else if (const auto* t = std::get_if<at::Tensor>(&v)) {
      return Tensor(*t);
    } else if (const auto* list = std::get_if<ValueList>(&v)) {
      Op(']');
      LOCKSTEP_RETURN_IF_ERROR(Items(*list));
      Op('e');
    } else if (const auto* tuple = std::get_if<ValueTuple>(&v)) {
      if (tuple->is_size) Global("torch", "Size");
      LOCKSTEP_RETURN_IF_ERROR(Items(tuple->items));
      Op('t');
      if (tuple->is_size) {
        Op('\x85');
        Op('R');
      }
    } else if (const auto* set = std::get_if<ValueSet>(&v)) {
      Global("__builtin__", "set");
      Op(']');
      LOCKSTEP_RETURN_IF_ERROR(Items(set->items));
      Op('e');
      Op('\x85');
      Op('R');
    } else if (const auto* dict = std::get_if<ValueDict>(&v)) {
      return PushDict(*dict);
    } else if (const auto* bytes = std::get_if<ValueBytes>(&v)) {
      Bytes(bytes->bytes);
    } else if (const auto* big = std::get_if<ValueBigInt>(&v)) {
      return BigInt(big->bytes);
    } else if (const auto* complex = std::get_if<std::complex<double>>(&v)) {
      Global("__builtin__", "complex");
      Double(complex->real());
      Double(complex->imag());
      Op('\x86');
      Op('R');
    } else if (const auto* dtype = std::get_if<at::ScalarType>(&v)) {
      if (DtypeName(*dtype).empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("checkpoint: the dtype ", c10::toString(*dtype), " can't be saved"));
      }
      Global("torch", DtypeName(*dtype));
    } else if (const auto* device = std::get_if<at::Device>(&v)) {
      Global("torch", "device");
      String(at::DeviceTypeName(device->type(), /*lower_case=*/true));
      if (device->has_index()) Int(device->index());
      Op(device->has_index() ? '\x86' : '\x85');
      Op('R');
    }
    return absl::OkStatus();
  }

  Pickled result_;
  std::unordered_map<const c10::StorageImpl*, size_t> keys_;
};

}  // namespace

absl::StatusOr<Pickled> Pickle(const Value& value) { return Pickler().Run(value); }

}  // namespace lockstep::internal
