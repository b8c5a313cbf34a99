// What stands for the functions and classes that a checkpoint may name. Nothing is looked up or run.

#include <ATen/Functions.h>
#include <absl/strings/str_cat.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/base/status_macros.h"
#include "lockstep/checkpoint/internal/dtypes.h"
#include "lockstep/checkpoint/internal/pickle_nodes.h"

namespace lockstep::internal {
namespace {

using Arguments = std::vector<Ref>;

absl::Status BadCall(const std::string& name) { return PickleError("bad arguments for " + name); }

/// An argument as a T of the machine, or of the values; null if it is none or missing.
template <typename T>
T* Arg(const Arguments& a, size_t i) {
  return i < a.size() ? a[i]->as<T>() : nullptr;
}
template <typename T>
const T* PlainArg(const Arguments& a, size_t i) {
  return i < a.size() ? a[i]->plain<T>() : nullptr;
}
bool IsTrue(const Arguments& a, size_t i) {
  const bool* flag = PlainArg<bool>(a, i);
  return flag != nullptr && *flag;
}

std::vector<int64_t> Reversed(int64_t dims) {
  std::vector<int64_t> order;
  for (int64_t d = dims; d-- > 0;) order.push_back(d);
  return order;
}

absl::StatusOr<std::vector<int64_t>> Ints(const Arguments& a, size_t i) {
  const Tuple* tuple = Arg<Tuple>(a, i);
  if (tuple == nullptr) return PickleError("a tensor's sizes are no tuple");
  std::vector<int64_t> ints;
  for (const Ref item : tuple->items) {
    const auto* n = item->plain<int64_t>();
    if (n == nullptr || *n < 0) return PickleError("a tensor's sizes are not whole numbers");
    ints.push_back(*n);
  }
  return ints;
}

/// The bits that a tensor's metadata sets: its numbers are to be read conjugated or negated.
absl::Status SetMetadata(at::Tensor& tensor, Ref metadata) {
  const Dict* dict = metadata->as<Dict>();
  if (dict == nullptr) return absl::OkStatus();
  for (const auto& [key, value] : dict->items) {
    const std::string* name = key->plain<std::string>();
    const bool* set = value->plain<bool>();
    if (name == nullptr || set == nullptr) return PickleError("a tensor's metadata is damaged");
    if (!*set) continue;
    if (*name == "conj" && tensor.is_complex()) {
      tensor = tensor.conj();
    } else if (*name == "neg") {
      tensor = tensor._neg_view();
    } else {
      return PickleError("a tensor's metadata '" + *name + "' is not known");
    }
  }
  return absl::OkStatus();
}

/// A tensor over storage a[0] from element a[1], of sizes a[2] and strides a[3].
absl::StatusOr<Node> Tensor(const Arguments& a, at::ScalarType dtype, bool requires_grad, Ref metadata) {
  const Storage* storage = Arg<Storage>(a, 0);
  const int64_t* offset = PlainArg<int64_t>(a, 1);
  if (storage == nullptr || offset == nullptr || *offset < 0) return PickleError("a bad tensor");
  LOCKSTEP_ASSIGN_OR_RETURN(const auto sizes, Ints(a, 2));
  LOCKSTEP_ASSIGN_OR_RETURN(const auto strides, Ints(a, 3));
  if (sizes.size() != strides.size() || sizes.size() > 64) return PickleError("a bad tensor");
  if (!storage->bytes.defined()) return Node{Value()};
  // The last element must lie inside the storage. Doubles can't overflow, and are exact where it matters.
  double last = static_cast<double>(*offset), numel = 1;
  for (size_t d = 0; d < sizes.size(); ++d) {
    numel *= static_cast<double>(sizes[d]);
    last += (static_cast<double>(sizes[d]) - 1) * static_cast<double>(strides[d]);
  }
  const auto itemsize = static_cast<double>(c10::elementSize(dtype));
  if (numel != 0 && (last + 1) * itemsize > static_cast<double>(storage->bytes.numel())) {
    return PickleError("a tensor reaches past the end of its storage");
  }
  if (numel > 1e18) return PickleError("a tensor has too many elements");
  at::Tensor tensor = at::empty({0}, storage->bytes.options().dtype(dtype))
                          .set_(storage->bytes.storage(), numel == 0 ? 0 : *offset, sizes, strides);
  if (metadata != nullptr) LOCKSTEP_RETURN_IF_ERROR(SetMetadata(tensor, metadata));
  if (requires_grad && (tensor.is_floating_point() || tensor.is_complex())) tensor.requires_grad_();
  return Node{Value(tensor)};
}

absl::StatusOr<Node> RebuildTensor(const Arguments& a) {
  const Storage* storage = Arg<Storage>(a, 0);
  if (storage == nullptr || a.size() != 4) return BadCall("_rebuild_tensor");
  return Tensor(a, storage->dtype, false, nullptr);
}

absl::StatusOr<Node> RebuildTensorV2(const Arguments& a) {
  const Storage* storage = Arg<Storage>(a, 0);
  if (storage == nullptr || a.size() < 6 || a.size() > 7) return BadCall("_rebuild_tensor_v2");
  return Tensor(a, storage->dtype, IsTrue(a, 4), a.size() == 7 ? a[6] : nullptr);
}

absl::StatusOr<Node> RebuildTensorV3(const Arguments& a) {
  const auto* dtype = PlainArg<at::ScalarType>(a, 6);
  if (dtype == nullptr || a.size() > 8) return BadCall("_rebuild_tensor_v3");
  return Tensor(a, *dtype, IsTrue(a, 4), a.size() == 8 ? a[7] : nullptr);
}

absl::StatusOr<Node> RebuildParameter(const Arguments& a) {
  const auto* tensor = PlainArg<at::Tensor>(a, 0);
  if (a.size() < 3) return BadCall("_rebuild_parameter");
  if (tensor == nullptr) return Node{Value()};  // left out
  at::Tensor parameter = *tensor;
  if (IsTrue(a, 1) && (parameter.is_floating_point() || parameter.is_complex())) parameter.requires_grad_();
  return Node{Value(parameter)};
}

/// (function, type, arguments, state): a tensor with attributes, which are left out.
absl::StatusOr<Node> RebuildFromType(const Arguments& a) {
  const Global *function = Arg<Global>(a, 0), *type = Arg<Global>(a, 1);
  const Tuple* arguments = Arg<Tuple>(a, 2);
  if (function == nullptr || type == nullptr || arguments == nullptr) return BadCall("_rebuild_from_type_v2");
  if (type->name != "torch.Tensor" && type->name != "torch.nn.parameter.Parameter") {
    return PickleError("tensors of type " + type->name + " are not supported");
  }
  if (function->name == "torch._tensor._rebuild_from_type_v2") return BadCall("_rebuild_from_type_v2");
  return Call(function->name, arguments->items);
}

absl::StatusOr<Node> OrderedDict(const Arguments& a) {
  Dict dict;
  dict.kind = ValueDict::Kind::kOrdered;
  if (a.empty()) return Node{dict};
  // A list of pairs, as Python 2 wrote it.
  const List* pairs = Arg<List>(a, 0);
  if (pairs == nullptr || a.size() > 1) return BadCall("OrderedDict");
  for (const Ref pair : pairs->items) {
    const auto* items = pair->as<Tuple>() != nullptr  ? &pair->as<Tuple>()->items
                        : pair->as<List>() != nullptr ? &pair->as<List>()->items
                                                      : nullptr;
    if (items == nullptr || items->size() != 2) return BadCall("OrderedDict");
    dict.items.emplace_back((*items)[0], (*items)[1]);
  }
  return Node{dict};
}

absl::StatusOr<Node> Counter(const Arguments& a) {
  Dict dict;
  if (!a.empty()) {
    const Dict* from = Arg<Dict>(a, 0);
    if (from == nullptr || a.size() > 1) return BadCall("Counter");
    dict.items = from->items;
  }
  dict.kind = ValueDict::Kind::kCounter;
  return Node{dict};
}

absl::StatusOr<Node> DefaultDict(const Arguments& a) {
  if (a.size() > 1) return BadCall("defaultdict");
  Dict dict;
  dict.kind = ValueDict::Kind::kDefault;
  return Node{dict};
}

absl::StatusOr<Node> Namespace(const Arguments& a) {
  if (!a.empty()) return BadCall("Namespace");
  Dict dict;
  dict.kind = ValueDict::Kind::kNamespace;
  return Node{dict};
}

absl::StatusOr<Node> MakeSet(const Arguments& a) {
  Set set;
  if (!a.empty()) {
    const List* from = Arg<List>(a, 0);
    if (from == nullptr || a.size() > 1) return BadCall("set");
    set.items = from->items;
  }
  return Node{set};
}

absl::StatusOr<Node> Complex(const Arguments& a) {
  if (a.size() != 2) return BadCall("complex");
  const auto *re = PlainArg<double>(a, 0), *im = PlainArg<double>(a, 1);
  if (re == nullptr || im == nullptr) return BadCall("complex");
  return Node{Value(std::complex<double>(*re, *im))};
}

absl::StatusOr<Node> Size(const Arguments& a) {
  const Tuple* tuple = Arg<Tuple>(a, 0);
  if (tuple == nullptr || a.size() != 1) return BadCall("torch.Size");
  return Node{Tuple{tuple->items, /*is_size=*/true}};
}

absl::StatusOr<Node> Device(const Arguments& a) {
  const std::string* type = PlainArg<std::string>(a, 0);
  const int64_t* index = PlainArg<int64_t>(a, 1);
  if (type == nullptr || a.size() > 2 || (a.size() == 2 && (index == nullptr || *index < 0 || *index > 127))) {
    return BadCall("torch.device");
  }
  try {
    return Node{Value(at::Device(index == nullptr ? *type : absl::StrCat(*type, ":", *index)))};
  } catch (const std::exception&) {
    return PickleError("the device '" + *type + "' is not known");
  }
}

/// Latin 1, of a string that Python wrote as UTF-8: how protocol 2 keeps bytes.
absl::StatusOr<std::string> Latin1(const std::string& utf8) {
  std::string bytes;
  for (size_t i = 0; i < utf8.size(); ++i) {
    const auto c = static_cast<unsigned char>(utf8[i]);
    if (c < 0x80) {
      bytes += static_cast<char>(c);
    } else if ((c == 0xC2 || c == 0xC3) && i + 1 < utf8.size()) {
      bytes += static_cast<char>(((c & 3) << 6) | (static_cast<unsigned char>(utf8[++i]) & 0x3F));
    } else {
      return PickleError("bytes that are none");
    }
  }
  return bytes;
}

absl::StatusOr<Node> Bytes(const Arguments& a) {
  const std::string* text = PlainArg<std::string>(a, 0);
  if (a.empty()) return Node{Value(ValueBytes{})};
  if (const auto* bytes = PlainArg<ValueBytes>(a, 0); bytes != nullptr && a.size() == 1) return Node{Value(*bytes)};
  const std::string* encoding = PlainArg<std::string>(a, 1);
  if (text == nullptr || encoding == nullptr || a.size() != 2 ||
      (*encoding != "latin1" && *encoding != "latin-1" && *encoding != "iso-8859-1")) {
    return BadCall("bytes");
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::string bytes, Latin1(*text));
  return Node{Value(ValueBytes{std::move(bytes)})};
}

absl::StatusOr<Node> Layout(const Arguments& a) {
  const std::string* name = PlainArg<std::string>(a, 0);
  if (name == nullptr || a.size() != 1) return BadCall("_get_layout");
  return Node{Value(*name)};
}

/// numpy.dtype('f8', False, True)
absl::StatusOr<Node> MakeNumpyDtype(const Arguments& a) {
  const std::string* code = PlainArg<std::string>(a, 0);
  if (code == nullptr || code->size() != 2 || std::strchr("fiubc", (*code)[0]) == nullptr ||
      std::strchr("1248", (*code)[1]) == nullptr) {
    return PickleError("a numpy dtype that is none of a plain number" +
                       (code == nullptr ? "" : absl::StrCat(": '", *code, "'")));
  }
  return Node{NumpyDtype{(*code)[0], static_cast<size_t>((*code)[1] - '0')}};
}

template <typename T>
T FromBytes(const std::string& bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

absl::StatusOr<Node> NumpyScalar(const Arguments& a) {
  const NumpyDtype* dtype = Arg<NumpyDtype>(a, 0);
  const auto* given = PlainArg<ValueBytes>(a, 1);
  if (dtype == nullptr || given == nullptr || given->bytes.size() != dtype->size) return BadCall("numpy's scalar");
  std::string bytes = given->bytes;
  if (dtype->swapped) std::reverse(bytes.begin(), bytes.end());
  switch (dtype->kind) {
    case 'f':
      if (dtype->size == 2) return Node{Value(static_cast<double>(FromBytes<at::Half>(bytes)))};
      if (dtype->size == 4) return Node{Value(static_cast<double>(FromBytes<float>(bytes)))};
      if (dtype->size == 8) return Node{Value(FromBytes<double>(bytes))};
      break;
    case 'b': return Node{Value(bytes[0] != 0)};
    case 'i':
      if (dtype->size == 1) return Node{Value(int64_t{FromBytes<int8_t>(bytes)})};
      if (dtype->size == 2) return Node{Value(int64_t{FromBytes<int16_t>(bytes)})};
      if (dtype->size == 4) return Node{Value(int64_t{FromBytes<int32_t>(bytes)})};
      return Node{Value(FromBytes<int64_t>(bytes))};
    case 'u':
      if (dtype->size == 1) return Node{Value(int64_t{FromBytes<uint8_t>(bytes)})};
      if (dtype->size == 2) return Node{Value(int64_t{FromBytes<uint16_t>(bytes)})};
      if (dtype->size == 4) return Node{Value(int64_t{FromBytes<uint32_t>(bytes)})};
      if (FromBytes<int64_t>(bytes) >= 0) return Node{Value(FromBytes<int64_t>(bytes))};
      return Node{Value(ValueBigInt{bytes + std::string(1, '\0')})};
    case 'c':
      if (dtype->size == 8 && !dtype->swapped) {
        return Node{Value(std::complex<double>(FromBytes<float>(bytes), FromBytes<float>(bytes.substr(4))))};
      }
      break;
    default: break;
  }
  return PickleError("a numpy scalar of a kind that is not supported");
}

/// numpy.core.multiarray._reconstruct(numpy.ndarray, (0,), b'b'): empty until its state comes.
absl::StatusOr<Node> NewNumpyArray(const Arguments& a) {
  const Global* type = Arg<Global>(a, 0);
  if (type == nullptr || type->name != "numpy.ndarray" || a.size() != 3) {
    return PickleError("a numpy array of type " + (type == nullptr ? "unknown" : type->name) + " is not supported");
  }
  return Node{NumpyArray{}};
}

std::optional<at::ScalarType> TensorDtype(const NumpyDtype& dtype) {
  static const auto* const dtypes = new std::map<std::pair<char, size_t>, at::ScalarType>{
      {{'b', 1}, at::kBool},        {{'i', 1}, at::kChar}, {{'i', 2}, at::kShort},  {{'i', 4}, at::kInt},
      {{'i', 8}, at::kLong},        {{'u', 1}, at::kByte}, {{'u', 2}, at::kUInt16}, {{'u', 4}, at::kUInt32},
      {{'u', 8}, at::kUInt64},      {{'f', 2}, at::kHalf}, {{'f', 4}, at::kFloat},  {{'f', 8}, at::kDouble},
      {{'c', 8}, at::kComplexFloat}};
  const auto found = dtypes->find({dtype.kind, dtype.size});
  if (found == dtypes->end()) return std::nullopt;
  return found->second;
}

/// The tensor of an array, whose bytes are Python 3's or a Python 2's str.
absl::StatusOr<Value> ArrayTensor(const Arguments& a, size_t shape_at, const NumpyDtype* dtype, bool fortran,
                                  Ref bytes) {
  const auto* text = bytes->plain<std::string>();
  const auto* raw = bytes->plain<ValueBytes>();
  if (dtype == nullptr || (text == nullptr && raw == nullptr)) return PickleError("a numpy array is damaged");
  if (dtype->swapped) return PickleError("a numpy array in big-endian byte order is not supported");
  const auto scalar = TensorDtype(*dtype);
  if (!scalar) {
    return PickleError(
        absl::StrCat("a numpy array of dtype '", std::string(1, dtype->kind), dtype->size, "' is not supported"));
  }
  LOCKSTEP_ASSIGN_OR_RETURN(std::vector<int64_t> shape, Ints(a, shape_at));
  const std::string& data = text != nullptr ? *text : raw->bytes;
  double size = static_cast<double>(dtype->size);  // can't overflow, and is exact where it matters
  for (const int64_t n : shape) size *= static_cast<double>(n);
  if (shape.size() > 64 || size != static_cast<double>(data.size())) {
    return PickleError("a numpy array's shape doesn't fit its bytes");
  }
  if (fortran) std::reverse(shape.begin(), shape.end());
  at::Tensor tensor = at::empty(shape, *scalar);
  if (!data.empty()) std::memcpy(tensor.mutable_data_ptr(), data.data(), data.size());
  return Value(fortran ? tensor.permute(Reversed(tensor.dim())) : tensor);
}

/// numpy._core.numeric._frombuffer(bytes, dtype, shape, 'C'): an array in protocol 5.
absl::StatusOr<Node> NumpyFromBuffer(const Arguments& a) {
  const std::string* order = PlainArg<std::string>(a, 3);
  if (a.size() != 4 || order == nullptr) return BadCall("numpy's _frombuffer");
  LOCKSTEP_ASSIGN_OR_RETURN(Value tensor, ArrayTensor(a, 2, Arg<NumpyDtype>(a, 1), *order == "F", a[0]));
  return Node{std::move(tensor)};
}

using Function = absl::StatusOr<Node> (*)(const Arguments&);

const std::map<std::string, Function>& Functions() {
  static const auto* const functions = new std::map<std::string, Function>{
      {"torch._utils._rebuild_tensor", RebuildTensor},
      {"torch._utils._rebuild_tensor_v2", RebuildTensorV2},
      {"torch._utils._rebuild_tensor_v3", RebuildTensorV3},
      {"torch._utils._rebuild_parameter", RebuildParameter},
      {"torch._utils._rebuild_parameter_with_state", RebuildParameter},
      {"torch._tensor._rebuild_from_type_v2", RebuildFromType},
      {"torch.serialization._get_layout", Layout},
      {"torch.Size", Size},
      {"torch.device", Device},
      {"collections.OrderedDict", OrderedDict},
      {"collections.Counter", Counter},
      {"collections.defaultdict", DefaultDict},
      {"argparse.Namespace", Namespace},
      {"builtins.set", MakeSet},
      {"builtins.complex", Complex},
      {"builtins.bytes", Bytes},
      {"builtins.bytearray", Bytes},
      {"_codecs.encode", Bytes},
      {"numpy.dtype", MakeNumpyDtype},
      {"numpy.core.multiarray.scalar", NumpyScalar},
      {"numpy._core.multiarray.scalar", NumpyScalar},
      {"numpy.core.multiarray._reconstruct", NewNumpyArray},
      {"numpy._core.multiarray._reconstruct", NewNumpyArray},
      {"numpy.core.numeric._frombuffer", NumpyFromBuffer},
      {"numpy._core.numeric._frombuffer", NumpyFromBuffer},
  };
  return *functions;
}

bool StartsWith(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

bool MakesNumpyArrays(const std::string& name) {
  const auto found = Functions().find(name);
  return found != Functions().end() && (found->second == NewNumpyArray || found->second == NumpyFromBuffer);
}

}  // namespace

bool IsKnownGlobal(const std::string& name, NumpyArrays arrays) {
  // What may be named but not called: types of tensors and storages, the factories of a defaultdict.
  static const auto* const plain = new std::set<std::string>{"torch.Tensor",
                                                             "torch.nn.parameter.Parameter",
                                                             "torch.storage.UntypedStorage",
                                                             "builtins.list",
                                                             "builtins.dict",
                                                             "builtins.int",
                                                             "builtins.float",
                                                             "builtins.str",
                                                             "builtins.bool",
                                                             "builtins.tuple"};
  if (name == "numpy.ndarray") return arrays == NumpyArrays::kRead;
  if (Functions().count(name) > 0 || plain->count(name) > 0) return true;
  if (!StartsWith(name, "torch.")) return false;
  return StorageDtype(name.substr(6)).has_value() || DtypeOf(name.substr(6)).has_value();
}

std::string WhyRefused(const std::string& name, NumpyArrays arrays) {
  if (name == "torch._utils._rebuild_qtensor" || StartsWith(name, "torch.Q") || StartsWith(name, "torch.q") ||
      StartsWith(name, "torch.per_")) {
    return "it is quantised";
  }
  if (name == "torch._utils._rebuild_sparse_tensor" || StartsWith(name, "torch.sparse")) return "it is sparse";
  if (name == "torch._utils._rebuild_nested_tensor" || StartsWith(name, "torch.nested")) return "it is nested";
  if (name == "torch._utils._rebuild_meta_tensor_no_storage") return "it has no numbers (meta)";
  if (StartsWith(name, "torch._utils._rebuild_device_tensor")) return "it is of a device without storages";
  if (name == "torch._utils._rebuild_wrapper_subclass" || StartsWith(name, "torch.distributed")) {
    return "it is of a tensor subclass";
  }
  if (arrays == NumpyArrays::kRefused && MakesNumpyArrays(name)) return "it is a numpy array; save it as a tensor";
  return "";
}

absl::StatusOr<Node> Call(const std::string& global, const std::vector<Ref>& arguments) {
  const auto found = Functions().find(global);
  if (found == Functions().end()) return PickleError("the call " + global + " is not supported");
  return found->second(arguments);
}

absl::Status Build(Node& object, Ref state) {
  if (auto* dict = object.as<Dict>()) {
    const Dict* attributes = state->as<Dict>();
    if (attributes == nullptr) return PickleError("attributes that are no dict");
    if (dict->kind == ValueDict::Kind::kNamespace) {
      dict->items = attributes->items;
    } else {
      dict->attributes = state;
    }
    return absl::OkStatus();
  }
  if (auto* dtype = object.as<NumpyDtype>()) {
    const Tuple* tuple = state->as<Tuple>();
    const std::string* order = tuple == nullptr ? nullptr : PlainArg<std::string>(tuple->items, 1);
    if (order == nullptr) return PickleError("a numpy dtype is damaged");
    dtype->swapped = *order == ">";
    return absl::OkStatus();
  }
  if (object.as<NumpyArray>() != nullptr) {  // (version, shape, dtype, Fortran's order, bytes)
    const Tuple* tuple = state->as<Tuple>();
    if (tuple == nullptr || tuple->items.size() != 5) return PickleError("a numpy array is damaged");
    const Arguments& a = tuple->items;
    LOCKSTEP_ASSIGN_OR_RETURN(Value tensor, ArrayTensor(a, 1, Arg<NumpyDtype>(a, 2), IsTrue(a, 3), a[4]));
    object.what = std::move(tensor);
    return absl::OkStatus();
  }
  if (object.plain<at::Tensor>() != nullptr) return absl::OkStatus();  // a tensor's attributes
  return PickleError("attributes for something that has none");
}

}  // namespace lockstep::internal
