#include "lockstep/comm/shm/internal/exchange.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

#include "lockstep/comm/shm/internal/reduce_loops.h"

namespace lockstep::shm {
namespace {

/// From here on, to read in place costs less than to copy in.
constexpr int64_t kSharedBytes = 2 << 10;
/// Up to it, everyone reduces all instead of a part, which spares a round.
constexpr int64_t kAllReduceInlineBytes = 32 << 10;

constexpr int64_t kAlign = 64;  // a cache line, and a multiple of every element's size
constexpr int kFewRanks = 64;

int64_t RoundUp(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }
int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// [begin, end) of `bytes` that is `part` of `parts`; cut at cache lines.
struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};
Range Part(int64_t bytes, int part, int parts) {
  const int64_t step = RoundUp(DivideUp(bytes, parts));
  return {std::min(bytes, step * part), std::min(bytes, step * (part + 1))};
}
Range Piece(int64_t bytes, int64_t piece, int64_t round) {
  return {std::min(bytes, piece * round), std::min(bytes, piece * (round + 1))};
}

void Copy(char* to, const char* from, int64_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, static_cast<size_t>(bytes));
}

}  // namespace

template <typename Predicate>
bool Exchange::AllRanks(const Predicate& predicate) {
  for (int r = 0; r < peers_.size(); ++r) {
    if (!predicate(rounds_.Of(r).descriptor)) return false;
  }
  return true;
}

/// The first exchange of a collective.
void Exchange::Meet() {
  rounds_.PublishAndCompare();
  for (int r = 0; r < peers_.size(); ++r) {
    if (r != peers_.rank()) memory_.Hear(r, rounds_.Of(r).descriptor);
  }
}

/// Nobody goes on before all have finished with each other's memory.
void Exchange::Finish() {
  rounds_.Next();
  rounds_.PublishAndWait();
}

void Exchange::Barrier(const Call& call) {
  rounds_.Begin(call);
  rounds_.PublishAndCompare();
}

/// Whether writing what is taken would change what is given, before all have read it. A rank's own block may be where
/// it goes to.
static bool Overlap(const Exchange::Plan& plan, int me) {
  for (size_t t = 0; t < plan.take.size(); ++t) {
    for (size_t g = 0; g < plan.give.size(); ++g) {
      const Exchange::Block &take = plan.take[t], &give = plan.give[g];
      const bool apart = take.data + take.bytes <= give.data || give.data + give.bytes <= take.data;
      const bool own = take.data == give.data && (plan.reduce || t == static_cast<size_t>(me)) &&
                       (plan.same || g == static_cast<size_t>(me));
      if (take.bytes > 0 && give.bytes > 0 && !apart && !own) return true;
    }
  }
  return false;
}

void Exchange::Pull(const Call& call, const Plan& plan) {
  if (!Overlap(plan, peers_.rank())) return PullApart(call, plan);
  Plan copy = plan;
  std::vector<std::vector<char>> blocks;
  for (Block& block : copy.give) {
    blocks.emplace_back(block.data, block.data + block.bytes);
    block.data = blocks.back().data();
  }
  PullApart(call, copy);
}

