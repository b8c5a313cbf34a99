#include "lockstep/checkpoint/snapshot.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <utility>

namespace lockstep {
namespace {

/// The C library's copy goes past the caches where that is faster, which LibTorch's doesn't.
void CopyBytes(void* to, const void* from, int64_t bytes) {
  constexpr int64_t kGrain = 1 << 20;
  at::parallel_for(0, bytes, kGrain, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin,
                static_cast<size_t>(end - begin));
  });
}

/// Memory in huge pages where the system has them: a fresh gigabyte of small ones costs a quarter of a million faults.
at::Tensor NewBuffer(int64_t bytes) {
  at::Tensor buffer = at::empty({bytes}, at::kByte);
  const auto begin = reinterpret_cast<uintptr_t>(buffer.data_ptr());
  const uintptr_t page = sysconf(_SC_PAGESIZE), first = (begin + page - 1) / page * page;
  constexpr int64_t kLeast = 4 << 20;
  if (bytes >= kLeast) madvise(reinterpret_cast<void*>(first), begin + bytes - first, MADV_HUGEPAGE);  // a wish only
  return buffer;
}

class Copier {
 public:
  explicit Copier(std::vector<at::Tensor>& buffers) : buffers_(buffers) {}

  Value Copy(const Value& value) {
    if (const at::Tensor* tensor = value.tensor()) return tensor->defined() ? Value(Copy(*tensor)) : value;
    if (const auto* list = std::get_if<ValueList>(&value.get())) return Value(CopyAll(*list));
    if (const auto* tuple = std::get_if<ValueTuple>(&value.get())) {
      return Value(ValueTuple{CopyAll(tuple->items), tuple->is_size});
    }
    if (const auto* dict = value.dict()) {
      ValueDict copy;
      copy.kind = dict->kind;
      copy.attributes = dict->attributes;
      for (const auto& [key, item] : dict->items) copy.items.emplace_back(key, Copy(item));
      return Value(std::move(copy));
    }
    return value;
  }

  size_t used() const { return used_; }

 private:
  ValueList CopyAll(const ValueList& values) {
    ValueList copies;
    for (const Value& value : values) copies.push_back(Copy(value));
    return copies;
  }

  at::Tensor Copy(const at::Tensor& original) {
    const at::Tensor tensor = original.detach();
    if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_conj() || tensor.is_neg()) {
      return tensor.resolve_conj().resolve_neg().cpu().clone();
    }
    const auto* key = tensor.storage().unsafeGetStorageImpl();
    const auto [found, is_new] = copies_.emplace(key, at::Tensor());
    if (is_new) {
      const auto bytes = static_cast<int64_t>(tensor.storage().nbytes());
      if (used_ == buffers_.size()) buffers_.emplace_back();
      at::Tensor& buffer = buffers_[used_++];
      if (!buffer.defined() || buffer.numel() != bytes) buffer = NewBuffer(bytes);
      if (tensor.is_cpu()) {
        CopyBytes(buffer.mutable_data_ptr(), tensor.storage().data(), bytes);
      } else {
        buffer.copy_(at::empty({0}, tensor.options().dtype(at::kByte)).set_(tensor.storage(), 0, {bytes}, {1}));
      }
      found->second = buffer;
    }
    return at::empty({0}, at::TensorOptions().dtype(tensor.scalar_type()))
        .set_(found->second.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
  }

  std::vector<at::Tensor>& buffers_;
  std::unordered_map<const c10::StorageImpl*, at::Tensor> copies_;
  size_t used_ = 0;
};

}  // namespace

Value Snapshot::Take(const Value& state) {
  const at::NoGradGuard no_grad;
  Copier copier(buffers_);
  Value copy = copier.Copy(state);
  buffers_.resize(copier.used());
  return copy;
}

}  // namespace lockstep
