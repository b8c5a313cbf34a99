#include "lockstep/checkpoint/snapshot.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <utility>

namespace lockstep {
namespace {

/// Copies past the caches, which a snapshot of a model would only empty: memory is then not read before it is written.
void StreamBytes(char* to, const char* from, int64_t bytes) {
#ifdef __SSE2__
  constexpr int64_t kLine = 64, kAhead = 1024;
  const auto misaligned = static_cast<int64_t>(reinterpret_cast<uintptr_t>(to) % sizeof(__m128i));
  const int64_t head = std::min(bytes, misaligned == 0 ? 0 : static_cast<int64_t>(sizeof(__m128i)) - misaligned);
  std::memcpy(to, from, static_cast<size_t>(head));
  int64_t at = head;
  for (; at + kLine <= bytes; at += kLine) {
    const auto* const source = reinterpret_cast<const __m128i*>(from + at);
    auto* const target = reinterpret_cast<__m128i*>(to + at);
    _mm_prefetch(from + at + kAhead, _MM_HINT_NTA);
    const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1), c = _mm_loadu_si128(source + 2),
                  d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
  std::memcpy(to + at, from + at, static_cast<size_t>(bytes - at));
#else
  std::memcpy(to, from, static_cast<size_t>(bytes));
#endif
}

void CopyBytes(void* to, const void* from, int64_t bytes) {
  constexpr int64_t kGrain = 1 << 20;
  at::parallel_for(0, bytes, kGrain, [&](int64_t begin, int64_t end) {
    StreamBytes(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
  });
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
      if (!buffer.defined() || buffer.numel() != bytes) buffer = at::empty({bytes}, at::kByte);
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