void Exchange::PullApart(const Call& call, const Plan& plan) {
  const int n = peers_.size(), me = peers_.rank();
  // A payload begins with the sizes of what each rank may take, then comes a piece for each or one for all.
  const int64_t table = RoundUp(static_cast<int64_t>(sizeof(int64_t)) * n);
  const int64_t room = static_cast<int64_t>(kPayloadBytes) - table;
  const int64_t piece = (plan.same ? room : room / n) / kAlign * kAlign;
  TORCH_CHECK(piece > 0, "shm: too many ranks: ", n);

  int64_t longest = 0, given = 0;
  for (const Block& block : plan.give) {
    longest = std::max(longest, block.bytes);
    given += block.bytes;
  }
  const auto fill = [&](Slot& slot, int64_t round) {
    for (size_t b = 0; b < plan.give.size(); ++b) {
      const Range range = Piece(plan.give[b].bytes, piece, round);
      Copy(slot.payload + table + static_cast<int64_t>(b) * piece, plan.give[b].data + range.begin, range.size());
    }
  };
  // Takes the part `range` of what each rank has for me; `from` says where that lies.
  const auto take = [&](auto piece_of, auto from) {
    if (plan.take.empty()) return;
    if (plan.reduce) {
      const Range range = piece_of(plan.take[0].bytes);
      std::vector<const char*> sources(n);
      for (int r = 0; r < n; ++r) sources[r] = from(r, range.begin);
      char* to = plan.take[0].data + range.begin;
      Reduce(call.reduction(), call.dtype(), sources.data(), n, &to, 1,
             range.size() / static_cast<int64_t>(c10::elementSize(call.dtype())));
      return;
    }
    for (int i = 0; i < n; ++i) {
      const int r = (me + i) % n;  // not all from the same rank at the same time
      const Range range = piece_of(plan.take[r].bytes);
      if (range.size() > 0) Copy(plan.take[r].data + range.begin, from(r, range.begin), range.size());
    }
  };

  Slot& slot = rounds_.Begin(call);
  Descriptor& mine = slot.descriptor;
  mine.rounds = static_cast<uint32_t>(std::max<int64_t>(1, DivideUp(longest, piece)));
  const bool in_shared_memory = memory_.Publish(plan.give.empty() ? nullptr : plan.give[0].data, mine);
  mine.shared = given == 0 || (in_shared_memory && plan.one_tensor);
  mine.inlined = mine.rounds == 1 && (given == 0 || !mine.shared || given < kSharedBytes);
  auto* sizes = reinterpret_cast<int64_t*>(slot.payload);
  for (int r = 0; r < n; ++r) sizes[r] = plan.give.empty() ? 0 : plan.give[plan.same ? 0 : r].bytes;
  if (mine.inlined) fill(slot, 0);
  Meet();

  std::vector<int64_t> before(n, 0);  // bytes of each rank's blocks before mine
  for (int r = 0; r < n; ++r) {
    const auto* theirs = reinterpret_cast<const int64_t*>(rounds_.Of(r).payload);
    if (!plan.same) {
      for (int i = 0; i < me; ++i) before[r] += theirs[i];
    }
    if (plan.take.empty()) continue;
    const int64_t expected = plan.take[plan.reduce ? 0 : r].bytes;
    // Where there is a root, ranks need not take what the root gives to others.
    const bool fits = expected == theirs[me] || (expected == 0 && (plan.same || call.what.root >= 0));
    TORCH_CHECK_WITH(DistBackendError, fits, "shm: ", Rounds::Name(call.what), ": rank ", peers_.name(r),
                     " gives rank ", peers_.name(me), " ", theirs[me], " bytes, which takes ", expected);
  }

  const int64_t place = table + (plan.same ? 0 : me * piece);
  const auto from_slot = [&](int r, int64_t) { return rounds_.Of(r).payload + place; };
  if (AllRanks([](const Descriptor& d) { return d.inlined; })) {
    take([&](int64_t bytes) { return Piece(bytes, piece, 0); }, from_slot);
  } else if (AllRanks([](const Descriptor& d) { return d.shared; })) {
    std::vector<const char*> base(n, nullptr);
    for (int r = 0; r < n; ++r) {
      if (rounds_.Of(r).descriptor.segment != 0) base[r] = memory_.Find(r, rounds_.Of(r).descriptor) + before[r];
    }
    take([](int64_t bytes) { return Range{0, bytes}; }, [&](int r, int64_t begin) { return base[r] + begin; });
    Finish();
  } else {
    uint32_t rounds = 0;
    for (int r = 0; r < n; ++r) rounds = std::max(rounds, rounds_.Of(r).descriptor.rounds);
    for (uint32_t k = 0; k < rounds; ++k) {
      fill(rounds_.Next(), k);
      rounds_.PublishAndWait();
      take([&](int64_t bytes) { return Piece(bytes, piece, k); }, from_slot);
    }
  }
}

