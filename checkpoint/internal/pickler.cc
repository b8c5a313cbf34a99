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
    if (original.layout() != at::kStrided || original.is_quantized()) {
      return absl::InvalidArgumentError("checkpoint: a tensor that is sparse or quantised can't be saved");
    }
    const at::Tensor tensor = original.detach().cpu();
    const std::string storage_name = StorageName(tensor.scalar_type());
    if (storage_name.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("checkpoint: a tensor of dtype ", c10::toString(tensor.scalar_type()), " can't be saved"));
    }
    // Tensors of the same storage share a record; the storage of a CUDA tensor's copy is its own.
    const auto* key = tensor.storage().unsafeGetStorageImpl();
    const auto [found, is_new] = keys_.emplace(key, result_.storages.size());
    const int64_t itemsize = static_cast<int64_t>(tensor.itemsize());
    const int64_t numel = static_cast<int64_t>(tensor.storage().nbytes()) / itemsize;
    if (is_new) {
      // Keeps the storage, and with it its address, alive until the file is written.
      result_.storages.push_back(at::empty({0}, tensor.options()).set_(tensor.storage(), 0, {numel}, {1}));
    }

    Global("torch._utils", "_rebuild_tensor_v2");
    Op('(');
    Op('(');
    String("storage");
    Global("torch", storage_name);
    String(std::to_string(found->second));
    String("cpu");
    Int(numel);
    Op('t');
    Op('Q');  // BINPERSID
    Int(tensor.storage_offset());
    Ints(tensor.sizes());
    Ints(tensor.strides());
    Op('\x89');  // requires_grad: a state_dict's tensors are detached
    EmptyOrderedDict();
    Op('t');
    Op('R');
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
      Op('(');
      for (const auto& item : *list) LOCKSTEP_RETURN_IF_ERROR(Push(item));
      Op('e');
    } else if (const auto* tuple = std::get_if<ValueTuple>(&v)) {
      Op('(');
      for (const auto& item : tuple->items) LOCKSTEP_RETURN_IF_ERROR(Push(item));
      Op('t');
    } else {
      const auto& dict = std::get<ValueDict>(v);
      if (dict.ordered) {
        EmptyOrderedDict();
      } else {
        Op('}');
      }
      Op('(');
      for (const auto& [key, item] : dict.items) {
        LOCKSTEP_RETURN_IF_ERROR(Push(key));
        LOCKSTEP_RETURN_IF_ERROR(Push(item));
      }
      Op('u');
    }
    return absl::OkStatus();
  }

  Pickled result_;
  std::unordered_map<const c10::StorageImpl*, size_t> keys_;
};

}  // namespace

absl::StatusOr<Pickled> Pickle(const Value& value) { return Pickler().Run(value); }

}  // namespace lockstep::internal