void Exchange::AllReduce(const Call& call, char* data) {
  const int64_t count = call.what.elements;
  const int64_t bytes = count * static_cast<int64_t>(c10::elementSize(call.dtype()));
  Slot& slot = rounds_.Begin(call);
  slot.descriptor.shared = memory_.Publish(data, slot.descriptor) && bytes >= kSharedBytes;
  slot.descriptor.inlined = !slot.descriptor.shared && bytes <= kAllReduceInlineBytes;
  if (slot.descriptor.inlined) Copy(slot.payload, data, bytes);
  Meet();
  if (AllRanks([](const Descriptor& d) { return d.inlined; })) {
    if (!call.wanted_by(peers_.rank())) return;
    const char* sources[kFewRanks];
    std::vector<const char*> many(peers_.size() > kFewRanks ? peers_.size() : 0);
    const char** all = many.empty() ? sources : many.data();
    for (int r = 0; r < peers_.size(); ++r) all[r] = rounds_.Of(r).payload;
    Reduce(call.reduction(), call.dtype(), all, peers_.size(), &data, 1, count);
  } else if (AllRanks([](const Descriptor& d) { return d.shared; })) {
    AllReduceShared(call);
  } else {
    AllReducePieces(call, data);
  }
}

/// Each rank reduces its part, from everyone's memory into everyone's memory.
void Exchange::AllReduceShared(const Call& call) {
  const int n = peers_.size();
  const int64_t element = static_cast<int64_t>(c10::elementSize(call.dtype()));
  const Range part = Part(call.what.elements * element, peers_.rank(), n);
  std::vector<const char*> sources(n);
  std::vector<char*> destinations;
  for (int r = 0; r < n; ++r) {
    char* base = memory_.Find(r, rounds_.Of(r).descriptor) + part.begin;
    sources[r] = base;
    if (call.wanted_by(r)) destinations.push_back(base);
  }
  Reduce(call.reduction(), call.dtype(), sources.data(), n, destinations.data(), static_cast<int>(destinations.size()),
         part.size() / element);
  Finish();
}

/// In round k each rank shows piece k of its tensor and its part of piece k − 1, reduced; then it takes the others'
/// parts of piece k − 1 and reduces its part of piece k. So one wait a piece is enough.
void Exchange::AllReducePieces(const Call& call, char* data) {
  const int n = peers_.size(), me = peers_.rank();
  const int64_t element = static_cast<int64_t>(c10::elementSize(call.dtype()));
  const int64_t bytes = call.what.elements * element;
  // In a payload: the piece, then the part.
  const int64_t piece = static_cast<int64_t>(kPayloadBytes) * n / (n + 1) / (kAlign * n) * (kAlign * n);
  const int64_t rounds = DivideUp(bytes, piece);
  const bool wanted = call.wanted_by(me);
  std::vector<const char*> sources(n);
  for (int64_t k = 0; k <= rounds; ++k) {
    const Range now = Piece(bytes, piece, k), last = Piece(bytes, piece, k - 1);
    const Range my_part = Part(now.size(), me, n);
    Slot& slot = rounds_.Next();
    // My own part of the piece is read by me alone, from the tensor.
    Copy(slot.payload, data + now.begin, my_part.begin);
    Copy(slot.payload + my_part.end, data + now.begin + my_part.end, now.size() - my_part.end);
    rounds_.PublishAndWait();
    for (int i = 1; i < n && wanted && k > 0; ++i) {
      const int r = (me + i) % n;
      const Range part = Part(last.size(), r, n);
      Copy(data + last.begin + part.begin, rounds_.Of(r).payload + piece, part.size());
    }
    if (my_part.size() == 0) continue;
    char* own = data + now.begin + my_part.begin;
    for (int r = 0; r < n; ++r) sources[r] = r == me ? own : rounds_.Of(r).payload + my_part.begin;
    char* destinations[] = {rounds_.Upcoming().payload + piece, own};
    Reduce(call.reduction(), call.dtype(), sources.data(), n, destinations, wanted ? 2 : 1, my_part.size() / element);
  }
}

}  // namespace lockstep::shm
